"""Runs of some steps of a captured graph alone: in another dtype, once more, and changed as rounding would change them.

All other steps are left out: what a step takes is known. A step that cannot run leaves the others as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from cabw_viz.numerics.constants import SMALLEST_SIZE
from cabw_viz.numerics.distance import in_float64
from cabw_viz.numerics.perturb import PerturbedResults, UniformRounding
from cabw_viz.numerics.tolerance import coarser, has_digits, step_of, unit_of
from cabw_viz.record.divergence import BETWEEN
from cabw_viz.record.kinds import GraphKind
from cabw_viz.replay.divergence.gradient_sites import GradientSites
from cabw_viz.replay.divergence.probing import ProbingInterpreter
from cabw_viz.replay.placement.device_dtype_map import is_out_of_memory
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.replay.replay import Replay

SKIPPED = object()
"""The value of a graph node that does not run."""

WRITING: frozenset[GraphKind] = frozenset({"aot_op", "copy_slices_prologue", "copy_slices_epilogue", "other"})
"""Graph nodes that may write to what other nodes of their autograd node made, and run whenever one of these does."""

OtherSide = Callable[[str], Any]
"""The gradient at a site with which a step begins; None where it is not known."""


@dataclass(frozen=True)
class Rounding:
    """Random changes as large as rounding makes them.

    Args:
        seed: of the random numbers.
        size: in roundings.
        of_saved: whether what the forward saved is changed, or else gradients that flow in and results of operators.
    """

    seed: int
    size: float = 1.0
    of_saved: bool = False


class RoundingDtypes:
    """The dtype to which the two sides round what steps take and make, the coarser of theirs.

    Args:
        sites: the steps.
        other_side: the gradients with which they begin.
        candidate: the graph as it is placed for the candidate.
        fused: whether a compiler may leave out the rounding between two steps. Then the candidate may have taken more
            digits than can be seen; else both sides have taken the same bits, and compute with them in single precision
            at least.
    """

    def __init__(self, sites: GradientSites, other_side: OtherSide, candidate: PlacedGraph, *, fused: bool) -> None:
        self._mapping = candidate.mapping
        self._retyped = self._mapping is not None and self._mapping.retypes
        self._takes_same_bits = not (fused or self._retyped)
        self._by_site: dict[str, torch.dtype] = {}
        self._by_node: dict[int, torch.dtype] = {}
        for step in sites.steps:
            for name in step.outputs:
                value = other_side(name)
                if isinstance(value, torch.Tensor) and has_digits(value.dtype):
                    self._by_site[name] = self._coarser(value.dtype)
            outputs = [self._by_site[name] for name in step.outputs if name in self._by_site]
            if outputs and step.kind not in BETWEEN:
                self._by_node[step.number] = coarser(*outputs)

    def of_result(self, name: str, number: int | None) -> torch.dtype | None:
        """Of the results of operators in a graph node that belongs to an autograd node."""
        return self._by_site.get(name) or self._by_node.get(-1 if number is None else number)

    def of_gradient(self, name: str) -> torch.dtype | None:
        """Of the gradient at a site, where a step takes it."""
        dtype = self._by_site.get(name)
        return _at_least_single(dtype) if dtype is not None and self._takes_same_bits else dtype

    def of_saved(self, dtype: torch.dtype) -> torch.dtype:
        """Of a saved tensor of this dtype."""
        return self._coarser(dtype) if self._retyped else _at_least_single(dtype)

    def _coarser(self, dtype: torch.dtype) -> torch.dtype:
        return dtype if self._mapping is None else coarser(dtype, self._mapping.dtype(dtype))


def _at_least_single(dtype: torch.dtype) -> torch.dtype:
    return min(dtype, torch.float32, key=unit_of)


class StepRounding(UniformRounding):
    """Changes each element by up to half a unit of a dtype, or half of its smallest step; in float64.

    Args:
        rounding: seed and size.
    """

    def __init__(self, rounding: Rounding) -> None:
        super().__init__(rounding.size, rounding.seed)
        self.dtype: torch.dtype | None = None
        """The dtype to which is rounded; None for no change."""

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Draw other values for a tensor."""
        if self.dtype is None:
            return tensor
        sizes = in_float64(tensor).abs().clamp(min=SMALLEST_SIZE)
        units = unit_of(self.dtype) + step_of(self.dtype) / sizes
        return tensor + tensor * (self._uniform(tensor) - 0.5) * self._unit * units


class StepRuns:
    """Runs of some steps at a target.

    Args:
        replay: the graph at that target.
        sites: its steps.
        other_side: the gradients with which steps begin.
        names: the sites whose gradients are wanted: outputs of steps.
        dtypes: in which is rounded.
    """

    def __init__(
        self,
        replay: Replay,
        sites: GradientSites,
        other_side: OtherSide,
        names: Collection[str],
        dtypes: RoundingDtypes,
    ) -> None:
        self._replay, self._graph = replay, replay.graph
        self.sites, self._other_side, self.dtypes = sites, other_side, dtypes
        self._captured = replay.capture.arguments.inputs
        self.names = frozenset(names)
        self.failures: dict[str, str] = {}
        """Why steps could not run, by the graph node that raised."""

    def values(self, rounding: Rounding | None = None) -> dict[str, torch.Tensor]:
        """Run the steps once: the gradient at each of the sites; one whose step cannot run is absent."""
        graph = self._graph
        changes = None if rounding is None else StepRounding(rounding)
        if rounding is not None and changes is not None and rounding.of_saved:
            graph = self._with_changed_inputs(changes)
            changes = None
        mode = None if changes is None else PerturbedResults(changes)
        interpreter = _PartialInterpreter(graph, self, changes, mode)
        with mode or nullcontext():
            self._replay.run(interpreter)
        self.failures |= interpreter.failures
        return interpreter.values

    def _with_changed_inputs(self, changes: StepRounding) -> PlacedGraph:
        """The graph on inputs that are changed, as far as they are plain tensors of rounded numbers."""
        inputs = []
        for captured, value in zip(self._captured, self._graph.arguments.inputs, strict=True):
            plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
            if plain and has_digits(value.dtype):
                changes.dtype = self.dtypes.of_saved(captured.dtype)
                inputs.append(changes(value.detach()).to(value.dtype))
            else:
                inputs.append(value)
        return replace(self._graph, arguments=replace(self._graph.arguments, inputs=inputs))

    def known(self, name: str) -> torch.Tensor | None:
        """A copy of the gradient at a site, at the target; None where it is not known."""
        value = self._gradient(name)
        if value is None:
            return None
        device, dtype, mapping = value.device, value.dtype, self._graph.mapping
        if mapping is not None:
            device, dtype = mapping.device(device), mapping.dtype(dtype)
        return value.detach().to(device, dtype, copy=True)

    def is_known(self, name: str) -> bool:
        """Whether the gradient at a site is known."""
        return self._gradient(name) is not None

    def _gradient(self, name: str) -> torch.Tensor | None:
        value = self._other_side(name) if name in self.sites.observed else None
        return value if type(value) is torch.Tensor and value.layout is torch.strided else None


class _PartialInterpreter(ProbingInterpreter):
    """Runs the graph nodes that the wanted gradients need, from the nearest known ones on."""

    def __init__(
        self, graph: PlacedGraph, runs: StepRuns, changes: StepRounding | None, mode: PerturbedResults | None
    ) -> None:
        super().__init__(graph, runs.sites)
        self._runs, self._changes, self._mode = runs, changes, mode
        self._needed = needed_nodes(graph.module.graph, self._number_and_kind, runs.names, runs.is_known)
        self.values: dict[str, torch.Tensor] = {}
        self.failures: dict[str, str] = {}

    def _number_and_kind(self, node: torch.fx.Node) -> tuple[int | None, GraphKind]:
        row = self.rows[node.name]
        return row.autograd_node, row.kind

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one graph node, if it is needed and can run."""
        if n.op == "output":
            (returned,) = n.args
            return [None for _ in returned] if isinstance(returned, list | tuple) else None
        if n.op == "placeholder":
            return super().run_node(n)
        if n.name in self._needed and not any(self.env.get(each) is SKIPPED for each in n.all_input_nodes):
            if self._changes is not None:
                self._changes.dtype = self._runs.dtypes.of_result(n.name, self.rows[n.name].autograd_node)
            try:
                return super().run_node(n)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self.failures[n.name] = f"{self.location()} raised {type(error).__name__}: {error}"
        known = self._known(n.name)
        return SKIPPED if known is None else known

    def on_value(self, name: str, value: Any) -> Any:
        """Keep it if it is wanted; the graph goes on with what is known there."""
        if name in self._runs.names and isinstance(value, torch.Tensor):
            self.values[name] = value.detach()
        known = self._known(name) if value is not None else None
        return value if known is None else known

    def _known(self, name: str) -> torch.Tensor | None:
        """The gradient that is known at a site, changed if it is to be; no mode sees how."""
        with (
            nullcontext() if self.placed.mode is None else self.placed.mode.paused(),
            nullcontext() if self._mode is None else self._mode.paused(),
        ):
            known = self._runs.known(name)
            if known is None or self._changes is None:
                return known
            self._changes.dtype = self._runs.dtypes.of_gradient(name)
            return self._changes(known).to(known.dtype)


def needed_nodes(
    graph: torch.fx.Graph,
    number_and_kind: Callable[[torch.fx.Node], tuple[int | None, GraphKind]],
    names: Collection[str],
    is_known: Callable[[str], bool],
) -> frozenset[str]:
    """The graph nodes that must run for the values of some nodes, where the values of others are known.

    Args:
        graph: the graph.
        number_and_kind: the autograd node and the kind of a graph node.
        names: the nodes whose values are wanted.
        is_known: whether the value of a node, by its name, is known.
    """
    writing: dict[int | None, list[torch.fx.Node]] = {}
    for node in graph.nodes:
        number, kind = number_and_kind(node)
        if kind in WRITING:
            writing.setdefault(number, []).append(node)
    waiting = [node for node in graph.nodes if node.name in names]
    needed: set[str] = set()
    while waiting:  # each node is needed once
        node = waiting.pop()
        if node.name in needed:
            continue
        needed.add(node.name)
        number, kind = number_and_kind(node)
        waiting += (each for each in node.all_input_nodes if each.name not in needed and not is_known(each.name))
        waiting += writing.pop(number, ()) if kind in WRITING else ()
    return frozenset(needed)


def saved_answers(other_side: OtherSide) -> OtherSide:
    """The same, which computes each gradient once."""
    answers: dict[str, Any] = {}

    def answer(name: str) -> Any:
        if name not in answers:
            answers[name] = other_side(name)
        return answers[name]

    return answer
