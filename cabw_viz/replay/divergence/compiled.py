"""The steps of a compiled graph, none of which can run alone: each runs in eager, on the compiled graph's gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from cabw_viz.errors import CabwError
from cabw_viz.replay.divergence.gradient_sites import GradientSites
from cabw_viz.replay.divergence.node_comparison import NodeComparer, NodeComparison
from cabw_viz.replay.placement.compiled import Observation, run_compiled
from cabw_viz.replay.replay import Replay
from cabw_viz.runtime.gradient_snapshots import Gradient, GradientSnapshot


class CompiledSteps:
    """Both sides of each step: the graph as it is interpreted, and as it is compiled.

    observe      the compiled graph runs once and returns the gradient at each site, to be compared with that of the
                 user's own run
    other_side   a step that runs alone, in eager, takes the gradients of the compiled graph
    pairs        what it makes of them is compared with what the compiled graph made
    """

    def __init__(self, replay: Replay, sites: GradientSites, comparer: NodeComparer) -> None:
        self._replay, self._sites, self._compare = replay, sites, comparer
        self.graph = replay.graph
        self._compiled: dict[str, Any] = {}
        """What the compiled graph had at each site."""

    def observe(self) -> tuple[dict[str, NodeComparison], CabwError | None]:
        """The gradient at each site against that of the user's own run."""
        self._compiled = self._run()
        comparisons = {}
        for name, value in self._compiled.items():
            snapshots = self._sites.snapshots(name)
            comparison = self._compare(snapshots[0], value) if snapshots else None
            if comparison is not None:
                comparisons[name] = comparison
        return comparisons, None

    def again(self, _observed: Mapping[str, NodeComparison]) -> dict[str, NodeComparison]:
        """Run the whole graph once more: the gradient at each site against that of the run that was observed."""
        compare = replace(self._compare, across=False, rereads=True)
        comparisons = {}
        for name, value in self._run().items():
            earlier = self._compiled.get(name)
            comparison = compare(None if earlier is None else Gradient(earlier, None), value)
            if comparison is not None:
                comparisons[name] = comparison
        return comparisons

    def _run(self) -> dict[str, Any]:
        """The gradient at each site in one run."""
        accumulations = {step.outputs[0]: step.number for step in self._sites.steps if step.kind == "accumulate_grad"}
        observation = Observation(self._sites.observed - accumulations.keys(), self._sites.reads_at_call)
        run = run_compiled(self.graph, self._replay.target, observation)
        return run.values | {name: run.collected.get(number) for name, number in accumulations.items()}

    def other_side(self, name: str) -> Any:
        """The gradient at a site with which a step that runs alone begins; None where it is not known."""
        return self._compiled.get(name)

    def pairs(self, name: str, value: Any) -> list[tuple[GradientSnapshot | None, Any]]:
        """Reference and candidate at a site, of which the value was made by a step that ran alone."""
        return [(None if value is None else Gradient(value, None), self._compiled.get(name))]

    @staticmethod
    def reproduced(names: Collection[str]) -> frozenset[str]:
        """All sites: a compiler's fault is in its own code alone, not in a float64 run of the graph."""
        return frozenset(names)
