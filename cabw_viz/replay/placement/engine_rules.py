"""What the engine does with gradients and a captured graph does not show: sums with a part missing, and copies.

Sources: `InputBuffer::accumulate` in torch/csrc/autograd/input_buffer.cpp, `AccumulateGrad::accumulateGrad` in
torch/csrc/autograd/functions/accumulate_grad.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.record.model import CaptureRecord, GraphNode
from cabw_viz.replay.placement.placed_graph import PlacedGraph

USERS_CODE = frozenset({"custom_function", "cpp_function", "copy_slices"})
"""Autograd nodes whose backward may be the user's own code. What a compiled region runs is known by its operators."""


def sum_of_gradients(first: Any, second: Any) -> Any:
    """The sum of two gradients that meet, as the engine makes it.

    A gradient that does not exist is left out, and a sparse one is added to the dense one: `torch.add(sparse, dense)`
    raises. The graph has `torch.add` for both, which compiled autograd runs as it is (torch 2.13).

    Returns:
        The sum; the other gradient itself where one is None; None where both are.
    """
    if first is None or second is None:
        return second if first is None else first
    if first.is_sparse and not second.is_sparse:
        return torch.add(second, first)
    return torch.add(first, second)


def copy_of_gradient(gradient: Any) -> Any:
    """A copy of a gradient; what is no tensor, such as the None in its place, as it is."""
    return gradient.clone() if isinstance(gradient, torch.Tensor) else gradient


def accumulations_to_copy(placed: PlacedGraph) -> frozenset[str]:
    """The names of the graph nodes that accumulate or retain a gradient to which a later node may write in place.

    The engine adds a gradient to `.grad`, or keeps a copy where something else refers to it too, so that a hook or a
    custom Function that writes to its own gradient changes no `.grad`. A replay that collects the gradient itself
    would return what it became. Built-in nodes write to no gradient that they are given.
    """
    last = max((row.ordinal for row in _writers(placed)), default=-1)
    nodes = zip(placed.module.graph.nodes, placed.record.graph_nodes[: last + 1], strict=False)
    keeping = (torch_adapter.call_accumulate_grad, torch_adapter.call_cpp_tensor_pre_hooks)
    return frozenset(row.name for node, row in nodes if node.target in keeping)


def _writers(placed: PlacedGraph) -> Iterator[GraphNode]:
    """The graph nodes that may write to a gradient in place."""
    for node, row in zip(placed.module.graph.nodes, placed.record.graph_nodes, strict=True):
        if row.kind == "hook":
            kind = torch_adapter.hook_type(node.target, node.kwargs)
            if placed.hooks != "drop" and kind not in (None, "post_acc_grad_hook"):
                yield row
        elif row.kind == "backward_call":
            if _runs_users_code(placed.record, row):
                yield row
        elif row.kind in ("aot_op", "other") and _may_write(node):
            yield row


def _runs_users_code(record: CaptureRecord, row: GraphNode) -> bool:
    node = record.by_number.get(row.autograd_node) if row.autograd_node is not None else None
    return node is None or node.kind in USERS_CODE


def _may_write(node: torch.fx.Node) -> bool:
    """Whether an operator writes to an argument, or may, for all that is known of it."""
    if torch_adapter.is_aten_call(node.target):
        return bool(torch_adapter.written_arguments(node.target))
    known = torch_adapter.is_arithmetic(node.target) or torch_adapter.is_aot_prologue(node.target)
    return node.op.startswith("call") and not known
