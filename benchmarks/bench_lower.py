"""CPU time of lowering a backward to aten ops, and of running what comes out.

    python benchmarks/bench_lower.py

Lowering against the capture that it starts from; the lowered graph (guards checked each time) against the captured
graph interpreted and against eager's backward of the same model. No bars: reported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import Measured, cpu_seconds, header, interleaved, transformer

torch.set_num_threads(1)

RUNS = 5
"""Runs of a graph that are timed as one."""


def main() -> None:
    """Measure and print."""
    model, batch = transformer()

    def loss() -> torch.Tensor:
        return model(batch).square().mean()

    def eager() -> float:
        outputs = [loss() for _ in range(RUNS)]
        start = time.process_time()
        for output in outputs:
            output.backward()
        return (time.process_time() - start) / RUNS

    def capture() -> None:
        output = loss()
        with cabw_viz.capture(model):
            output.backward()

    with cabw_viz.capture(model) as session:
        loss().backward()
    cap = session[0]
    lowered = cap.lower(symbolic=True)
    inputs = lowered.example_inputs()

    making = interleaved(
        {
            "capture": lambda: cpu_seconds(capture),
            "cap.lower()": lambda: cpu_seconds(cap.lower),
            "cap.lower(symbolic=True)": lambda: cpu_seconds(lambda: cap.lower(symbolic=True)),
        },
        repeats=3,
    )
    untied = Measured("tied=False", (cpu_seconds(lambda: cap.lower(symbolic=True, tied=False)),))
    running = interleaved(
        {
            "eager backward": eager,
            "cap.replay()": lambda: _each(cap.replay),
            "lowered(*inputs)": lambda: _each(lambda: lowered(*inputs)),
            "of that, guards": lambda: _each(lambda: lowered.check(*inputs)),
        }
    )
    record = cap.record
    captured = f"{len(record.autograd_nodes)} autograd nodes, {len(record.graph_nodes)} graph nodes"
    print(header(f"12-layer transformer: {captured}, {len(cap.results.lowered)} lowered, {len(lowered.guards)} guards"))
    for side in [*making, untied, *running]:
        print(f"  {side}")
    best = {side.name: side.best for side in [*making, *running]}
    print(f"  lower over capture: {best['cap.lower()'] / best['capture']:.2f}")
    print(f"  with symbols over capture: {best['cap.lower(symbolic=True)'] / best['capture']:.2f}")
    print(f"  and untied: {untied.best / best['capture']:.2f}")
    print(f"  lowered over replay: {best['lowered(*inputs)'] / best['cap.replay()']:.2f}")
    print(f"  lowered over eager backward: {best['lowered(*inputs)'] / best['eager backward']:.2f}")


def _each(work: Callable[[], object]) -> float:
    """CPU seconds of one of several runs."""
    return cpu_seconds(lambda: [work() for _ in range(RUNS)]) / RUNS


if __name__ == "__main__":
    main()
