"""CPU time of a search for the first divergence against one interpreted run of the graph, and of keeping the gradients.

    python benchmarks/bench_divergence.py

The bar for `divergence()`, in a backward without a fault, is 1.5 interpreted runs. What keeping the gradients of all
nodes adds to the user's own backward is reported, beside the plain backward and the whole capture.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import cpu_seconds, header, interleaved, transformer
from cabw_viz.tracing.extract import autograd_nodes
from cabw_viz.tracing.node_gradients import Budget, NodeWatch
from cabw_viz.tracing.node_numbering import number_nodes

torch.set_num_threads(1)


def search(width: int) -> None:
    """A search against one replay."""
    model, batch = transformer(width=width)
    with cabw_viz.capture(model) as session:
        model(batch).square().mean().backward()
    capture = session[0]
    sides = interleaved(
        {
            "cap.replay()": lambda: cpu_seconds(capture.replay),
            "cap.divergence()": lambda: cpu_seconds(capture.divergence),
        }
    )
    record, kept = capture.record, capture._captured.state.node_gradients
    nodes = f"{len(record.autograd_nodes)} autograd nodes, {len(record.graph_nodes)} graph nodes"
    print(header(f"12-layer transformer, width {width}: {nodes}, gradients kept in {kept.bytes / 2**20:.1f} MiB"))
    for side in sides:
        print(f"  {side}")
    replay, divergence = (side.best for side in sides)
    print(f"  divergence over replay: {divergence / replay:.2f}")


def keeping(width: int) -> None:
    """The user's own backward, with and without hooks that keep its gradients."""
    model, batch = transformer(width=width)

    def backward(budget: Budget | None, *, watched: bool) -> float:
        loss = model(batch).square().mean()
        nodes = number_nodes([loss])
        rows = autograd_nodes(nodes)
        leaves = frozenset(number for number, node in enumerate(nodes.nodes) if hasattr(node, "variable"))
        watch = NodeWatch(rows, nodes, budget or Budget(0), leaves, leaves_only=budget is None)

        def run() -> None:
            with watch.watching():
                loss.backward()

        return cpu_seconds(run if watched else loss.backward)

    sides = interleaved(
        {
            "plain backward": lambda: backward(None, watched=False),
            'gradients="leaves"': lambda: backward(None, watched=True),
            'gradients="nodes"': lambda: backward(Budget(2**40), watched=True),
            'gradients="nodes", max_bytes=0': lambda: backward(Budget(0), watched=True),
        }
    )
    print(header(f"12-layer transformer, width {width}: the user's own backward"))
    plain = sides[0].best
    for side in sides:
        print(f"  {side}: {side.best / plain:.2f} of plain")


def capturing() -> None:
    """The whole capture, with the gradients of all nodes and of the leaves alone."""
    model, batch = transformer()

    def captured(gradients: str) -> float:
        loss = model(batch).square().mean()
        with cabw_viz.capture(model, gradients=gradients) as session:
            seconds = cpu_seconds(loss.backward)
        session.close()
        return seconds

    sides = interleaved({f"capture(gradients={g!r})": lambda g=g: captured(g) for g in ("leaves", "nodes")}, repeats=3)
    print(header("12-layer transformer, width 64: the whole capture"))
    for side in sides:
        print(f"  {side}")
    leaves, nodes = (side.best for side in sides)
    print(f"  nodes over leaves: {nodes / leaves:.3f}")


if __name__ == "__main__":
    for size in (64, 512):
        search(size)
    for size in (64, 512, 1024):
        keeping(size)
    capturing()
