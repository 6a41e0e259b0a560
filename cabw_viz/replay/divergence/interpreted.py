"""The steps of a graph that is interpreted: each can run alone, on the gradients of the user's own run."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from cabw_viz.errors import CabwError
from cabw_viz.replay.divergence.gradient_sites import GradientSites
from cabw_viz.replay.divergence.node_comparison import NodeComparer, NodeComparison
from cabw_viz.replay.divergence.probing import ProbingInterpreter, substitute
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.replay.placement.target import AS_CAPTURED
from cabw_viz.replay.replay import Replay
from cabw_viz.runtime.gradient_snapshots import Gradient, GradientSnapshot


class InterpretedSteps:
    """Both sides of each step: the user's own run, and the graph as it is interpreted.

    observe      the graph runs once; the gradient at each site is compared with that of the user's own run
    other_side   a step that runs alone takes the gradients of the user's own run
    pairs        what it makes of them is compared with what the user's own run made
    """

    def __init__(self, replay: Replay, sites: GradientSites, comparer: NodeComparer) -> None:
        self._replay, self._sites, self._compare = replay, sites, comparer
        self.graph = replay.graph
        self._values: dict[str, torch.Tensor] = {}
        """What the graph made at each site, as far as it is not to the last bit what the user's own run had."""

    def observe(self) -> tuple[dict[str, NodeComparison], CabwError | None]:
        """The gradient at each site against that of the user's own run, and what stopped the run on the way."""
        comparing = _Comparing(self.graph, self._sites, self._compare)
        try:
            self._replay.run(comparing)
        except CabwError as error:
            return comparing.comparisons, error
        self._values = comparing.values
        return comparing.comparisons, None

    def repeated(self, observed: Mapping[str, NodeComparison]) -> RepeatedSteps:
        """The same steps, to run on the gradients of the run that was observed."""
        return RepeatedSteps(self, observed, self._values)

    def again(self, observed: Mapping[str, NodeComparison]) -> dict[str, NodeComparison]:
        """Run the whole graph once more: the gradient at each site against that of the run that was observed."""
        comparer = replace(self._compare, across=False, rereads=True)
        comparing = _ComparingAgain(self.graph, self._sites, self.repeated(observed), comparer)
        self._replay.run(comparing)
        return comparing.comparisons

    def other_side(self, name: str) -> Any:
        """The gradient at a site with which a step that runs alone begins; None where it is not known in full."""
        snapshots = self._sites.snapshots(name)
        return snapshots[0].value if snapshots and isinstance(snapshots[0], Gradient) else None

    def pairs(self, name: str, value: Any) -> list[tuple[GradientSnapshot | None, Any]]:
        """Reference and candidate at a site, of which the value was made by a step that ran alone."""
        return [(snapshot, value) for snapshot in self._sites.snapshots(name)]

    def reproduced(self, names: Collection[str]) -> frozenset[str]:
        """The sites at which the graph makes what the user's own run made, once it has that run's device and dtype.

        A fault of an operator is in every run of the graph, the float64 run too; not so where this names the site.
        """
        if not self._compare.across:
            return frozenset()
        replay = self._replay.at(AS_CAPTURED)
        try:
            reproducing = _Reproducing(replay.graph, self._sites, self, names)
        except CabwError:  # it may be that only the target can run it; nothing is reproduced then
            return frozenset()
        with contextlib.suppress(CabwError):
            replay.run(reproducing)
        return frozenset(reproducing.names)


class RepeatedSteps:
    """Both sides of each step: the whole graph's run, and the step alone on the gradients of that run."""

    def __init__(
        self, steps: InterpretedSteps, observed: Mapping[str, NodeComparison], values: Mapping[str, torch.Tensor]
    ) -> None:
        self._steps, self._values = steps, values
        self.graph = steps.graph
        self._equal = {name for name, each in observed.items() if each.difference.verdict == "bitwise"} - values.keys()

    def other_side(self, name: str) -> Any:
        """The gradient at a site in the whole graph's run; None where it is not known in full."""
        if name in self._values:
            return self._values[name]
        return self._steps.other_side(name) if name in self._equal else None

    def pairs(self, name: str, value: Any) -> list[tuple[GradientSnapshot | None, Any]]:
        """The gradient at a site in the whole graph's run, and the one that the step made alone."""
        if name in self._values:
            return [(Gradient(self._values[name], None), value)]
        return self._steps.pairs(name, value) if name in self._equal else []

    @staticmethod
    def reproduced(_names: Collection[str]) -> frozenset[str]:
        """No site: it is the run of the whole graph that is in question, on both sides' kernels."""
        return frozenset()


class _Comparing(ProbingInterpreter):
    """Compares the gradient at each site with that of the user's own run."""

    def __init__(self, graph: PlacedGraph, sites: GradientSites, comparer: NodeComparer) -> None:
        super().__init__(graph, sites)
        self._compare = comparer
        self.comparisons: dict[str, NodeComparison] = {}
        self.values: dict[str, torch.Tensor] = {}
        """Of the gradients that are not those of the user's own run to the last bit, on its device and in its dtype."""

    def on_value(self, name: str, value: Any) -> Any:
        """Compare it; the graph goes on with it."""
        snapshots = self.sites.snapshots(name)
        comparison = self._compare(snapshots[0], value) if snapshots else None
        if comparison is None:
            return value
        self.comparisons[name] = comparison
        is_other = self._compare.across or comparison.difference.verdict != "bitwise"
        if is_other and isinstance(value, torch.Tensor):
            # Code of the user's may write to it later.
            self.values[name] = value.detach().clone() if self.sites.has_writes else value.detach()
        return value


class _ComparingAgain(ProbingInterpreter):
    """Compares the gradient at each site with that of an earlier run of the whole graph."""

    def __init__(
        self, graph: PlacedGraph, sites: GradientSites, earlier: RepeatedSteps, comparer: NodeComparer
    ) -> None:
        super().__init__(graph, sites)
        self._earlier, self._compare = earlier, comparer
        self.comparisons: dict[str, NodeComparison] = {}

    def on_value(self, name: str, value: Any) -> Any:
        """Compare it; the graph goes on with it."""
        for reference, candidate in self._earlier.pairs(name, value):
            comparison = self._compare(reference, candidate)
            if comparison is not None:
                self.comparisons[name] = comparison
        return value


class _Reproducing(ProbingInterpreter):
    """Notes where a step that runs alone makes what the user's own run made."""

    def __init__(
        self, graph: PlacedGraph, sites: GradientSites, steps: InterpretedSteps, wanted: Collection[str]
    ) -> None:
        super().__init__(graph, sites)
        self._steps, self._wanted, self._compare = steps, wanted, NodeComparer(rereads=True)
        self.names: set[str] = set()

    def on_value(self, name: str, value: Any) -> Any:
        """Compare it; the graph goes on with what the user's own run had."""
        for reference, candidate in self._steps.pairs(name, value) if name in self._wanted else ():
            comparison = self._compare(reference, candidate)
            if comparison is not None and comparison.agrees:
                self.names.add(name)
        other = substitute(self._steps.other_side(name), value)
        return value if other is None else other
