"""The module graph of large backwards: how many boxes, CPU time to draw it, and `dot`'s to lay it out.

    python benchmarks/bench_graph.py

The bar: a transformer of 48 layers has at most 30 boxes by default, and `dot` draws it in under half a second. The
other levels and cuts of the same backward stand beside it.
"""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import cpu_seconds, header, transformer
from cabw_viz.errors import CabwError
from cabw_viz.record.model import CaptureRecord
from cabw_viz.views.render import MAX_BOXES, graph_view, run_dot
from tests.inspector.blocks import transformer as made_up

REPEATS = 5
LAYERS = 48

torch.set_num_threads(1)


class Embedded(torch.nn.Module):
    """A transformer whose input needs a gradient, so that all of its layers are alike."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 64)
        self.encoder, _ = transformer(layers)
        self.head = torch.nn.Linear(64, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits for each token."""
        logits: torch.Tensor = self.head(self.encoder(self.embed(tokens)))
        return logits


def main() -> None:
    """Measure and print."""
    print(header(f"Module graphs, median of {REPEATS}, CPU seconds"))
    model = Embedded(LAYERS)
    with cabw_viz.capture(model, tripwire=False) as session:
        model(torch.randint(50, (2, 16))).logsumexp(-1).mean().backward()
    record = session[0].record
    node = record.autograd_nodes[len(record.autograd_nodes) // 2].number
    print(f"\ntransformer of {LAYERS} layers, captured: {len(record.autograd_nodes):,} autograd nodes")
    for options in (
        {},
        {"depth": 1},
        {"depth": 3},
        {"expand": ["encoder.layers.20"]},
        {"expand": ["encoder.layers"]},
        {"focus": "encoder.layers.20"},
        {"around": node, "hops": 4},
        {"path_to": "embed.weight"},
        {"color_by": "bytes"},
        {"level": "autograd"},
        {"level": "fx", "focus": "encoder.layers.20"},
    ):
        told(record, ", ".join(f"{name}={value!r}" for name, value in options.items()) or "default", **options)
    for blocks in (160, 806):
        record = made_up(blocks)
        print(f"\n{blocks} blocks, made up: {len(record.autograd_nodes):,} autograd nodes")
        told(record, "default")


def told(record: CaptureRecord, name: str, **options: object) -> None:
    """Print what one drawing comes to."""
    view = graph_view(record, **options)  # type: ignore[arg-type]  # a mixture of options
    boxes = len(view.drawing.boxes)
    drawing = median(lambda: cpu_seconds(lambda: graph_view(record, **options).source))  # type: ignore[arg-type]
    if boxes > MAX_BOXES:
        try:
            view.svg()
        except CabwError as error:
            print(f"  {name}: {boxes:,} boxes, refused: {error.try_}")
        return
    laid_out = median(lambda: of_children(lambda: run_dot(view.source, "svg")))
    print(f"  {name}: {boxes:,} boxes, {len(view.drawing.arrows):,} arrows; drawing {drawing:.2f}, dot {laid_out:.2f}")


def of_children(work: Callable[[], object]) -> float:
    """CPU seconds of the processes that a call runs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def median(run: Callable[[], float]) -> float:
    """Median of several runs."""
    return statistics.median(run() for _ in range(REPEATS))


if __name__ == "__main__":
    main()
