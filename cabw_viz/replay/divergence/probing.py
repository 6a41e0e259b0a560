"""Running a captured graph with an eye on what flows through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.fx

from cabw_viz.errors import CabwError
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.options import HookPolicy
from cabw_viz.replay.divergence.gradient_sites import moment
from cabw_viz.replay.runner import GradientCollector, said


class StoppedError(CabwError):
    """What stopped a replay."""

    def __init__(self, error: CabwError, node: torch.fx.Node | None, reason: str) -> None:
        super().__init__(error.seen, expected=error.expected, try_=error.try_)
        self.node, self.reason = node, reason


class Following(GradientCollector):
    """Interprets a captured graph and shows what it makes at some of its nodes; what it is told instead goes on."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        record: CaptureRecord,
        hooks: HookPolicy,
        *,
        places: frozenset[str],
        taken: Mapping[str, tuple[tuple[int, int, str], ...]],
        at: Callable[[str, Any], Any],
    ) -> None:
        super().__init__(graph, record, hooks)
        self._places, self._taken, self._at = places, taken, at
        self._nodes = {node.name: node for node in graph.graph.nodes} if taken else {}

    def failure(self, error: Exception) -> CabwError:
        """What to raise for an error of the run: one that knows its graph node."""
        return StoppedError(super().failure(error), self.current, said(error))

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one graph node."""
        value = self._called(n) if n.name in self._taken else super().run_node(n)
        return self._at(n.name, value) if n.name in self._places else value

    def _called(self, n: torch.fx.Node) -> Any:
        """Run the call of an autograd node on what is there at that moment, or on what it is told instead."""
        before: dict[torch.fx.Node, Any] = {}
        for number, position, name in self._taken[n.name]:
            node = self._nodes[name]
            value = before.setdefault(node, self.env[node])
            self.env[node] = self._at(moment(number, position), value)
        result = super().run_node(n)
        self.env.update(before)  # for others that read it
        return result


def with_places_out(graph: torch.fx.GraphModule, names: set[str]) -> tuple[torch.fx.GraphModule, list[str]]:
    """A copy of a graph that returns what it has at some nodes too, behind all else."""
    copy = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    wanted: dict[str, torch.fx.Node] = {}
    for node in graph.graph.nodes:
        if node.op == "output":
            returned = torch.fx.map_arg(node.args[0], known.__getitem__)
            made = copy.output([*returned, *wanted.values()])
        else:
            made = copy.node_copy(node, known.__getitem__)
            made.name = node.name
        known[node] = made
        if node.name in names:
            wanted[node.name] = made
    return torch.fx.GraphModule(graph, copy), list(wanted)
