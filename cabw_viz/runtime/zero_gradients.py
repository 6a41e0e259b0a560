"""Where a gradient became zero everywhere, or undefined: the first such node in the order of the backward.

From the leaf the gradients are followed against the way of the backward, as long as they are zero too. A step that is
reached so, and into which flows what is not zero, has made the zeros: an autograd node, a sum of gradients that cancel,
or a hook. Several ways may end so; named is the step that ran first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.record.kinds import MissingReason
from cabw_viz.record.missing import MissingGradient
from cabw_viz.record.model import AutogradNode, CaptureRecord, Edge, Leaf
from cabw_viz.record.wording import counted
from cabw_viz.runtime.capture_state import CaptureState
from cabw_viz.runtime.gradient_snapshots import Gradient, GradientSnapshot, NodeGradients
from cabw_viz.runtime.tensor_state import version_of

Snapshot = GradientSnapshot | None


@dataclass(frozen=True)
class _Step:
    """A step of the backward that makes gradients empty."""

    node: int
    maker: str
    """`node`, `sum`, or `hook`."""


class EmptyGradients:
    """Finds the leaves of a capture whose gradient is zero everywhere or undefined, and what made it so."""

    def __init__(self, record: CaptureRecord, state: CaptureState) -> None:
        self._record, self._state = record, state
        self._kept: NodeGradients | None = state.node_gradients
        self._zeros: dict[int, bool] = {}
        self._senders: dict[tuple[int, int], list[tuple[AutogradNode, Edge]]] = {}
        for node in record.autograd_nodes:
            for edge in node.edges:
                self._senders.setdefault((edge.target, edge.input), []).append((node, edge))

    def rows(self) -> list[MissingGradient]:
        """A row for each such leaf."""
        if not self._state.has_reference:
            return []
        rows = []
        for index, leaf in enumerate(self._record.leaves):
            gradient = self._state.reference.get(index)
            if leaf.autograd_node is None:
                continue
            is_watched = leaf.output is not None or self._record.autograd_nodes[leaf.autograd_node].leaf is not None
            if gradient is None and is_watched:
                rows.append(self._row(leaf, "undefined", lambda value: value is None))
            elif gradient is not None and self._is_zero(gradient):
                rows.append(self._row(leaf, "zero", self._is_zero))
        return rows

    def _row(self, leaf: Leaf, reason: MissingReason, is_empty: Callable[[Snapshot], bool]) -> MissingGradient:
        assert leaf.autograd_node is not None
        end = self._record.autograd_nodes[leaf.autograd_node]
        row = MissingGradient(leaf.names, reason, end.module, end.module_class)
        if self._kept is None or not self._kept.inputs:
            return row
        makers = sorted(self._makers(leaf.autograd_node, leaf.input, is_empty), key=lambda step: step.node)
        if not makers:
            return row
        first, *others = makers
        node = self._record.autograd_nodes[first.node]
        more = f"{counted(len(others), 'other step')} of the backward do so on other ways to it" if others else ""
        facts = "; ".join(filter(None, [self._cause(node) if first.maker == "node" else "", more]))
        return MissingGradient(
            leaf.names, reason, end.module, end.module_class, line=node.line, operator=node.name,
            autograd_node=node.number, maker=first.maker, made_in=node.module, facts=facts,
        )  # fmt: skip

    # -- the way back from the leaf ----------------------------------------------------------------------------------

    def _makers(self, number: int, position: int, is_empty: Callable[[Snapshot], bool]) -> set[_Step]:
        """The steps that make an input gradient empty of what is not."""
        makers: set[_Step] = set()
        todo, visited = [(number, position)], {(number, position)}
        while todo:
            target, at = todo.pop()
            senders = self._senders.get((target, at), [])
            sent = [(node, edge, self._output(node, edge)) for node, edge in senders]
            if any(is_known and not is_empty(value) for _, _, (is_known, value) in sent):
                makers.add(_Step(target, "hook" if self._has_hook(target) else "sum"))
                continue
            for node, _, _ in sent:
                if node.kind == "graph_root":
                    makers.add(_Step(node.number, "node"))
                elif self._makes_empty(node, is_empty):
                    makers.add(_Step(node.number, "hook" if self._is_by_post_hook(node, is_empty) else "node"))
                else:
                    following = {(node.number, each) for each in range(node.inputs)} - visited
                    visited |= following
                    todo += following
        return makers

    def _output(self, node: AutogradNode, edge: Edge) -> tuple[bool, Snapshot]:
        """Whether a gradient that flows out of a node is known, and what it is."""
        assert self._kept is not None
        outputs = self._kept.outputs.get(node.number)
        return (False, None) if outputs is None or edge.output >= len(outputs) else (True, outputs[edge.output])

    def _makes_empty(self, node: AutogradNode, is_empty: Callable[[Snapshot], bool]) -> bool:
        assert self._kept is not None
        return any(value is not None and not is_empty(value) for value in self._kept.inputs.get(node.number, ()))

    def _is_by_post_hook(self, node: AutogradNode, is_empty: Callable[[Snapshot], bool]) -> bool:
        assert self._kept is not None
        before = self._kept.outputs_before_hooks.get(node.number, ())
        return bool(before) and any(value is not None and not is_empty(value) for value in before)

    def _has_hook(self, number: int) -> bool:
        return any(hook.kind.endswith("pre_hook") for hook in self._record.autograd_nodes[number].hooks)

    def _is_zero(self, snapshot: Snapshot) -> bool:
        if snapshot is None:
            return True
        key = id(snapshot)
        if key not in self._zeros:
            self._zeros[key] = _is_zero_everywhere(snapshot)
        return self._zeros[key]

    # -- why ---------------------------------------------------------------------------------------------------------

    def _cause(self, node: AutogradNode) -> str:
        """What a node has saved that makes zeros, in words; empty where nothing is seen."""
        zeros = [saved for saved in node.saved if saved.input is not None and self._is_saved_zero(saved.input)]
        names = [f"`{saved.field}`{_named(saved.names or saved.view_of)}" for saved in zeros]
        if names and node.name.startswith(_RECTIFIERS):
            return "it is dead: no element of its output is above 0"
        if names:
            return f"what it has saved as {' and '.join(names)} is zero everywhere"
        factors = [baked for baked in node.baked if baked.attribute == "scalar" and _is_number_zero(baked.value)]
        return f"its {factors[0].meaning} is 0" if factors and node.name.startswith(("Mul", "Div")) else ""

    def _is_saved_zero(self, index: int) -> bool:
        arguments = self._state.arguments
        if arguments is None or index >= len(arguments.inputs):
            return False
        tensor = arguments.inputs[index]
        return version_of(tensor) == arguments.versions[index] and _is_tensor_zero(tensor)


_RECTIFIERS = ("ReluBackward", "ThresholdBackward")


def _named(names: Sequence[str]) -> str:
    return f" ({' = '.join(names)})" if names else ""


def _is_number_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False


def _is_zero_everywhere(snapshot: GradientSnapshot) -> bool:
    if not isinstance(snapshot, Gradient):
        return snapshot.low == 0 and snapshot.high == 0 and not snapshot.nans
    return _is_tensor_zero(snapshot.value)


def _is_tensor_zero(tensor: Any) -> bool:
    """Whether a tensor has elements, and all are zero; False where that cannot be read."""
    try:
        with torch_adapter.unseen_operators(), torch_adapter.without_any_torch_function(), torch.no_grad():
            if tensor.layout is not torch.strided:
                tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
            return tensor.numel() > 0 and not bool(tensor.any())
    except (RuntimeError, NotImplementedError, TypeError):
        return False


def cleared_rows(record: CaptureRecord, state: CaptureState) -> list[MissingGradient]:
    """The leaves that got a gradient, and whose `.grad` is None now."""
    rows = []
    for index, (leaf, reference) in enumerate(zip(record.leaves, state.leaf_tensors, strict=False)):
        tensor = None if reference is None else reference()
        if tensor is None or index not in state.reference:
            continue
        with torch_adapter.without_any_torch_function():
            is_cleared = tensor.is_leaf and tensor.grad is None
        if is_cleared:
            node = record.autograd_nodes[leaf.autograd_node or 0]
            rows.append(MissingGradient(leaf.names, "set_to_none", node.module, node.module_class))
    return rows
