"""Training loops under `torch.compile`, each with a capture of every step and without: what comes of them, as JSON.

    python -m tests.compiled_training [CASE ...]

A process of its own, so that what is on disk (`TORCHINDUCTOR_CACHE_DIR`) is all that a second run has of the first.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # first, or the import below is circular
from torch import nn
from torch._functorch._aot_autograd import runtime_wrappers
from torch.utils.checkpoint import checkpoint

import cabw_viz

STEPS = 3


class Block(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.dropout = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16), nn.Dropout(p)

    def forward(self, x):
        return x + self.dropout(self.b(torch.tanh(self.norm(self.a(x)))))


class Broken(nn.Sequential):
    def forward(self, x):
        x = self[0](x)
        torch._dynamo.graph_break()
        return self[1](x)


class Checkpointed(nn.Sequential):
    def forward(self, x):
        for block in self:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class Autocast(Block):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.out = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(64, 16)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.convolution(x.view(-1, 1, 4, 4)))).flatten(1))


class Recurrent(nn.Module):
    def __init__(self, kind) -> None:
        super().__init__()
        self.recurrent, self.out = kind(16, 16, batch_first=True), nn.Linear(16, 16)

    def forward(self, x):
        return self.out(torch.tanh(self.recurrent(x.unsqueeze(1).expand(-1, 5, -1))[0][:, -1]))


def frozen() -> nn.Module:
    block = Block()
    block.a.requires_grad_(False)
    return block


def compiled(**options: Any) -> Callable[[nn.Module], Callable[..., Any]]:
    """One region of the whole model."""
    return lambda model: torch.compile(model, **options)


def by_parts(model: nn.Module) -> Callable[..., Any]:
    """A region for each part."""
    return nn.Sequential(*(torch.compile(part) for part in model))


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    compile: Callable[[nn.Module], Callable[..., Any]]
    batches: tuple[int, ...] = (8, 8, 8)
    draws: bool = False
    """Whether compiled code draws other numbers than eager code."""
    whole_step: bool = False
    """Whether backward and optimizer are compiled with the forward."""
    config: tuple[str, ...] = ()
    """Settings of Dynamo that are on."""


CASES = {
    "static": Case(Block, compiled(fullgraph=True)),
    "static_aot": Case(Block, compiled(backend="aot_eager")),
    "dynamic": Case(Block, compiled(dynamic=True), (8, 5, 3)),
    "dynamic_aot": Case(Block, compiled(backend="aot_eager", dynamic=True), (8, 5, 3)),
    "other_sizes": Case(Block, compiled(), (8, 5, 3)),
    "autotuned": Case(Block, compiled(mode="max-autotune-no-cudagraphs")),
    "reduced_overhead": Case(Block, compiled(mode="reduce-overhead")),
    "regions": Case(lambda: nn.Sequential(Block(), Block()), by_parts),
    "break": Case(lambda: Broken(Block(), Block()), compiled()),
    "break_aot": Case(lambda: Broken(Block(), Block()), compiled(backend="aot_eager")),
    "dropout": Case(lambda: Block(0.3), compiled(), draws=True),
    "checkpoint": Case(lambda: Checkpointed(Block(), Block()), compiled()),
    "checkpoint_dropout": Case(lambda: Checkpointed(Block(0.3), Block(0.3)), compiled(), draws=True),
    "autocast": Case(Autocast, compiled()),
    "batch_norm": Case(Convolution, compiled()),
    "batch_norm_aot": Case(Convolution, compiled(backend="aot_eager")),
    "lstm": Case(lambda: Recurrent(nn.LSTM), compiled()),
    "gru": Case(lambda: Recurrent(nn.GRU), compiled()),
    "frozen": Case(frozen, compiled()),
    "whole_step": Case(Block, compiled(), whole_step=True),
    "whole_step_compiled_autograd": Case(Block, compiled(), whole_step=True, config=("compiled_autograd",)),
}


def train(case: Case, on_step: Callable[[nn.Module, Callable[[], Any]], None]) -> tuple[nn.Module, Any]:
    """Train a model; `on_step` makes each step by the function that it gets. Returns the model and a random number."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = case.model()
    forward = case.compile(model)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.05)

    def step(x):
        forward(x).square().mean().backward()

    def whole_step(x):
        model(x).square().mean().backward()
        optimizer.step()

    run = torch.compile(whole_step) if case.whole_step else step
    for index, size in enumerate(case.batches):
        torch.manual_seed(50 + index)
        x = torch.randn(size, 16)
        optimizer.zero_grad()
        on_step(model, lambda x=x: run(x))
        if not case.whole_step:
            optimizer.step()
    return model, torch.rand(1).item()


def is_right(model: nn.Module, case: Case, gradients: list[dict[str, torch.Tensor]]) -> bool:
    """Whether the gradients of a compiled training are those of an eager one, but for rounding."""
    eager: list[dict[str, torch.Tensor]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        train(case, lambda model, run: (run(), eager.append(gradients_of(model))))
    coarse = case.model is Autocast
    rtol, atol = (0.1, 0.02) if coarse else (1e-3, 1e-5)
    return len(eager) == len(gradients) == STEPS and all(
        torch.allclose(one[name], other[name], rtol, atol)
        for one, other in zip(gradients, eager, strict=True)
        for name in other
    )


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@contextlib.contextmanager
def wrong_backward(factor: float):
    """What compiled backwards return first is off by a factor."""
    run = runtime_wrappers.call_func_at_runtime_with_args

    def call(*args, **options):
        results = list(run(*args, **options))
        index = next(i for i, each in enumerate(results) if isinstance(each, torch.Tensor))
        results[index] = results[index] * factor
        return results

    with mock.patch.object(runtime_wrappers, "call_func_at_runtime_with_args", call):
        yield


def judged(capture: Any) -> tuple[bool, bool | None]:
    """Whether parity and divergence find nothing; None for a divergence where the run was not eager."""
    return capture.parity().ok, capture.divergence().ok if capture.record.run == "eager" else None


def report(name: str) -> dict[str, Any]:
    """What comes of one case."""
    case = CASES[name]
    outcomes: list[list[str]] = []
    verdicts: list[Any] = []
    faults: list[Any] = []
    own: list[dict[str, torch.Tensor]] = []

    def captured(model, run):
        with cabw_viz.capture(model, snapshot=case.whole_step) as session:
            run()
        own.append(gradients_of(model))
        outcomes.append([each for each in session.events["outcome"] if each != "bypassed"])
        verdicts.append([judged(capture) for capture in session])

    def faulty(model, run):
        with cabw_viz.capture(model) as session, wrong_backward(1.2 if case.model is Autocast else 1.02):
            run()
        faults.extend((capture.parity().ok, capture.divergence().first) for capture in session)

    with torch._dynamo.config.patch(dict.fromkeys(case.config, True)):
        alone, number = train(case, lambda _, run: run())
        model, own_number = train(case, captured)
        if not case.whole_step and name not in ("lstm", "gru"):  # whose regions are few or none
            train(case, faulty)
    pairs = zip(alone.state_dict().values(), model.state_dict().values(), strict=True)
    return {
        "outcomes": outcomes,
        "verdicts": verdicts,
        "same": number == own_number and all(torch.equal(*pair) for pair in pairs),
        "right": None if case.draws or case.whole_step else is_right(model, case, own),
        "faults": [(ok, None if first is None else first.name) for ok, first in faults],
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps({name: report(name) for name in sys.argv[1:] or CASES}))
