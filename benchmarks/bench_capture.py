"""CPU time of a capture, against compiled autograd's plain trace and the eager backward that the user makes anyway.

    python benchmarks/bench_capture.py

A capture traces, makes the record, and lets the user's backward run in eager. The bar: at most 1.10 times
`_enable(lambda gm: gm)` on top of the eager backward itself, on a 12-layer transformer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch._dynamo import compiled_autograd

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import cpu_seconds, header, interleaved, transformer

torch.set_num_threads(1)


def main() -> None:
    """Measure and print."""
    model, batch = transformer()
    nodes = []

    def loss() -> torch.Tensor:
        model.zero_grad()
        return model(batch).square().mean()

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

    sides = interleaved(
        {
            "eager backward": eager,
            "_enable(lambda gm: gm)": plain,
            'capture(run="eager", tripwire=False)': lambda: captured("eager", tripwire=False),
            'capture(run="eager")': lambda: captured("eager"),
            'capture(run="compiled")': lambda: captured("compiled"),
        }
    )
    print(header(f"12-layer transformer: {nodes[0][0]} autograd nodes, {nodes[0][1]} graph nodes"))
    for side in sides:
        print(f"  {side}")
    alone, trace, unwatched, shadow, through = (side.best for side in sides)
    print(f"  tripwire=False, less the eager backward, over the plain trace: {(unwatched - alone) / trace:.2f}")
    print(f'  capture(run="eager"), less the eager backward, over the plain trace: {(shadow - alone) / trace:.2f}')
    print(f'  capture(run="compiled") over the plain trace: {through / trace:.2f}')


if __name__ == "__main__":
    main()
