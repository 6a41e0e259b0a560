"""CPU time of a capture, against compiled autograd's plain trace and the eager backward that the user makes anyway.

    python benchmarks/bench_capture.py                       # all models; 20 minutes
    python benchmarks/bench_capture.py --models lstm --repeats 3

A capture traces, makes the record, and lets the user's backward run in eager. The bar: with everything on, less the
eager backward, at most 0.6 times `_enable(lambda gm: gm)`, for each model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torch._dynamo import compiled_autograd

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import cpu_seconds, header, interleaved, transformer

torch.set_num_threads(1)

Workload = tuple[nn.Module, Callable[[], torch.Tensor]]
"""A model, and a function that runs its forward and returns the loss."""


def encoder(layers: int) -> Workload:
    """The transformer encoder of the other benchmarks."""
    model, batch = transformer(layers)
    return model, lambda: model(batch).square().mean()


def gpt2(layers: int) -> Workload:
    """GPT-2 of transformers, narrow."""
    import transformers

    config = transformers.GPT2Config(n_layer=layers, n_head=4, n_embd=64, vocab_size=97, n_positions=32)
    model, ids = transformers.GPT2LMHeadModel(config), torch.randint(0, 97, (2, 16))
    return model, lambda: model(ids, labels=ids).loss


def resnet() -> Workload:
    """ResNet-50 of transformers, narrow."""
    import transformers

    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 128])
    model, images = transformers.ResNetForImageClassification(config), torch.randn(2, 3, 64, 64)
    return model, lambda: model(images).logits.square().mean()


class Recurrent(nn.Module):
    """An LSTM cell over 32 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(32, 64), nn.Linear(64, 8)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """The head's result on the last state; `steps`: (32, batch, 32)."""
        state = None
        for step in steps:
            state = self.cell(step, state)
        assert state is not None
        return self.head(state[0])


def lstm() -> Workload:
    """A recurrent model of 32 steps."""
    model, steps = Recurrent(), torch.randn(32, 4, 32)
    return model, lambda: model(steps).square().mean()


MODELS: dict[str, tuple[Callable[[], Workload], bool]] = {
    "encoder-12": (lambda: encoder(12), False),
    "encoder-48": (lambda: encoder(48), False),
    "gpt2-12": (lambda: gpt2(12), True),
    "gpt2-48": (lambda: gpt2(48), True),
    "resnet": (resnet, True),
    "lstm": (lstm, False),
}
"""How each model is made, and whether that takes transformers."""


def measure(name: str, repeats: int, *, with_compiled: bool) -> None:
    """Measure one model and print."""
    make, needs_transformers = MODELS[name]
    if needs_transformers and find_spec("transformers") is None:
        print(f"{name}: skipped, needs transformers (pip install 'cabw_viz[examples]')")
        return
    torch.manual_seed(0)
    model, forward = make()
    nodes = []

    def loss() -> torch.Tensor:
        model.zero_grad()
        return forward()

    def eager() -> float:
        root = loss()
        return cpu_seconds(root.backward)

    def plain() -> float:
        root = loss()
        torch._C._dynamo.compiled_autograd.clear_cache()
        with compiled_autograd._enable(lambda gm: gm):
            seconds = cpu_seconds(root.backward)
        torch._C._dynamo.compiled_autograd.clear_cache()
        return seconds

    def captured(run: str, *, tripwire: bool = True) -> float:
        root = loss()
        with cabw_viz.capture(model, run=run, tripwire=tripwire) as session:
            seconds = cpu_seconds(root.backward)
        nodes.append((len(session[0].record.autograd_nodes), len(session[0].record.graph_nodes)))
        session.close()
        return seconds

    ways = {
        "eager backward": eager,
        "_enable(lambda gm: gm)": plain,
        'capture(run="eager")': lambda: captured("eager"),
    }
    if with_compiled:
        ways['capture(run="compiled")'] = lambda: captured("compiled")
    sides = interleaved(ways, repeats)
    print(header(f"{name}: {nodes[0][0]} autograd nodes, {nodes[0][1]} graph nodes"))
    for side in sides:
        print(f"  {side}")
    alone, trace, shadow, *through = (side.best for side in sides)
    print(f'  capture(run="eager"), less the eager backward, over the plain trace: {(shadow - alone) / trace:.2f}')
    for compiled in through:
        print(f'  capture(run="compiled") over the plain trace: {compiled / trace:.2f}')


def main() -> None:
    """Measure the models that were asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    for name in options.models:
        measure(name, options.repeats, with_compiled=name == "encoder-12")


if __name__ == "__main__":
    main()
