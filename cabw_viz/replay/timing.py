"""How long each autograd node takes when a captured graph is run again, op by op on eager kernels.

That is not the engine's own time: the engine overlaps devices, accumulates into `.grad` and has no Python between
nodes. It is the time of each node's call of the graph, from Python into its kernels and back, less what an empty call
takes; graph nodes that only pick results and unwrap sizes do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from cabw_viz.errors import CabwError
from cabw_viz.record.kinds import PLUMBING
from cabw_viz.replay.interpreter import GradientCollector
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.replay.replay import Replay

EMPTY_CALLS = 256
"""How many empty calls are timed; the quickest counts."""


@dataclass(frozen=True)
class Times:
    """Seconds of a graph's run."""

    seconds: tuple[float | None, ...]
    """By autograd node, as in the record; None for nodes without a call in the graph, as accumulations are."""
    run: float
    """Seconds of the quickest whole run, the interpreter's own part included."""


class _Timing(GradientCollector):
    """Interprets a captured graph with a clock.

    call_function   times the call, and waits for the accelerator where tensors are on one
    └─ GradientCollector   as in a replay
    """

    wait: Callable[[], None]

    def __init__(self, graph: PlacedGraph) -> None:
        super().__init__(graph)
        self.seconds: dict[int, float] = {}
        """By number of the autograd node."""
        self.empty = 0.0

    def run(self, *args: Any, **options: Any) -> Any:
        """Run the graph."""
        self.wait = _synchronizer(args[0])
        self.empty = min(self._result_and_seconds(_nothing)[1] for _ in range(EMPTY_CALLS))
        return super().run(*args, **options)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call and time it."""
        assert self.current is not None  # set by run_node
        row = self.rows[self.current.name]
        if row.autograd_node is None or row.kind in PLUMBING or row.kind == "accumulate_grad":
            return super().call_function(target, args, kwargs)
        call = super().call_function
        result, seconds = self._result_and_seconds(lambda: call(target, args, kwargs))
        self.seconds[row.autograd_node] = self.seconds.get(row.autograd_node, 0.0) + max(0.0, seconds - self.empty)
        return result

    def _result_and_seconds(self, call: Callable[[], Any]) -> tuple[Any, float]:
        self.wait()
        start = time.perf_counter()
        result = call()
        self.wait()
        return result, time.perf_counter() - start


def time_nodes(replay: Replay, *, repeats: int = 3) -> Times:
    """Run a captured graph several times, op by op, and keep each autograd node's best.

    Args:
        replay: the graph, and where it runs. Hooks run in each repeat, and count for the node that they belong to.
        repeats: how many runs, at least one. The first one also pays for what is set up at first use.

    Raises:
        CabwError: as `Replay`, and where `repeats` is no count.
    """
    check_repeats(repeats)
    runs = [_timed_run(replay) for _ in range(repeats)]
    best: dict[int, float] = {}
    for node_seconds, _ in runs:
        for number, seconds in node_seconds.items():
            best[number] = min(best.get(number, seconds), seconds)
    nodes = replay.capture.record.autograd_nodes
    return Times(tuple(best.get(node.number) for node in nodes), min(whole for _, whole in runs))


def check_repeats(repeats: Any) -> None:
    """Raise a CabwError for a value that is no number of runs."""
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise CabwError(f"repeats={repeats!r}", expected="a whole number from 1", try_="cap.times(repeats=3)")


def _timed_run(replay: Replay) -> tuple[dict[int, float], float]:
    """Seconds by number of the autograd node, and of the whole run."""
    timing = _Timing(replay.graph)
    start = time.perf_counter()
    replay.run(timing)
    return timing.seconds, time.perf_counter() - start


def _nothing() -> None:
    """An empty call."""


def _synchronizer(inputs: Iterable[Any]) -> Callable[[], None]:
    """A function that waits for the accelerators of some tensors to finish their queued work."""
    accelerator = torch.accelerator.current_accelerator()
    kind = None if accelerator is None else accelerator.type
    tensors = (each for each in inputs if isinstance(each, torch.Tensor))
    devices = dict.fromkeys(each.device for each in tensors if each.device.type == kind)
    if not devices:
        return _nothing

    def wait() -> None:
        for device in devices:
            torch.accelerator.synchronize(device)

    try:
        wait()
    except RuntimeError:  # a backend in Python alone has nothing that runs on: its ops are done when they return
        return _nothing
    return wait
