"""Training loops of other packages: the trained weights are the same to the bit with and without captures in them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, nullcontext

import pytest
import torch

import cabw_viz
from tests.sweeps.models import WORDS, llama, words

pytestmark = pytest.mark.models

os.environ.setdefault("HF_HUB_OFFLINE", "1")
STEPS = 3
CALLS = ("parity", "divergence", "replay", "lower", "audit", "times")


class Words(torch.utils.data.Dataset):
    """Random sentences, the same each time."""

    def __init__(self):
        torch.manual_seed(1)
        self.sentences = torch.randint(3, WORDS, (2 * STEPS, 6))

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return {"input_ids": self.sentences[index], "labels": self.sentences[index]}


def trained_by_trainer(tmp_path, **options):
    """The weights after training by transformers' Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    def train(model, block, look=lambda: None):
        arguments = TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=2, num_train_epochs=1, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False, **options,
        )  # fmt: skip

        class Looks(TrainerCallback):
            def on_pre_optimizer_step(self, *_, **__):
                look()

        trainer = Trainer(model, arguments, train_dataset=Words(), callbacks=[Looks()])
        with block:
            trainer.train()

    return train


def trained_by_lightning(tmp_path, **options):
    """The weights after training by Lightning's Trainer."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self, model, look):
            super().__init__()
            self.model, self.look = model, look

        def on_before_optimizer_step(self, _):
            self.look()

        def training_step(self, batch, _):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-3)

    def train(model, block, look=lambda: None):
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path, **options,
        )  # fmt: skip
        with block:
            trainer.fit(Module(model, look), torch.utils.data.DataLoader(Words(), batch_size=2))

    return train


def trained_by_accelerate(tmp_path, **options):
    """The weights after a loop with accelerate."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    def train(model, block, look=lambda: None):
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator(cpu=True, **options)
        loader = torch.utils.data.DataLoader(Words(), batch_size=2)
        model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3), loader)
        with block:
            for batch in loader:
                with accelerator.accumulate(model):
                    loss = model(**batch).loss
                    accelerator.backward(loss)
                    look()
                    optimizer.step()
                    optimizer.zero_grad()

    return train


def trained_with_offloaded_activations(tmp_path):
    """The weights after a loop whose saved tensors are copied, and whose optimizer runs in the backward."""

    def train(model, block, look=lambda: None):
        optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            parameter.grad = None

        handles = [p.register_post_accumulate_grad_hook(step) for p in model.parameters()]
        torch.manual_seed(2)
        with block:
            for _ in range(STEPS):
                tokens = words()
                with torch.autograd.graph.save_on_cpu():
                    loss = model(input_ids=tokens, labels=tokens).loss
                loss.backward()
        for handle in handles:
            handle.remove()

    return train


FRAMEWORKS = {
    "transformers": (trained_by_trainer, {}),
    "transformers, checkpoints": (trained_by_trainer, {"gradient_checkpointing": True}),
    "transformers, bfloat16": (trained_by_trainer, {"bf16": True}),
    "transformers, accumulated": (trained_by_trainer, {"gradient_accumulation_steps": 3}),
    "lightning": (trained_by_lightning, {}),
    "lightning, bfloat16": (trained_by_lightning, {"precision": "bf16-mixed"}),
    "lightning, clipped": (trained_by_lightning, {"gradient_clip_val": 0.1}),
    "accelerate": (trained_by_accelerate, {}),
    "accelerate, bfloat16": (trained_by_accelerate, {"mixed_precision": "bf16"}),
    "accelerate, accumulated": (trained_by_accelerate, {"gradient_accumulation_steps": 2}),
    "offload, optimizer in backward": (trained_with_offloaded_activations, {}),
}


def weights_after(train: Callable[[torch.nn.Module], object]) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model, _ = llama()
    torch.manual_seed(3)
    train(model.train())
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_training_loop_ends_in_the_same_weights(name, tmp_path):
    make, options = FRAMEWORKS[name]
    train = make(tmp_path, **options)
    plain = weights_after(lambda model: train(model, nullcontext()))
    sessions = []

    def captured(model):
        sessions.append(cabw_viz.capture(model, snapshot=True, only=1))
        train(model, sessions[0])

    after = weights_after(captured)
    assert plain.keys() == after.keys()
    assert [key for key in plain if not torch.equal(plain[key], after[key])] == []
    (session,) = sessions
    assert session.events["outcome"].tolist().count("captured") == 1, session.events
    assert session[0].parity().ok, session[0].parity()
    assert session[0].divergence().ok, session[0].divergence()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["transformers", "lightning", "accelerate"])
def test_calls_between_the_steps_of_a_loop_change_no_weight(name, tmp_path):
    """After the backward of every step, before the optimizer: what the capture offers is computed."""
    make, options = FRAMEWORKS[name]
    train = make(tmp_path, **options)
    plain = weights_after(lambda model: train(model, nullcontext()))

    looks = []

    def captured(model):
        """Train in blocks that end before each step of the optimizer, where everything is computed."""
        blocks = ExitStack()
        session = blocks.enter_context(cabw_viz.capture(model))

        def look():
            nonlocal session
            for call in CALLS:
                getattr(session[-1], call)()
            looks.append(session[-1].parity().ok)
            blocks.close()
            session = blocks.enter_context(cabw_viz.capture(model))

        train(model, blocks, look)

    after = weights_after(captured)
    assert looks == [True] * STEPS
    assert [key for key in plain if not torch.equal(plain[key], after[key])] == []
