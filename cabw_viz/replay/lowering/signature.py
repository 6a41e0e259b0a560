"""The inputs of a lowered graph: the lifted tensors and sizes of a capture, in one flat list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.model import AutogradNode, CaptureRecord, LiftedInput, LiftedUse
from cabw_viz.runtime.capture_state import Arguments

_DIMENSION = re.compile(r"\[\d+\]$|, dimension \d+$")
"""The dimension at the end of a size's meaning: `self_sym_sizes[0]`, `gradient 1, dimension 0`."""


@dataclass(frozen=True)
class Slot:
    """One input of a lowered graph."""

    name: str
    """`inputs_3`, `sizes_0`, `packed_1`."""
    label: str
    """Its shape and origin: `(7, 8), saved by AddmmBackward0 (#4)`; empty where neither is known."""
    value: Any
    """In the captured call: a tensor without history, or an int."""
    fixed: bool = False
    """Whether its sizes are the model's own: a parameter or a view of one; a size of a parameter's gradient."""
    place: tuple[Any, ...] = ()
    """For a size: its dimension and the shape that it belongs to, or the field of the node that it is."""


def flat_values(record: CaptureRecord, arguments: Arguments) -> list[Any]:
    """The values of the inputs: tensors, sizes, then tensors in the results of saved-tensor hooks that packed."""
    tensors = [_detached(record, row, arguments.inputs[row.index]) for row in _tensors(record, arguments)]
    return tensors + list(arguments.size_values) + [each.detach() for _, each in arguments.packed_tensors]


def slots(record: CaptureRecord, arguments: Arguments) -> list[Slot]:
    """The inputs with their names, labels and values."""
    values = flat_values(record, arguments)
    rows, sizes = _tensors(record, arguments), _sizes(record, arguments)
    inputs = []
    for row, value in zip(rows, values, strict=False):
        fixed = _is_parameter(arguments.inputs[row.index])
        inputs.append(Slot(f"inputs_{row.index}", _label(record, row), value, fixed))
    for index, value in enumerate(values[len(rows) : len(rows) + len(arguments.sizes)]):
        label, fixed, place = sizes.get(index, ("", False, ("size", index)))
        inputs.append(Slot(f"sizes_{index}", label, value, fixed, place))
    for index, value in enumerate(values[len(inputs) :]):
        inputs.append(Slot(f"packed_{index}", f"{tuple(value.shape)}, packed by a hook", value))
    return inputs


def _tensors(record: CaptureRecord, arguments: Arguments) -> list[LiftedInput]:
    """The lifted inputs that a graph computes with, without leaves and old gradients that are only accumulated."""
    return [
        row
        for row in record.inputs
        if isinstance(arguments.inputs[row.index], torch.Tensor) and not record.is_only_accumulated(row)
    ]


def _label(record: CaptureRecord, row: LiftedInput) -> str:
    return record.input_label(row).removeprefix(f"inputs[{row.index}] ")


def _sizes(record: CaptureRecord, arguments: Arguments) -> dict[int, tuple[str, bool, tuple[Any, ...]]]:
    """(label, fixed, place) of each lifted size; of a size that several nodes use, by the first."""
    parameters = _accumulated_parameters(record, arguments)
    described: dict[int, tuple[str, bool, tuple[Any, ...]]] = {}
    for node in record.autograd_nodes:
        shapes: dict[str, list[LiftedUse]] = {}
        for use in node.lifted:
            shapes.setdefault(_DIMENSION.sub("", use.meaning), []).append(use)
        for field, uses in shapes.items():
            values = tuple(use.value for use in uses)
            fixed = _goes_to(record, node, field, values) in parameters
            for dimension, use in enumerate(uses):
                shape = "stride" not in field and _DIMENSION.search(use.meaning) is not None
                place = (dimension, *values) if shape else (field, dimension, *values)
                described.setdefault(use.size, (f"{use.meaning} of {node.name} (#{node.number})", fixed, place))
    return described


def _accumulated_parameters(record: CaptureRecord, arguments: Arguments) -> set[int]:
    """Numbers of the nodes that accumulate into an nn.Parameter."""
    return {
        number
        for row in record.inputs
        if isinstance(arguments.inputs[row.index], torch.nn.Parameter)
        for user in record.graph_nodes[row.graph_node].users
        if record.graph_nodes[user].kind == "accumulate_grad"
        and (number := record.graph_nodes[user].autograd_node) is not None
    }


def _goes_to(record: CaptureRecord, node: AutogradNode, field: str, shape: tuple[int, ...]) -> int | None:
    """The accumulation that a gradient goes to, directly or with its dimensions in another order; None for others."""
    if not field.startswith("gradient "):
        return None
    output = int(field.removeprefix("gradient "))
    while True:
        edge = next((each for each in node.edges if each.output == output), None)
        target = None if edge is None else record.by_number.get(edge.target)
        if target is None:
            return None
        if target.leaf is not None:
            return target.number if sorted(record.leaves[target.leaf].shape) == sorted(shape) else None
        if not target.name.startswith(REORDERING):
            return None
        node, output = target, 0


REORDERING = ("TBackward", "TransposeBackward", "PermuteBackward")
"""Nodes whose forward op gives dimensions another order."""


def with_values(arguments: Arguments, inputs: Sequence[Slot], values: Sequence[Any]) -> Arguments:
    """The arguments of the captured graph, with other values in the slots."""
    by_name = dict(zip((slot.name for slot in inputs), values, strict=True))
    packed = iter([by_name[f"packed_{index}"] for index in range(len(arguments.packed_tensors))])
    return replace(
        arguments,
        inputs=[by_name.get(f"inputs_{index}", value) for index, value in enumerate(arguments.inputs)],
        sizes=[by_name[f"sizes_{index}"] for index in range(len(arguments.sizes))],
        packed_data=torch_adapter.tree_map_only(torch.Tensor, lambda _: next(packed), arguments.packed_data),
    )


def _detached(record: CaptureRecord, row: LiftedInput, tensor: torch.Tensor) -> torch.Tensor:
    try:
        return tensor.detach()
    except RuntimeError as error:
        raise CabwError(
            f"an input {_label(record, row)} cannot be used any more: {str(error).partition(' and ')[0]}",
            expected="tensors that outlive the call; those inside torch.func.vmap and grad do not",
        ) from error


def _is_parameter(tensor: torch.Tensor) -> bool:
    return any(isinstance(each, torch.nn.Parameter) for each in (tensor, torch_adapter.base_of(tensor)))
