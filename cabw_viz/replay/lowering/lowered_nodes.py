"""The nodes of a lowered graph as plain data."""

from __future__ import annotations

import operator

import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.record.kinds import GraphKind
from cabw_viz.record.model import GraphNode
from cabw_viz.replay.lowering.lowered import META
from cabw_viz.runtime.fx_text import arguments_text


def lowered_nodes(graph: torch.fx.GraphModule) -> tuple[GraphNode, ...]:
    """One row for each node, in order."""
    ordinals = {node: ordinal for ordinal, node in enumerate(graph.graph.nodes)}
    names = {node: node.name for node in ordinals}
    return tuple(
        GraphNode(
            ordinal=ordinal,
            name=node.name,
            op=node.op,
            target=_target(node),
            arguments="" if node.op in ("placeholder", "get_attr") else arguments_text(node, names),
            kind=_kind(node),
            inputs=tuple(ordinals[each] for each in node.all_input_nodes),
            users=tuple(sorted(ordinals[each] for each in node.users)),
            autograd_node=node.meta.get(META, {}).get("autograd_node"),
        )
        for node, ordinal in ordinals.items()
    )


def _kind(node: torch.fx.Node) -> GraphKind:
    if node.op == "placeholder":
        return "placeholder"
    if node.op == "output":
        return "output"
    if node.target is operator.getitem:
        return "getitem"
    # Constants, and arithmetic of sizes, are no ops on tensors.
    return "aten_op" if node.op == "call_function" and not torch_adapter.is_size_arithmetic(node.target) else "other"


def _target(node: torch.fx.Node) -> str:
    if node.op != "call_function":
        return str(node.target)
    return str(node.target) if torch_adapter.is_operator(node.target) else str(getattr(node.target, "__name__", ""))
