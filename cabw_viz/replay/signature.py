"""What a lowered graph takes: the lifted tensors and sizes of a capture, flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.live import Arguments
from cabw_viz.record.model import CaptureRecord
from cabw_viz.replay.runner import input_label


@dataclass(frozen=True)
class Slot:
    """One input of a lowered graph."""

    name: str
    """`inputs_3`, `sizes_0`, `packed_1`."""
    label: str
    """More about it: `(7, 8), saved by AddmmBackward0 (#4)`; empty where there is nothing to say."""
    value: Any
    """In the captured call: a tensor without history, or an int."""
    fixed: bool = False
    """Whether its sizes are the model's own: a parameter, or a view of one."""


def slots(record: CaptureRecord, arguments: Arguments) -> list[Slot]:
    """The inputs of the lowered graph: tensors, sizes, then tensors among what saved-tensor hooks packed.

    Leaves and old gradients that are only accumulated into are left out: nothing computes with them.
    """
    found = []
    for row in record.inputs:
        tensor = arguments.inputs[row.index]
        if isinstance(tensor, torch.Tensor) and not _only_accumulated(record, row.graph_node):
            label = input_label(record, row)
            label = label.removeprefix(f"inputs[{row.index}] ")
            found.append(Slot(f"inputs_{row.index}", label, tensor.detach(), _is_parameter(tensor)))
    meanings = {
        use.size: f"{use.meaning} of {node.name} (#{node.number})"
        for node in reversed(record.autograd_nodes)
        for use in node.lifted
    }
    for index, size in enumerate(arguments.sizes):
        found.append(Slot(f"sizes_{index}", meanings.get(index, ""), size_of(size)))
    for index, tensor in enumerate(packed_tensors(arguments)):
        found.append(Slot(f"packed_{index}", f"{tuple(tensor.shape)}, packed by a hook", tensor.detach()))
    return found


def put_back(arguments: Arguments, given: Sequence[Slot], values: Sequence[Any]) -> Arguments:
    """The arguments of the captured graph, with other values in the slots."""
    by_name = dict(zip((slot.name for slot in given), values, strict=True))
    packed = iter([by_name[f"packed_{index}"] for index in range(len(packed_tensors(arguments)))])
    return replace(
        arguments,
        inputs=[by_name.get(f"inputs_{index}", value) for index, value in enumerate(arguments.inputs)],
        sizes=[by_name[f"sizes_{index}"] for index in range(len(arguments.sizes))],
        packed_data=torch_adapter.tree_map_only(torch.Tensor, lambda _: next(packed), arguments.packed_data),
    )


def size_of(size: Any) -> int:
    """Sizes travel as `torch.empty(0, n)`; those not above 0 as they are."""
    return int(size.shape[1]) if isinstance(size, torch.Tensor) else int(size)


def packed_tensors(arguments: Arguments) -> list[torch.Tensor]:
    """The tensors in what saved-tensor hooks packed."""
    return [leaf for leaf in torch_adapter.tree_leaves(arguments.packed_data) if isinstance(leaf, torch.Tensor)]


def _only_accumulated(record: CaptureRecord, graph_node: int) -> bool:
    users = record.graph_nodes[graph_node].users
    return all(record.graph_nodes[user].kind == "accumulate_grad" for user in users)


def _is_parameter(tensor: torch.Tensor) -> bool:
    return any(isinstance(each, torch.nn.Parameter) for each in (tensor, torch_adapter.base_of(tensor)))
