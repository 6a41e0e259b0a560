"""CPU time of forward and capture with provenance, against the same without.

    python benchmarks/bench_provenance.py

Provenance is what a capture knows beside the graph: each node's module and line, what it holds, its gradients. The
bars: at most 1.05 without lines and 1.15 with lines, on a transformer of realistic width. For the forward alone, to
which most of it is added, the figures stand below; nothing of it runs in the backward.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import Measured, cpu_seconds, header, interleaved, transformer
from cabw_viz.tracing.backward_trace import BackwardTrace
from cabw_viz.tracing.provenance import Provenance

torch.set_num_threads(1)


class Blind(Provenance):
    """Sees nothing."""

    def install(self) -> None:
        """Watch nothing."""

    def uninstall(self) -> None:
        """Nothing to take out."""


def ratio(side: Measured, base: Measured) -> float:
    """Median of the ratios of neighbouring runs, which a machine that slows down and speeds up disturbs the least."""
    return statistics.median(one / other for one, other in zip(side.seconds, base.seconds, strict=True))


def main() -> None:
    """Measure and print."""
    model, batch = transformer(layers=12, width=768)
    read = BackwardTrace.read_saved_tensors
    nodes = []

    def step(lines: bool, seen: bool, backward: bool) -> float:
        model.zero_grad()
        session = cabw_viz.capture(model, lines=lines)
        if not seen:
            session._recorder.provenance = Blind(model, lines=False)
            BackwardTrace.read_saved_tensors = lambda _: None
        try:
            with session:
                seconds = cpu_seconds(lambda: run(backward))
        finally:
            BackwardTrace.read_saved_tensors = read
        if backward:
            nodes.append((len(session[0].record.autograd_nodes), len(session[0].record.graph_nodes)))
        session.close()
        return seconds

    def run(backward: bool) -> None:
        loss = model(batch).square().mean()
        if backward:
            loss.backward()

    def measure(name: str, repeats: int, backward: bool) -> None:
        sides = interleaved(
            {
                f"{name}, without": partial(step, lines=False, seen=False, backward=backward),
                f"{name}, with modules": partial(step, lines=False, seen=True, backward=backward),
                f"{name}, with lines too": partial(step, lines=True, seen=True, backward=backward),
            },
            repeats,
        )
        for side in sides:
            print(f"  {side}")
        modules, lines = (ratio(side, sides[0]) for side in sides[1:])
        print(f"  over without: {modules:.3f} with modules, {lines:.3f} with lines too (median of {repeats} ratios)")

    print(header("12-layer transformer, width 768, batch (2, 16)"))
    measure("forward and capture", 9, backward=True)
    measure("forward alone", 41, backward=False)
    print(f"  {nodes[0][0]} autograd nodes, {nodes[0][1]} graph nodes")


if __name__ == "__main__":
    main()
