"""Runs each step of a graph alone: on the gradients of the other side, or of an earlier run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from cabw_viz.replay.divergence.gradient_sites import GradientSites
from cabw_viz.replay.divergence.node_comparison import NodeComparer, NodeComparison
from cabw_viz.replay.divergence.probing import ProbingInterpreter, substitute
from cabw_viz.replay.divergence.step_judgement import Question
from cabw_viz.replay.divergence.step_rounding import needs_float64
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.runtime.gradient_snapshots import Gradient, GradientSnapshot


class Steps(Protocol):
    """The two sides of each step of a graph, interpreted or compiled."""

    graph: PlacedGraph

    def other_side(self, name: str) -> Any:
        """The gradient at a site with which a step that runs alone begins; None where it is not known."""

    def pairs(self, name: str, value: Any) -> list[tuple[GradientSnapshot | None, Any]]:
        """Reference and candidate at a site, of which the value was made by a step that ran alone."""

    def reproduced(self, names: Collection[str]) -> frozenset[str]:
        """The sites, of these, where a fault of the candidate cannot be in a float64 run of the graph too."""


class IsolatedSteps(ProbingInterpreter):
    """Runs each step on the other side's gradients, and compares its results."""

    def __init__(self, graph: PlacedGraph, sites: GradientSites, steps: Steps, comparer: NodeComparer) -> None:
        super().__init__(graph, sites)
        self._steps, self._compare = steps, comparer
        self._nodes_of_graph = frozenset(node.name for node in graph.module.graph.nodes)
        self.comparisons: dict[str, NodeComparison] = {}
        self.substituted: set[str] = set()
        """The sites at which the next step took the other side's gradient."""
        self.questions: dict[str, Question] = {}
        """The results that further runs must judge."""

    def on_value(self, name: str, value: Any) -> Any:
        """Compare it; the graph goes on with what the other side had."""
        for reference, candidate in self._steps.pairs(name, value):
            comparison = self._compare(reference, candidate)
            if comparison is None:
                continue
            self.comparisons[name] = comparison
            if self._compare.has_user_tolerance or not isinstance(reference, Gradient) or candidate is None:
                continue
            in_graph = name in self._nodes_of_graph  # what a call takes is made by no step
            if in_graph and needs_float64(comparison.difference, reference.value, candidate):
                self.questions[name] = Question(reference.value.detach(), candidate.detach())
        other = substitute(self._steps.other_side(name), value)
        if other is None:
            return value
        self.substituted.add(name)
        return other
