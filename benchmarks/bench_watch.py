"""CPU time of `capture(trace=False)` over the same step without it, and of a block that captures nothing.

    python benchmarks/bench_watch.py [REPEATS [CASE ...]]

Cases: transformer encoders of 12 layers of width 64 and 512, and an LSTM of 32 steps, op by op, of width 32 and 512.
A step is forward, loss and backward. `leaves`, `nodes`, `none`: the whole block, entering, step and leaving, with
`gradients=` so; `idle`: a step in a block that is open and picks another call (`only=`). The last line has the hooks
alone: a backward with `gradients="nodes"` over one with `gradients="none"`. Ratios of the best of the repeats.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.bench_picture import Lstm
from benchmarks.measure import cpu_seconds, header, interleaved, transformer

Step = Callable[[], None]


def encoder(width: int) -> tuple[torch.nn.Module, Step]:
    """An encoder of 12 layers and its step, on two sentences of 16 words; 64 words at width 512."""
    model, batch = transformer(12, width)
    if width >= 512:
        batch = torch.randn(2, 64, width)
    return model, lambda: model(batch).square().mean().backward()


def lstm(width: int) -> tuple[torch.nn.Module, Step]:
    """An LSTM of 32 steps and its step, on four sequences; on 32 at width 512."""
    torch.manual_seed(0)
    model, x = Lstm(width), torch.randn(32, 32 if width >= 512 else 4, width)
    return model, lambda: model(x).square().mean().backward()


CASES: dict[str, Callable[[], tuple[torch.nn.Module, Step]]] = {
    "encoder, width 64": lambda: encoder(64),
    "encoder, width 512": lambda: encoder(512),
    "LSTM, width 32": lambda: lstm(32),
    "LSTM, width 512": lambda: lstm(512),
}


def block(model: torch.nn.Module, step: Step, **options: Any) -> float:
    """CPU seconds of a whole block around a step."""

    def work() -> None:
        with cabw_viz.capture(model, trace=False, **options):
            step()

    model.zero_grad()
    return cpu_seconds(work)


def plain(model: torch.nn.Module, step: Step) -> float:
    """CPU seconds of the step alone."""
    model.zero_grad()
    return cpu_seconds(step)


def idle(model: torch.nn.Module, step: Step) -> float:
    """CPU seconds of a step in a block that is open and captures none of it."""
    model.zero_grad()
    with cabw_viz.capture(model, trace=False, only=10**6):
        return cpu_seconds(step)


def main(repeats: int, names: list[str]) -> None:
    """Measure and print."""
    print(header("watching a step without a trace"))
    for name in names or CASES:
        model, step = CASES[name]()
        sides = {
            "plain": lambda model=model, step=step: plain(model, step),
            **{
                gradients: lambda model=model, step=step, gradients=gradients: block(model, step, gradients=gradients)
                for gradients in ("none", "leaves", "nodes")
            },
            "idle": lambda model=model, step=step: idle(model, step),
        }
        base, *others = interleaved(sides, repeats)
        ratios = ", ".join(f"{side.name} {side.best / base.best:.2f}" for side in others)
        none, nodes = others[0].best, others[2].best
        print(f"  {name}: plain {base.best * 1e3:.1f} ms; {ratios}; hooks on nodes {(nodes - none) * 1e3:.1f} ms")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(int(arguments[0]) if arguments else 7, arguments[1:])
