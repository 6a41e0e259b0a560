"""The steps of a compiled graph, none of which can run alone: each runs in eager, on the compiled graph's gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch.fx

from cabw_viz.errors import CabwError
from cabw_viz.replay.divergence.gradient_sites import GradientSites
from cabw_viz.replay.divergence.node_comparison import NodeComparer, NodeComparison
from cabw_viz.replay.placement.compiled import IS_ADDED, run_compiled
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
        accumulations = {step.outputs[0]: step.number for step in self._sites.steps if step.kind == "accumulate_grad"}
        module, names = with_values_as_outputs(
            self.graph.module, self._sites.observed - accumulations.keys(), self._sites.reads_at_call
        )
        run = run_compiled(replace(self.graph, module=module), self._replay.target)
        self._compiled = dict(zip(names, run.returned[len(run.returned) - len(names) :], strict=True))
        self._compiled |= {name: run.collected.get(number) for name, number in accumulations.items()}
        comparisons = {}
        for name, value in self._compiled.items():
            snapshots = self._sites.snapshots(name)
            comparison = self._compare(snapshots[0], value) if snapshots else None
            if comparison is not None:
                comparisons[name] = comparison
        return comparisons, None

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


def with_values_as_outputs(
    graph: torch.fx.GraphModule,
    names: Collection[str],
    reads_at_call: Mapping[str, Sequence[tuple[str, str]]] = MappingProxyType({}),
) -> tuple[torch.fx.GraphModule, list[str]]:
    """A copy of a graph that returns the values of some nodes too, behind all else.

    Args:
        graph: the graph.
        names: the nodes.
        reads_at_call: where code of the user's runs, which may write to gradients in place: for each node that calls an
            autograd node, (name of the site, graph node) of each gradient that it takes. The copy then returns copies
            of the values, those of the nodes made behind them, and those of these sites made right before the call.

    Returns:
        The copy, and the names of nodes and sites in the order of the added outputs.
    """
    copy = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    by_name: dict[str, torch.fx.Node] = {}
    outputs: dict[str, torch.fx.Node] = {}
    for node in graph.graph.nodes:
        for site, taken in reads_at_call.get(node.name, ()):
            outputs[site] = _with_copy(by_name[taken])
        if node.op == "output":
            returned = torch.fx.map_arg(node.args[0], copies.__getitem__)
            copied = copy.output([*returned, *outputs.values()])
        else:
            copied = copy.node_copy(node, copies.__getitem__)
            copied.name = node.name
        copies[node] = by_name[node.name] = copied
        if node.name in names:
            outputs[node.name] = _with_copy(copied) if reads_at_call else copied
    return torch.fx.GraphModule(graph, copy), list(outputs)


def _with_copy(node: torch.fx.Node) -> torch.fx.Node:
    """A node at the end of a graph that copies the value of this one."""
    copied = node.graph.call_function(_copy_of, (node,))
    copied.meta[IS_ADDED] = True
    return copied


def _copy_of(value: Any) -> Any:
    """A copy of a tensor, as it is at this point of the graph; anything else as it is."""
    return value.clone() if isinstance(value, torch.Tensor) else value
