"""Parity: a captured graph, run again, against what the user's own run gave."""

from __future__ import annotations

import torch

from cabw_viz.errors import CabwError
from cabw_viz.live import Gradient, LiveCapture, strides_of
from cabw_viz.record.comparison import Comparison
from cabw_viz.record.model import CaptureRecord, Hook
from cabw_viz.replay.compare import compare, tolerance_for
from cabw_viz.replay.runner import HookPolicy, replay, runnable

GRAPH = "the captured graph run again, op by op on eager kernels"
RUNS = {
    "eager": "your own eager run",
    "compiled": "the run itself, through compiled autograd (the captured graph as it is)",
    "user": "the run itself, through your own compiler",
}


def parity(
    record: CaptureRecord,
    live: LiveCapture,
    *,
    hooks: HookPolicy = "run",
    rtol: float | None = None,
    atol: float | None = None,
) -> Comparison:
    """Compare the captured graph, run again, with the user's own run.

    After an eager run the reference is that run. A compiled run is itself what is in question: there the graph
    run again is the reference. Inside the user's own compiler nothing can be watched, so `.grad` after the call
    is compared with `.grad` before it plus the graph's gradient.

    Args:
        record: the capture.
        live: what it keeps alive.
        hooks: see `replay`.
        rtol: relative tolerance; with `atol`, instead of torch.testing's for the dtype.
        atol: tolerance in units of the largest gradient element.

    Raises:
        CabwError: there is no reference, or the graph cannot be run again.
    """
    tolerance_for(torch.float32, rtol, atol)
    runnable(record, live)
    check_reference(record, live)
    again = replay(record, live, hooks=hooks)
    graph_side, run_side = _graph_side(record, live, again), dict(live.reference)
    reference, candidate = (run_side, graph_side) if record.run == "eager" else (graph_side, run_side)
    rows, tolerances = [], {}
    for index, leaf in enumerate(record.leaves):
        pair = reference.get(index), candidate.get(index)
        present = pair[0] or pair[1]
        if present is None:
            continue
        tolerance = tolerance_for(present.value.dtype, rtol, atol)
        tolerances[str(present.value.dtype)] = (tolerance.rtol, tolerance.atol)
        rows.append(compare(leaf.label, *pair, tolerance))
    names = (RUNS["eager"], GRAPH) if record.run == "eager" else (GRAPH, RUNS[record.run])
    used = tuple((dtype, *values) for dtype, values in sorted(tolerances.items()))
    return Comparison(*names, tuple(rows), used, tuple(notes(record, hooks)))


def check_reference(record: CaptureRecord, live: LiveCapture) -> None:
    """Raise a CabwError where the user's own run left nothing to compare with."""
    if live.has_reference:
        return
    if record.failure is not None:
        raise CabwError(
            f"the run of this backward raised {record.failure}",
            expected="a backward that ends",
            try_="cap.error and session.events",
        )
    raise CabwError(
        'the session was captured with gradients="none", so no reference was kept',
        expected="gradients of the user's own run",
        try_='cabw_viz.capture(..., gradients="leaves")',
    )


def _graph_side(record: CaptureRecord, live: LiveCapture, again: dict[int, torch.Tensor]) -> dict[int, Gradient]:
    """The graph's gradients in the form in which the run's were kept."""
    side = {}
    for index, gradient in again.items():
        accumulated = record.leaves[index].output is None
        before = live.before.get(index)
        value = gradient if before is None else before + gradient
        side[index] = Gradient(value, None if accumulated else strides_of(gradient))
    return side


def _accumulate_hooks(record: CaptureRecord) -> list[Hook]:
    return [hook for node in record.autograd_nodes if node.kind == "accumulate_grad" for hook in node.hooks]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def notes(record: CaptureRecord, hooks: HookPolicy) -> list[str]:
    """What a reader of the comparison must know."""
    kinds = [hook.kind for node in record.autograd_nodes for hook in node.hooks]
    later, unpack = kinds.count("post_acc_grad_hook"), kinds.count("unpack_hook")
    others = len(kinds) - later - unpack
    found = []
    if record.run == "user" and any(hook.kind.startswith("post") for hook in _accumulate_hooks(record)):
        found.append("hooks that follow an accumulation may have changed .grad before it was read")
    if others:
        found.append(f"in the replay {_counted(others, 'hook')} {'ran again' if hooks == 'run' else 'did not run'}")
    if unpack:
        found.append(f"in the replay {_counted(unpack, 'saved-tensor hook')} unpacked again")
    if later:
        found.append(f"in the replay {_counted(later, 'post-accumulate hook')} did not run")
    if not record.leaves:
        found.append("this backward computes the gradient of no leaf")
    return found
