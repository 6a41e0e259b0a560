"""Interprets a captured graph on stand-ins while PyTorch's tracer records each operator."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.model import AutogradNode, CaptureRecord
from cabw_viz.replay.interpreter import GradientCollector, leaf_gradients
from cabw_viz.replay.lowering.assembling import KEPT
from cabw_viz.replay.lowering.lowered import META
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.runtime.capture_state import Arguments


class Tracing(GradientCollector):
    """Interprets a captured graph on stand-ins.

    run_node   the ops that the tracer recorded meanwhile get the autograd node, module and line in their `meta`
    ├─ GradientCollector   as in a replay
    └─ with_concrete_sizes  a node that takes numbers alone gets them, with guards
    """

    def __init__(self, graph: PlacedGraph, *, symbolic: bool) -> None:
        super().__init__(graph)
        self._symbolic = symbolic
        self.done = False
        """Whether the trace is at its end, so that no node is the one that an error is about."""
        self._metas: dict[int | None, dict[str, Any]] = {}

    def gradients(self, arguments: Arguments) -> dict[int, Any]:
        """Gradients by index of the leaf."""
        returned = self.run(*replace(self.placed, arguments=arguments).call_args)
        return leaf_gradients(self.record, self.collected, returned)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one node of the captured graph."""
        last = _last_recorded()
        result = super().run_node(n)
        row = self.rows[n.name]
        if row.autograd_node is not None:
            for node in _recorded_since(last):
                node.meta.update(self._meta(row.autograd_node))
                node.meta[META] = {**node.meta[META], "graph_node": row.ordinal}
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call."""
        if not self._symbolic or not self.node_of_pytorchs():
            return super().call_function(target, args, kwargs)
        last = _last_recorded()
        try:
            return super().call_function(target, args, kwargs)
        except Exception as failure:
            if isinstance(failure, FINAL):
                raise
            for node in _recorded_since(last):
                if not node.users:
                    node.graph.erase_node(node)
            try:
                return super().call_function(target, *torch_adapter.with_concrete_sizes((args, kwargs)))
            except RuntimeError:
                raise failure from None

    def location(self) -> str:
        """The autograd node and the graph node at which the trace is."""
        return "the traced graph" if self.done else super().location()

    def node_of_pytorchs(self) -> str:
        """The name of the autograd node whose call runs, if it is PyTorch's own and has no effect but its results."""
        row = self.rows[self.current.name] if self.current is not None else None
        if self.done or row is None or row.kind != "backward_call" or row.autograd_node is None:
            return ""
        node = self.record.by_number[row.autograd_node]
        return node.name if node.kind == "builtin" else ""

    def _kept(self, gradient: Any) -> Any:
        kept = super()._kept(gradient)
        if kept is not gradient:
            copy = _last_recorded()
            if copy is not None and copy.target is torch.ops.aten.clone.default:
                copy.meta[KEPT] = True
        return kept

    def _meta(self, number: int) -> dict[str, Any]:
        if number not in self._metas:
            self._metas[number] = _meta(self.record, self.record.by_number[number])
        return self._metas[number]


FINAL: tuple[type[Exception], ...] = (CabwError, *torch_adapter.UNTRACEABLE, *torch_adapter.NO_FAKE_KERNEL)
"""What a node raises for reasons that have nothing to do with symbolic sizes."""


def _last_recorded() -> torch.fx.Node | None:
    return next(iter(reversed(torch_adapter.active_fx_tracer().graph.nodes)), None)


def _recorded_since(last: torch.fx.Node | None) -> list[torch.fx.Node]:
    """The nodes that PyTorch's tracer has recorded after another, the latest first."""
    nodes = reversed(torch_adapter.active_fx_tracer().graph.nodes)
    return list(itertools.takewhile(lambda node: node is not last, nodes))


def _meta(record: CaptureRecord, node: AutogradNode) -> dict[str, Any]:
    """The `meta` of the ops of an autograd node."""
    call = f"{node.name} (NodeCall {node.number})"
    where = ""
    if node.line is not None:
        where = f'  File "{node.line.file}", line {node.line.line}, in forward\n    {node.line.text}\n'
    meta: dict[str, Any] = {
        META: {
            "autograd_node": node.number,
            "name": record.label(node),
            "module": node.module,
            "module_class": node.module_class,
            "visit": node.visit,
            "line": str(node.line) if node.line is not None else "",
        },
        "stack_trace": f"{where}{call}",
    }
    if node.module_class:
        meta["nn_module_stack"] = {node.module: (node.module, node.module_class)}
    return meta
