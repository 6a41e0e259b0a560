"""How long each autograd node takes when a captured graph is run again, op by op on eager kernels.

That is not the engine's own time: the engine overlaps devices, accumulates into `.grad` and has no Python between
nodes. It is the time of each node's call of the graph, from Python into its kernels and back, less what an empty call
takes; picking results apart and unwrapping sizes does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from cabw_viz.errors import CabwError
from cabw_viz.record.kinds import PLUMBING
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.options import HookPolicy
from cabw_viz.replay.placement.target import AS_CAPTURED, Target
from cabw_viz.replay.runner import GradientCollector, run
from cabw_viz.runtime.capture_state import CaptureState

EMPTY_CALLS = 256
"""How many empty calls are timed, of which the quickest counts."""


@dataclass(frozen=True)
class Times:
    """What timing a graph came to."""

    seconds: tuple[float | None, ...]
    """By autograd node, as in the record; None for those of which the graph runs nothing, as it does not accumulate."""
    run: float
    """Seconds of the quickest whole run, the interpreter's own part included."""


class _Timing(GradientCollector):
    """Interprets a captured graph with a clock.

    call_function   times the call, and waits for the accelerator where tensors are on one
    └─ GradientCollector   as in a replay
    """

    wait: Callable[[], None]

    def __init__(self, graph: torch.fx.GraphModule, record: CaptureRecord, hooks: HookPolicy) -> None:
        super().__init__(graph, record, hooks)
        self.spent: dict[int, float] = {}
        self.empty = 0.0

    def run(self, *args: Any, **options: Any) -> Any:
        """Run the graph."""
        self.wait = _waiting(args[0])
        self.empty = min(self._timed(_nothing)[1] for _ in range(EMPTY_CALLS))
        return super().run(*args, **options)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call and note how long it took."""
        assert self.current is not None  # set by run_node
        row = self.rows[self.current.name]
        if row.autograd_node is None or row.kind in PLUMBING or row.kind == "accumulate_grad":
            return super().call_function(target, args, kwargs)
        run_it = super().call_function
        result, seconds = self._timed(lambda: run_it(target, args, kwargs))
        self.spent[row.autograd_node] = self.spent.get(row.autograd_node, 0.0) + max(0.0, seconds - self.empty)
        return result

    def _timed(self, call: Callable[[], Any]) -> tuple[Any, float]:
        self.wait()
        start = time.perf_counter()
        result = call()
        self.wait()
        return result, time.perf_counter() - start


def time_nodes(
    record: CaptureRecord,
    live: CaptureState,
    *,
    repeats: int = 3,
    hooks: HookPolicy = "run",
    target: Target = AS_CAPTURED,
) -> Times:
    """Run a captured graph several times and keep each autograd node's best; see `replay` for what else it does.

    Args:
        record: the capture.
        live: what it keeps alive.
        repeats: how many runs, at least one. The first one also pays for what is set up at first use.
        hooks: as in `replay`; they run in each repeat, and count for the node that they belong to.
        target: where and in which dtype.

    Raises:
        CabwError: as `replay`, and where `repeats` is no count.
    """
    check_repeats(repeats)
    runs = [_timed_run(record, live, hooks, target) for _ in range(repeats)]
    best: dict[int, float] = {}
    for spent, _ in runs:
        for number, seconds in spent.items():
            best[number] = min(best.get(number, seconds), seconds)
    return Times(tuple(best.get(node.number) for node in record.autograd_nodes), min(whole for _, whole in runs))


def check_repeats(repeats: Any) -> None:
    """Raise a CabwError for what is no number of runs."""
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise CabwError(f"repeats={repeats!r}", expected="a whole number from 1", try_="cap.times(repeats=3)")


def _timed_run(
    record: CaptureRecord, live: CaptureState, hooks: HookPolicy, target: Target
) -> tuple[dict[int, float], float]:
    """Seconds by number of the autograd node, and of the whole run."""
    made: list[_Timing] = []

    def timing(*args: Any) -> _Timing:
        made.append(_Timing(*args))
        return made[-1]

    start = time.perf_counter()
    run(record, live, timing, hooks, target)
    return made[0].spent, time.perf_counter() - start


def _nothing() -> None:
    """An empty call."""


def _waiting(inputs: Iterable[Any]) -> Callable[[], None]:
    """What waits until the accelerators that tensors are on have done all that they were told."""
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
