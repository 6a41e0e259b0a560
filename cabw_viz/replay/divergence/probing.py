"""An interpreter that reports values at the sites of gradients and can replace them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.divergence import Difference
from cabw_viz.replay.divergence.gradient_sites import GradientSites, call_input_name
from cabw_viz.replay.divergence.node_comparison import NodeComparison
from cabw_viz.replay.interpreter import GradientCollector
from cabw_viz.replay.placement.device_dtype_map import is_out_of_memory
from cabw_viz.replay.placement.placed_graph import PlacedGraph


class _ComparisonError(Exception):
    """A gradient could not be read or compared; the graph itself could run."""


class StoppedError(CabwError):
    """What stopped a replay, and at which graph node."""

    def __init__(self, error: CabwError, node: torch.fx.Node | None, reason: str) -> None:
        super().__init__(error.seen, expected=error.expected, try_=error.try_)
        self.node, self.reason = node, reason

    def rejected(self) -> dict[str, NodeComparison]:
        """The gradients that the stop is about: those of another shape than their autograd node may make."""
        if self.node is None or not torch_adapter.is_validate_outputs(self.node.target):
            return {}
        difference = Difference("metadata", note=self.reason)
        return {user.name: NodeComparison(difference, (True, True), (None, None)) for user in self.node.users}


class ProbingInterpreter(GradientCollector):
    """Interprets a captured graph and reports the gradient at each site.

    run_node
    ├─ read_at_call   before an autograd node is called: what it takes, where that may have been written to
    ├─ GradientCollector   as in a replay
    └─ on_value       for subclasses: takes the value at a site; the graph goes on with what it returns
    """

    def __init__(self, graph: PlacedGraph, sites: GradientSites) -> None:
        super().__init__(graph)
        self.sites = sites
        self._call_inputs = sites.call_inputs if sites.has_writes else {}
        self._nodes = {node.name: node for node in graph.module.graph.nodes} if self._call_inputs else {}

    def on_value(self, name: str, value: Any) -> Any:
        """Take the value at a site.

        Returns:
            What the graph goes on with.
        """
        raise NotImplementedError

    def failure(self, error: Exception) -> CabwError:
        """What to raise for an error of the run: one that knows its graph node."""
        if isinstance(error, _ComparisonError):
            cause = error.__cause__
            return CabwError(
                f"the gradient at {self.location()} could not be compared: {type(cause).__name__}: {cause}",
                expected="gradients that can be copied and compared",
                try_="cap.parity(), which compares the gradients of the leaves alone",
            )
        return StoppedError(super().failure(error), self.current, str(error))

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one graph node."""
        value = self._read_at_call(n) if n.name in self._call_inputs else super().run_node(n)
        return self._probe(n.name, value) if n.name in self.sites.observed else value

    def _read_at_call(self, n: torch.fx.Node) -> Any:
        """Run the call of an autograd node on what its inputs are at that moment, or on what replaces them."""
        before: dict[torch.fx.Node, Any] = {}
        for number, position, name in self._call_inputs[n.name]:
            node = self._nodes[name]
            value = before.setdefault(node, self.env[node])
            self.env[node] = self._probe(call_input_name(number, position), value)
        result = super().run_node(n)
        self.env.update(before)  # for others that read it
        return result

    def _probe(self, name: str, value: Any) -> Any:
        mode = self.placed.mode
        with nullcontext() if mode is None else mode.paused():  # else comparisons would run in the target's dtype
            try:
                return self.on_value(name, value)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                raise _ComparisonError from error


def substitute(other: Any, value: Any) -> torch.Tensor | None:
    """The other side's gradient in the place of a value of this side; None where one of the two is no tensor.

    A copy, for hooks and custom Functions may write to what they take.
    """
    if value is None or not isinstance(other, torch.Tensor) or other.layout is not value.layout:
        return None
    return other.detach().to(value.device, value.dtype, copy=True)
