"""CPU time of a capture with the tripwire on, against the same capture with it off.

    python benchmarks/bench_tripwire.py

Every tensor that the tracer hands out is then a dummy that reports who reads it. The bar: at most 1.15 times the
capture without, on a 12-layer transformer. The eager backward that the user makes anyway is left out on both sides.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import cpu_seconds, header, interleaved, transformer

torch.set_num_threads(1)

BAR = 1.15


def main() -> None:
    """Measure and print."""
    model, batch = transformer()
    touches: set[int] = set()

    def loss() -> torch.Tensor:
        model.zero_grad()
        return model(batch).square().mean()

    def eager() -> float:
        root = loss()
        return cpu_seconds(root.backward)

    def captured(tripwire: bool) -> float:
        root = loss()
        with cabw_viz.capture(model, tripwire=tripwire) as session:
            seconds = cpu_seconds(root.backward)
        touches.add(len(session[0].record.touches))
        session.close()
        return seconds

    alone, without, watched = interleaved(
        {
            "eager backward": eager,
            "capture(tripwire=False)": lambda: captured(tripwire=False),
            "capture(tripwire=True)": lambda: captured(tripwire=True),
        }
    )
    print(header(f"12-layer transformer, {max(touches)} touches found"))
    for side in (alone, without, watched):
        print(f"  {side}")
    ratio = (watched.best - alone.best) / (without.best - alone.best)
    print(f"  tripwire on over off, less the eager backward: {ratio:.3f} (at most {BAR})")


if __name__ == "__main__":
    main()
