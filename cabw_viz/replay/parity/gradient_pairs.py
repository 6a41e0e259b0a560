"""The two sides of a parity: the gradients of the graph, run again, and those of the user's own run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cabw_viz.errors import CabwError
from cabw_viz.numerics.compare import aligned, compare, on_comparable_device, plain, zeros_where_not_finite
from cabw_viz.numerics.measures import FUNCTIONS, measures_named
from cabw_viz.numerics.tolerance import Tolerance, UsedTolerances, coarser, tolerance_for
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.options import Exact, HookPolicy
from cabw_viz.replay.placement.target import AS_CAPTURED, Target
from cabw_viz.replay.replay import ReplayResult
from cabw_viz.runtime.capture_state import Captured
from cabw_viz.runtime.gradient_snapshots import Gradient, strides_of

VERDICTS_WITH_DISTANCE = frozenset({"bitwise", "within_tolerance", "within_noise", "mismatch"})
"""The verdicts of gradients that could be subtracted."""


@dataclass(frozen=True)
class ParityOptions:
    """The options of a parity; see `parity`."""

    hooks: HookPolicy = "run"
    rtol: float | None = None
    atol: float | None = None
    target: Target = AS_CAPTURED
    exact: Exact = "auto"
    measures: tuple[str, ...] = ()

    def checked(self) -> ParityOptions:
        """The same options. Raises a CabwError for the first that is not possible."""
        tolerance_for(torch.float32, self.rtol, self.atol)
        if self.exact not in (True, False, "auto"):
            raise CabwError(f"exact={self.exact!r}", expected="True, False or 'auto'", try_="exact='auto'")
        return replace(self, measures=measures_named(self.measures))


class GradientPairs:
    """The gradients of the graph and of the run, leaf by leaf."""

    def __init__(self, captured: Captured, options: ParityOptions, result: ReplayResult) -> None:
        self.captured, self.options = captured, options
        self.record = record = captured.record
        self.graph = {
            index: with_previous_grad(captured, index, gradient) for index, gradient in result.gradients.items()
        }
        self.run = dict(captured.state.reference)
        self.leaves = [i for i, _ in enumerate(record.leaves) if i in self.graph or i in self.run]
        self.used = UsedTolerances()
        self.notes = self._notes(result)
        self._depths = depths(record)

    @property
    def is_retargeted(self) -> bool:
        """Whether the graph ran on another device, in another dtype or under a compiler."""
        return self.options.target != AS_CAPTURED

    def row(self, index: int) -> GradientComparison:
        """One leaf, compared."""
        graph, run = self.graph.get(index), self.run.get(index)
        tolerance = self._tolerance(graph, run)
        if graph is not None and run is not None:
            graph, run = self._aligned(graph, run)
        pair = (run, graph) if self.record.run == "eager" else (graph, run)
        row = compare(self.record.leaves[index].label, *pair, tolerance)
        row = replace(row, depth=self._depths.get(index))
        if self.options.measures and row.verdict in VERDICTS_WITH_DISTANCE:
            values = zeros_where_not_finite(*(plain(side.value) for side in pair if side is not None))
            measures = tuple((name, FUNCTIONS[name](*values)) for name in self.options.measures)
            row = replace(row, measures=measures)
        return row

    def pair(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Reference and candidate of a leaf that has both, dense, each in its own dtype, on the CPU or on CUDA."""
        values = [plain(on_comparable_device(side[index]).value) for side in (self.run, self.graph)]
        run, graph = values
        return (run, graph) if self.record.run == "eager" else (graph, run)

    def _aligned(self, graph: Gradient, run: Gradient) -> tuple[Gradient, Gradient]:
        """Both sides on the run's device and in its dtype, as far as the user asked for others."""
        if self.is_retargeted:
            graph = aligned(graph, run.value)
        if graph.value.device == run.value.device:
            graph, run = on_comparable_device(graph), on_comparable_device(run)
        return graph, run

    def _notes(self, result: ReplayResult) -> list[str]:
        """What a reader of the comparison must know of the two sides."""
        notes = [f"{name} was computed by its formula: it has no kernel there" for name in result.decomposed]
        target = self.options.target
        if target.device is not None or target.dtype is not None:
            places = dict.fromkeys(
                f"{g.value.device} and {str(g.value.dtype).removeprefix('torch.')}" for g in self.run.values()
            )
            notes.append(f"the graph's gradients were moved to {', '.join(places)} to be compared")
        return notes

    def _tolerance(self, *sides: Gradient | None) -> Tolerance:
        """The tolerance for the coarser dtype; kernels of another target round at the size of the largest values."""
        dtypes = [side.value.dtype for side in sides if side is not None]
        dtypes += [self.options.target.dtype] if self.options.target.dtype is not None else []
        dtype = coarser(*dtypes)
        tolerance = tolerance_for(dtype, self.options.rtol, self.options.atol)
        if self.is_retargeted and self.options.rtol is None:
            tolerance = tolerance.for_other_kernels()
        self.used.add(dtype, tolerance)
        return tolerance


def with_previous_grad(captured: Captured, index: int, gradient: torch.Tensor) -> Gradient:
    """A gradient in the form of the run's: plus the previous `.grad`, where the run's is `.grad` itself."""
    accumulated = captured.record.leaves[index].output is None
    before = captured.state.grads_before.get(index)
    value = gradient if before is None else before.to(gradient.device, gradient.dtype) + gradient
    return Gradient(value, None if accumulated else strides_of(gradient))


def depths(record: CaptureRecord) -> dict[int, int]:
    """The depth of each leaf in the backward: the number of the last autograd node that makes part of its gradient.

    Views of a leaf (a transposed weight) and sums of gradients are passed over.
    """
    makers: dict[int, int] = {}
    for node in record.autograd_nodes:
        for edge in node.edges:
            makers[edge.target] = max(makers.get(edge.target, 0), node.number)
    numbers = {}
    for index, leaf in enumerate(record.leaves):
        number = leaf.autograd_node
        while number is not None:
            maker = record.by_number.get(number)
            if maker is None or (maker.kind != "accumulate_grad" and maker.name not in _VIEWS):
                break
            number = makers.get(number)
        if number is not None:
            numbers[index] = number
    return numbers


_VIEWS = frozenset({"TBackward0", "TransposeBackward0", "ToCopyBackward0", "ViewBackward0", "PermuteBackward0"})
