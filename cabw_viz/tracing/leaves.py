"""Whose gradients a backward call computes."""

from __future__ import annotations

import torch

from cabw_viz import torch_adapter
from cabw_viz.record.model import Leaf
from cabw_viz.torch_adapter import EngineCall
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_numbering import NumberedNodes


def leaves_of(call: EngineCall, walk: NumberedNodes, names: Names) -> tuple[Leaf, ...]:
    """The leaves of a call: accumulated ones by NodeCall number, those of `torch.autograd.grad` as it returns them."""
    if not call.accumulates:
        return tuple(_wanted(target, i, walk, names, output=i) for i, target in enumerate(call.inputs))
    accumulated = tuple(
        Leaf(names.leaf_names(node.variable), tuple(node.variable.shape), str(node.variable.dtype), number)
        for number, node in enumerate(walk.nodes)
        if hasattr(node, "variable")
    )
    covered = {leaf.autograd_node for leaf in accumulated}
    more = (_wanted(target, i, walk, names, output=None) for i, target in enumerate(call.inputs))
    return accumulated + tuple(leaf for leaf in more if leaf.autograd_node not in covered)


def _wanted(target: object, position: int, walk: NumberedNodes, names: Names, *, output: int | None) -> Leaf:
    """A tensor or GradientEdge that the user asked the gradient of."""
    node, nr = torch_adapter.gradient_edge(target)
    shape, dtype = torch_adapter.input_metadata(node, nr)
    if hasattr(node, "variable"):
        given = names.leaf_names(node.variable)
    elif isinstance(target, torch.Tensor) and names.subject_names(target):
        given = names.subject_names(target)
    else:
        given = (f"input_{position} {shape}",)
    return Leaf(given, shape, dtype, walk.number_of(node), nr, output)


def variables_of(leaves: tuple[Leaf, ...], walk: NumberedNodes) -> list[torch.Tensor | None]:
    """The leaf tensors whose `.grad` the call accumulates into; None for the others."""
    found: list[torch.Tensor | None] = []
    for leaf in leaves:
        node = walk.nodes[leaf.autograd_node] if leaf.autograd_node and leaf.output is None else None
        found.append(getattr(node, "variable", None))
    return found
