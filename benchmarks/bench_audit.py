"""CPU time of an audit against one replay of the same graph.

    python benchmarks/bench_audit.py

An audit runs the graph once on tensors whose every metadata query and op goes through Python. No bar: reported.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import cpu_seconds, header, interleaved, transformer

torch.set_num_threads(1)


def main() -> None:
    """Measure and print."""
    model, batch = transformer()
    with cabw_viz.capture(model) as session:
        model(batch).square().mean().backward()
    capture = session[0]
    sides = interleaved(
        {
            "cap.replay()": lambda: cpu_seconds(capture.replay),
            "cap.audit()": lambda: cpu_seconds(capture.audit),
        }
    )
    touches = capture.touches()
    counted = int(touches["count"].sum())
    record = capture.record
    print(
        header(
            f"12-layer transformer: {len(record.autograd_nodes)} autograd nodes, {len(record.graph_nodes)} graph nodes"
        )
    )
    for side in sides:
        print(f"  {side}")
    replay, audit = (side.best for side in sides)
    print(f"  audit over replay: {audit / replay:.2f}")
    print(f"  {counted} reads and ops in {len(touches)} rows, {(audit - replay) / counted * 1e6:.1f} us each")


if __name__ == "__main__":
    main()
