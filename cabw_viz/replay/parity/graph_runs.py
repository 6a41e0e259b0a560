"""Runs of a captured graph under modes, whose gradients are looked at one by one as they are made."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

import torch

from cabw_viz.numerics.choices import Choices, Place, RecordedChoices
from cabw_viz.numerics.compare import on_comparable_device, plain
from cabw_viz.numerics.perturb import PerturbedResults, Rounding
from cabw_viz.numerics.tolerance import has_digits
from cabw_viz.replay.interpreter import VisitingCollector
from cabw_viz.replay.parity.gradient_pairs import with_previous_grad
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.replay.placement.target import Target
from cabw_viz.replay.replay import Replay
from cabw_viz.runtime.capture_state import Captured

Mode = Callable[[Place], AbstractContextManager[Any]]
"""A context for one run, made for the function that says where the run is."""

Gradients = dict[int, torch.Tensor]
"""Dense gradients by leaf."""


class GraphRuns:
    """Runs of one graph at any target.

    Args:
        replay: the graph.
        captured: its capture.
    """

    def __init__(self, replay: Replay, captured: Captured) -> None:
        self._replay, self._captured = replay, captured

    def _graph(self, target: Target) -> PlacedGraph:
        return self._replay.at(target).graph

    def _recorded(self, target: Target, leaves: Collection[int] = ()) -> tuple[Gradients, Choices]:
        """The gradients of some leaves, and what operators chose on the way to them, or in the whole graph."""
        modes: list[RecordedChoices] = []

        def recorded(place: Place) -> RecordedChoices:
            modes.append(RecordedChoices(place))
            return modes[-1]

        gradients = self._run(self._graph(target), recorded, leaves=leaves)
        return gradients, modes[0].choices

    def _run(self, graph: PlacedGraph, *modes: Mode, leaves: Collection[int] | None = None) -> Gradients:
        """The gradients of some leaves, or all, in a run in these modes."""
        gradients: Gradients = {}
        self._visit(graph, leaves, gradients.__setitem__, *modes)
        return gradients

    def _visit(
        self,
        graph: PlacedGraph,
        leaves: Collection[int] | None,
        visit: Callable[[int, torch.Tensor], None],
        *modes: Mode,
    ) -> None:
        """Run the graph once in these modes, the last of which sees an operator first.

        Args:
            graph: the graph.
            leaves: those that are visited; None for all.
            visit: gets each leaf with its gradient, which it is the only one to hold.
            modes: of the run.
        """

        def visit_leaf(index: int, gradient: torch.Tensor) -> None:
            if leaves is None or index in leaves:
                with torch.no_grad():
                    visit(index, self._side(index, gradient))

        collector = VisitingCollector(graph, visit_leaf, leaves or None)

        def place() -> str:
            return "" if collector.current is None else collector.current.name

        with ExitStack() as stack:
            entered = [stack.enter_context(mode(place)) for mode in modes]
            perturbed = next((mode for mode in entered if isinstance(mode, PerturbedResults)), None)
            if perturbed is not None:  # what was saved is an input of both sides, unpacked as it was saved
                collector.while_unpacking = perturbed.paused
            rest = self._replay.run(collector)
        for index, gradient in rest.items():
            visit_leaf(index, gradient)

    def _side(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of a leaf in the form in which it is compared."""
        return plain(on_comparable_device(with_previous_grad(self._captured, index, gradient)).value)


def perturbing(rounding: Rounding) -> Mode:
    """The mode in which results of operators are rounded otherwise."""
    return lambda _: PerturbedResults(rounding)


def with_inputs(graph: PlacedGraph, rounding: Rounding, least: int = 1) -> PlacedGraph:
    """A graph with those of its inputs rounded otherwise that have at least so many elements."""

    def rounded(value: Any) -> Any:
        is_rounded = type(value) in (torch.Tensor, torch.nn.Parameter)
        if not is_rounded or not has_digits(value.dtype) or value.layout is not torch.strided or value.numel() < least:
            return value
        if not value.untyped_storage().nbytes():  # FSDP has freed it, and unshards it before it is read
            return value
        return rounding(value.detach()).to(value.dtype)

    inputs = [rounded(value) for value in graph.arguments.inputs]
    return replace(graph, arguments=replace(graph.arguments, inputs=inputs))
