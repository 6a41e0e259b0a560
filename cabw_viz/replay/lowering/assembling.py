"""Assembles the graph of a lowered backward from the traced one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.replay.lowering.lowered import META, Constant
from cabw_viz.replay.lowering.signature import Slot

KEPT = "cabw_kept"
"""Key in the `meta` of the copy of a gradient that an accumulation keeps."""


class GraphAssembler:
    """Copies a traced graph: plain names, no dead ops, copies of inputs that are written to.

    Copies of accumulated gradients stay only where a later op writes to a tensor.

    Args:
        traced: the graph of PyTorch's tracer; each op's `meta` names its autograd node.
        names: the names of its placeholders.
        inputs: all inputs, also those that are numbers in the trace.

    Raises:
        CabwError: it calls a function that is no op of the dispatcher, or writes to a tensor that is none of its own.
    """

    def __init__(self, traced: torch.fx.GraphModule, names: Sequence[str], inputs: Sequence[Slot]) -> None:
        self._traced = traced
        self.graph = torch.fx.Graph()
        self._copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self._check_ops()
        self._add_inputs(inputs, dict(zip(names, traced.graph.find_nodes(op="placeholder"), strict=True)))
        self._add_body()
        self.graph.eliminate_dead_code()
        self._add_owners()

    def _add_owners(self) -> None:
        """Copies of inputs that a kernel uses as its workspace belong to the autograd node that takes them."""
        for node in reversed(self.graph.nodes):
            if node.op == "call_function" and META not in node.meta and torch_adapter.is_aten_call(node.target):
                owner = next((user.meta[META] for user in node.users if META in user.meta), None)
                if owner is not None:
                    node.meta[META] = owner

    def constants(self) -> tuple[Constant, ...]:
        """The tensors that the graph holds."""
        constants: dict[str, Constant] = {}
        for node in self.graph.find_nodes(op="get_attr"):
            value = getattr(self._traced, str(node.target))
            user = next(iter(node.users), node)
            constants.setdefault(
                str(node.target),
                Constant(
                    str(node.target),
                    tuple(value.shape),
                    str(value.dtype),
                    self._label(user),
                    isinstance(value, torch.nn.Parameter),
                    torch_adapter.is_literal(node),
                ),
            )
        return tuple(constants.values())

    def _label(self, node: torch.fx.Node) -> str:
        meta = node.meta.get(META)
        return "the graph" if meta is None else f"{meta['name']} (#{meta['autograd_node']})"

    def _check_ops(self) -> None:
        """Refuse functions that are no ops of the dispatcher."""
        for node in self._traced.graph.nodes:
            if node.op == "get_attr":
                self._check_constant(node)
            if node.op in ("placeholder", "output", "get_attr") or node.target is operator.getitem:
                continue
            if torch_adapter.is_aten_call(node.target) or torch_adapter.is_size_arithmetic(node.target):
                continue
            raise CabwError(
                f"this backward cannot be lowered: {self._label(node)} calls {node.target}, which is no aten op",
                expected="ops of the dispatcher; a higher-order op has graphs of its own inside",
                try_="cap.replay(), which runs it as it is",
            )

    def _check_constant(self, node: torch.fx.Node) -> None:
        """Refuse an object of C++ that an op takes, as collectives take a process group."""
        value = operator.attrgetter(str(node.target))(self._traced)
        if isinstance(value, torch.Tensor | torch.nn.Module):  # a module is the inside of a higher-order op
            return
        user = next(iter(node.users), node)
        raise CabwError(
            f"this backward cannot be lowered: {self._label(user)} calls {user.target} with "
            f"{torch_adapter.class_of_constant(value)}, which is no tensor and exists in this process alone",
            expected="ops of tensors and numbers",
            try_="cap.replay(), which runs it as it is",
        )

    def _add_inputs(self, inputs: Sequence[Slot], placeholders: dict[str, torch.fx.Node]) -> None:
        written = self._written_inputs()
        for slot in inputs:
            node = self.graph.placeholder(slot.name)
            old = placeholders.get(slot.name)
            if old is None:
                node.meta["val"] = slot.value
                continue
            node.meta.update({key: value for key, value in old.meta.items() if key in ("val", "tensor_meta")})
            self._copies[old] = node
        for old, writer in written.items():
            copy = self.graph.call_function(torch.ops.aten.clone.default, (self._copies[old],))
            copy.meta.update({key: value for key, value in writer.meta.items() if key != "tensor_meta"})
            copy.meta["val"] = old.meta.get("val")
            self._copies[old] = copy

    def _written_inputs(self) -> dict[torch.fx.Node, torch.fx.Node]:
        """Inputs that the backward writes to, and the first node that does.

        Raises:
            CabwError: it writes to a tensor that is no input and no result of its own.
        """
        writers: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self._traced.graph.nodes:
            for place, name in torch_adapter.written_arguments(node.target):
                target = node.args[place] if place < len(node.args) else node.kwargs.get(name)
                for each in target if isinstance(target, list | tuple) else (target,):
                    root = _root(each)
                    if root is not None and root.op == "placeholder":
                        writers.setdefault(root, node)
                    elif root is not None and root.op == "get_attr" and not torch_adapter.is_literal(root):
                        raise CabwError(
                            f"this backward cannot be lowered: {self._label(node)} writes to a tensor that is none of "
                            f"its inputs ({node.target}): a side effect, which each run of the graph would repeat",
                            expected="hooks and Functions that return what they compute",
                            try_='hooks="drop" where it is a hook',
                        )
        return writers

    def _add_body(self) -> None:
        writers = (i for i, node in enumerate(self._traced.graph.nodes) if torch_adapter.written_arguments(node.target))
        last_writer = max(writers, default=-1)
        for place, node in enumerate(self._traced.graph.nodes):
            if node.op == "placeholder":
                continue
            if node.meta.pop(KEPT, False) and place > last_writer:
                self._copies[node] = self._copies[node.args[0]]
                continue
            if node.op == "output":
                results = [self._copies[each] for each in node.args[0]]
                self.graph.output(results)
                continue
            self._copies[node] = self.graph.node_copy(node, self._copies.__getitem__)


def _root(value: Any) -> torch.fx.Node | None:
    """The input, constant or op that a tensor is a view of, or is itself."""
    node = value if isinstance(value, torch.fx.Node) else None
    while node is not None:
        before = torch_adapter.viewed_argument(node) if node.op == "call_function" else None
        if before is None:
            return node
        node = before
    return None
