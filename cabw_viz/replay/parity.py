"""Parity: a captured graph, run again, against what the user's own run gave.

parity ── replayed, at the target
   ├─ _Sides: the graph's gradients and the run's, brought to one device and dtype
   ├─ compare, row by row
   └─ _judged: a float64 run of the same graph, where it is needed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from cabw_viz.errors import CabwError
from cabw_viz.live import Gradient, LiveCapture, strides_of
from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.record.model import CaptureRecord, Hook
from cabw_viz.replay.compare import Tolerance, compare, plain, tolerance_for
from cabw_viz.replay.exact import judged, rounding
from cabw_viz.replay.measures import MEASURES, measures_named
from cabw_viz.replay.noise import coarsest
from cabw_viz.replay.runner import HookPolicy, Replayed, replayed, runnable
from cabw_viz.replay.target import HERE, Target, target_named
from cabw_viz.replay.words import counted, graph_words, run_words

Exact = bool | Literal["auto"]

COMPARED = frozenset({"bitwise", "within_tolerance", "within_noise", "mismatch"})
"""The verdicts of gradients that could be subtracted."""

WHERE_COMPARED = ("cpu", "cuda")
"""Gradients on other devices are compared on the CPU: not all of them have float64."""


@dataclass(frozen=True)
class Asked:
    """How a comparison was asked for; see `parity`."""

    hooks: HookPolicy = "run"
    rtol: float | None = None
    atol: float | None = None
    target: Target = HERE
    exact: Exact = "auto"
    measures: tuple[str, ...] = ()

    def checked(self) -> Asked:
        """The same, once every part is known to be possible. Raises a CabwError for the first that is not."""
        tolerance_for(torch.float32, self.rtol, self.atol)
        if self.exact not in (True, False, "auto"):
            raise CabwError(f"exact={self.exact!r}", expected="True, False or 'auto'", try_="exact='auto'")
        return replace(self, measures=measures_named(self.measures))


def parity(record: CaptureRecord, live: LiveCapture, asked: Asked | None = None) -> Comparison:
    """Compare the captured graph, run again, with the user's own run.

    After an eager run the reference is that run. A compiled run is itself what is in question: there the graph
    run again is the reference. Inside the user's own compiler nothing can be watched, so `.grad` after the call
    is compared with `.grad` before it plus the graph's gradient.

    Args:
        record: the capture.
        live: what it keeps alive.
        asked: hooks as for `replay`; tolerances, instead of torch.testing's; where the graph runs, in which dtype,
            under which backend; whether errors against a float64 run are wanted (`auto`: where not all is equal to
            the last bit); further measures.

    Raises:
        CabwError: there is no reference, or the graph cannot be run again there.
    """
    asked = (asked or Asked()).checked()
    runnable(record, live)
    check_reference(record, live)
    ran = replayed(record, live, hooks=asked.hooks, target=asked.target)
    sides = _Sides(record, live, asked, ran)
    rows = [sides.row(index) for index in sides.leaves]
    rows, exact_notes = _judged(rows, sides)
    graph, run = graph_words(asked.target, ran), run_words(record, (g.value for g in live.reference.values()))
    names = (run, graph) if record.run == "eager" else (graph, run)
    used = tuple((dtype, *values) for dtype, values in sorted(sides.used.items()))
    told = (*notes(record, asked.hooks), *sides.notes(), *exact_notes)
    return Comparison(*names, tuple(rows), used, told)


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


class _Sides:
    """The gradients of the graph and of the run, leaf by leaf."""

    def __init__(self, record: CaptureRecord, live: LiveCapture, asked: Asked, ran: Replayed) -> None:
        self.record, self.live, self.asked, self.ran = record, live, asked, ran
        self.graph = {index: _added(record, live, index, gradient) for index, gradient in ran.gradients.items()}
        self.run = dict(live.reference)
        self.leaves = [i for i, _ in enumerate(record.leaves) if i in self.graph or i in self.run]
        self.used: dict[str, tuple[float, float]] = {}
        """The tolerance that was used for each dtype."""
        self._depths = depths(record)

    @property
    def elsewhere(self) -> bool:
        """Whether the graph ran on another device, in another dtype or under a compiler."""
        return self.asked.target != HERE

    def row(self, index: int) -> GradientComparison:
        """One leaf, compared."""
        graph, run = self.graph.get(index), self.run.get(index)
        tolerance = self._tolerance(graph, run)
        if graph is not None and run is not None:
            graph, run = self.brought(graph, run)
        pair = (run, graph) if self.record.run == "eager" else (graph, run)
        row = compare(self.record.leaves[index].label, *pair, tolerance)
        row = replace(row, depth=self._depths.get(index))
        values = [plain(side.value) for side in pair if side is not None]
        if self.asked.measures and row.verdict in COMPARED:
            measures = tuple((name, MEASURES[name](*values)) for name in self.asked.measures)
            row = replace(row, measures=measures)
        return row

    def pair(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Reference and candidate of a leaf that has both, dense, each in its own dtype, on the CPU or on CUDA."""
        values = [plain(_near(side[index]).value) for side in (self.run, self.graph)]
        run, graph = values
        return (run, graph) if self.record.run == "eager" else (graph, run)

    def brought(self, graph: Gradient, run: Gradient) -> tuple[Gradient, Gradient]:
        """Both sides such that nothing but what was asked for sets them apart; the run's device and dtype hold."""
        if self.elsewhere:
            dtype = run.value.dtype if run.value.is_complex() == graph.value.is_complex() else graph.value.dtype
            graph = Gradient(graph.value.to(run.value.device, dtype), None)
        if graph.value.device == run.value.device:
            graph, run = _near(graph), _near(run)
        return graph, run

    def notes(self) -> list[str]:
        """What a reader must know of the two sides."""
        found = [f"{name} was computed by its formula: it has no kernel there" for name in self.ran.computed]
        target = self.asked.target
        if target.device is not None or target.dtype is not None:
            places = dict.fromkeys(
                f"{g.value.device} and {str(g.value.dtype).removeprefix('torch.')}" for g in self.run.values()
            )
            found.append(f"the graph's gradients were brought to {', '.join(places)} to be compared")
        return found

    def _tolerance(self, *sides: Gradient | None) -> Tolerance:
        """That of the coarser dtype; other kernels round elsewhere, at the size of the largest values."""
        dtypes = [side.value.dtype for side in sides if side is not None]
        dtypes += [self.asked.target.dtype] if self.asked.target.dtype is not None else []
        dtype = coarsest(dtypes) or dtypes[0]
        tolerance = tolerance_for(dtype, self.asked.rtol, self.asked.atol)
        if self.elsewhere and self.asked.rtol is None:
            tolerance = Tolerance(tolerance.rtol, max(tolerance.rtol, tolerance.atol))
        self.used[str(dtype)] = (tolerance.rtol, tolerance.atol)
        return tolerance


def _near(gradient: Gradient) -> Gradient:
    """A gradient on a device where gradients can be compared."""
    if gradient.value.device.type in WHERE_COMPARED:
        return gradient
    return Gradient(gradient.value.cpu(), None)


def _added(record: CaptureRecord, live: LiveCapture, index: int, gradient: torch.Tensor) -> Gradient:
    """A gradient of the graph in the form in which the run's was kept: added to `.grad`, where that was."""
    accumulated = record.leaves[index].output is None
    before = live.before.get(index)
    value = gradient if before is None else before.to(gradient.device, gradient.dtype) + gradient
    return Gradient(value, None if accumulated else strides_of(gradient))


# ------------------------------------------------------------------------------------------------------- the judgement


def _judged(rows: list[GradientComparison], sides: _Sides) -> tuple[list[GradientComparison], list[str]]:
    """The rows with the errors of both sides against float64, where these are wanted, and what there is to say."""
    asked = sides.asked
    wanted = asked.exact is True or (asked.exact == "auto" and any(_in_question(row) for row in rows))
    how = rounding(sides.record, (g.value for g in sides.run.values()), asked.target.dtype)
    if not wanted or how is None:
        return rows, []
    try:
        exact, said = _exact(sides)
    except CabwError as error:
        if asked.exact is True:
            raise
        return rows, [f"no float64 run to judge by: {error.seen}"]
    found = []
    for index, row in zip(sides.leaves, rows, strict=True):
        if row.verdict in COMPARED and index in exact and exact[index].isfinite().all():
            row = judged(row, *sides.pair(index), exact[index], how)  # noqa: PLW2901  # the same row, with more in it
        found.append(row)
    return found, [said]


def _in_question(row: GradientComparison) -> bool:
    return row.verdict in COMPARED and row.verdict != "bitwise"


def _exact(sides: _Sides) -> tuple[dict[int, torch.Tensor], str]:
    """Dense float64 gradients by leaf, and how they came about."""
    target, own = sides.asked.target, sides.ran
    if target.dtype is not torch.float64 or target.compiles:
        device = next((g.value.device for g in sides.run.values()), torch.device("cpu"))
        there = None if _has_float64(device) else torch.device("cpu")
        target = target_named(there, torch.float64)
        own = replayed(sides.record, sides.live, hooks=sides.asked.hooks, target=target)
    exact = {i: _near(_added(sides.record, sides.live, i, gradient)) for i, gradient in own.gradients.items()}
    devices = " and ".join(dict.fromkeys(str(gradient.device) for gradient in own.gradients.values()))
    said = f"reference_err and candidate_err are against a float64 run of the captured graph, op by op on {devices}"
    return {index: plain(gradient.value) for index, gradient in exact.items()}, said


def _has_float64(device: torch.device) -> bool:
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):  # MPS has none
        return False
    return True


# -------------------------------------------------------------------------------------------------- what there is to say


def depths(record: CaptureRecord) -> dict[int, int]:
    """How deep in the backward each leaf gets its gradient: the number of the last autograd node that makes a part.

    Views of a leaf (a transposed weight) and sums of gradients stand between; what made the gradient is behind them.
    """
    makers: dict[int, int] = {}
    for node in record.autograd_nodes:
        for edge in node.edges:
            makers[edge.target] = max(makers.get(edge.target, 0), node.number)
    found = {}
    for index, leaf in enumerate(record.leaves):
        number = leaf.autograd_node
        while number is not None:
            at = record.by_number.get(number)
            if at is None or (at.kind != "accumulate_grad" and at.name not in _VIEWS):
                break
            number = makers.get(number)
        if number is not None:
            found[index] = number
    return found


_VIEWS = frozenset({"TBackward0", "TransposeBackward0", "ToCopyBackward0", "ViewBackward0", "PermuteBackward0"})


def _accumulate_hooks(record: CaptureRecord) -> list[Hook]:
    return [hook for node in record.autograd_nodes if node.kind == "accumulate_grad" for hook in node.hooks]


def notes(record: CaptureRecord, hooks: HookPolicy) -> Sequence[str]:
    """What a reader of the comparison must know."""
    kinds = [hook.kind for node in record.autograd_nodes for hook in node.hooks]
    later, unpack = kinds.count("post_acc_grad_hook"), kinds.count("unpack_hook")
    others = len(kinds) - later - unpack
    found = []
    if record.run == "user" and any(hook.kind.startswith("post") for hook in _accumulate_hooks(record)):
        found.append("hooks that follow an accumulation may have changed .grad before it was read")
    if others:
        found.append(f"in the replay {counted(others, 'hook')} {'ran again' if hooks == 'run' else 'did not run'}")
    if unpack:
        found.append(f"in the replay {counted(unpack, 'saved-tensor hook')} unpacked again")
    if later:
        found.append(f"in the replay {counted(later, 'post-accumulate hook')} did not run")
    if not record.leaves:
        found.append("this backward computes the gradient of no leaf")
    return found
