"""The tensors whose gradients a backward call computes."""

from __future__ import annotations

import torch

from cabw_viz import torch_adapter
from cabw_viz.record.model import Leaf
from cabw_viz.torch_adapter import EngineCall
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_numbering import NumberedNodes


def leaves_of(call: EngineCall, numbering: NumberedNodes, names: Names) -> tuple[Leaf, ...]:
    """The leaves of a call: those it accumulates into by NodeCall number, or those of `autograd.grad` in its order."""
    if not call.accumulates:
        return tuple(_target_leaf(target, i, numbering, names, output=i) for i, target in enumerate(call.inputs))
    accumulated = tuple(
        Leaf(names.leaf_names(node.variable), torch_adapter.shape_of(node.variable), str(node.variable.dtype), number)
        for number, node in enumerate(numbering.nodes)
        if hasattr(node, "variable")
    )
    numbers = {leaf.autograd_node for leaf in accumulated}
    targets = (_target_leaf(target, i, numbering, names, output=None) for i, target in enumerate(call.inputs))
    return accumulated + tuple(leaf for leaf in targets if leaf.autograd_node not in numbers)


def _target_leaf(target: object, position: int, numbering: NumberedNodes, names: Names, *, output: int | None) -> Leaf:
    """A tensor or GradientEdge of `inputs=`."""
    node, nr = torch_adapter.gradient_edge(target)
    shape, dtype = torch_adapter.input_metadata(node, nr)
    if hasattr(node, "variable"):
        leaf_names = names.leaf_names(node.variable)
    elif isinstance(target, torch.Tensor) and names.subject_names(target):
        leaf_names = names.subject_names(target)
    else:
        leaf_names = (f"input_{position} {shape}",)
    return Leaf(leaf_names, shape, dtype, numbering.number_of(node), nr, output)


def variables_of(leaves: tuple[Leaf, ...], numbering: NumberedNodes) -> list[torch.Tensor | None]:
    """The leaf tensors whose `.grad` the call accumulates into; None for the others."""
    variables: list[torch.Tensor | None] = []
    for leaf in leaves:
        node = numbering.nodes[leaf.autograd_node] if leaf.autograd_node and leaf.output is None else None
        variables.append(getattr(node, "variable", None))
    return variables
