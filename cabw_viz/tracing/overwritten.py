"""Inputs of a captured graph that the user's own run overwrites, and no version counts it.

They are copied before that run: else a replay would compute with what is left in them. Nothing more is kept for it,
since a capture would keep the tensors themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes


def donated_inputs(numbering: NumberedNodes, inputs: Sequence[Any]) -> frozenset[int]:
    """Indices of the inputs that lie in the memory of a tensor that was donated to a compiled region's backward."""
    with torch_adapter.below_modes_and_functions():
        storages = {
            identity
            for node in numbering.nodes
            if node is not ROOT
            for tensor in torch_adapter.donated_tensors(node)
            for identity, _ in torch_adapter.storages_of(tensor)
        }
        if not storages:
            return frozenset()
        return frozenset(
            index
            for index, tensor in enumerate(inputs)
            if any(identity in storages for identity, _ in torch_adapter.storages_of(tensor))
        )


def scratch_inputs(graph: torch.fx.Graph, inputs: Sequence[Any]) -> frozenset[int]:
    """Indices of the inputs that kernels of a graph use as workspaces: those in bytes among their arguments."""
    indices = (torch_adapter.input_index(node) for node in torch_adapter.scratch_arguments(graph))
    return frozenset(index for index in indices if index is not None and inputs[index].dtype is torch.uint8)
