"""Operators of the dispatcher: their schemas, and the queries by which C++ asks Python for metadata."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

aten, prim = torch.ops.aten, torch.ops.prim


def is_operator(target: Any) -> bool:
    """Whether a graph node's target is an operator of the dispatcher (`aten.mm.default`)."""
    return isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket)


def argument_names(target: Any) -> tuple[str, ...]:
    """Names of an operator's arguments, by its schema; empty for other targets."""
    return tuple(argument.name for argument in target._schema.arguments) if hasattr(target, "_schema") else ()


def operands(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """An operator's arguments by their names; omitted ones have their defaults."""
    known = operator._schema.arguments
    named = {argument.name: argument.default_value for argument in known if argument.has_default_value()}
    return named | dict(zip((argument.name for argument in known), args, strict=False)) | dict(kwargs)


def returns_new_tensors(operator: Any) -> bool:
    """Whether an operator's results are none of its arguments nor views of them, as far as its schema says."""
    return hasattr(operator, "_schema") and all(result.alias_info is None for result in operator._schema.returns)


QUERIES: dict[Any, tuple[str, Callable[..., Any]]] = {
    aten.size.default: ("size", torch.Tensor.size),
    aten.sym_size.default: ("size", torch.Tensor.size),
    aten.size.int: ("size", torch.Tensor.size),
    aten.sym_size.int: ("size", torch.Tensor.size),
    aten.stride.default: ("stride", torch.Tensor.stride),
    aten.sym_stride.default: ("stride", torch.Tensor.stride),
    aten.stride.int: ("stride", torch.Tensor.stride),
    aten.sym_stride.int: ("stride", torch.Tensor.stride),
    aten.storage_offset.default: ("storage_offset", torch.Tensor.storage_offset),
    aten.sym_storage_offset.default: ("storage_offset", torch.Tensor.storage_offset),
    aten.numel.default: ("numel", torch.Tensor.numel),
    aten.sym_numel.default: ("numel", torch.Tensor.numel),
    aten.dim.default: ("dim", torch.Tensor.dim),
    aten.is_contiguous.default: ("contiguity", torch.Tensor.is_contiguous),
    aten.is_contiguous.memory_format: ("contiguity", aten.is_contiguous.memory_format),
    aten.is_strides_like_format.default: ("contiguity", aten.is_strides_like_format.default),
    aten.is_non_overlapping_and_dense.default: ("contiguity", aten.is_non_overlapping_and_dense.default),
    prim.device.default: ("device", lambda tensor: tensor.device),
    prim.layout.default: ("layout", lambda tensor: tensor.layout),
}
"""How C++ asks Python for the metadata of a wrapper: the attribute, and what reads it of a tensor.
(`ConcretePyInterpreterVTable` in torch/csrc/PyInterpreter.cpp)"""

if hasattr(aten, "sym_is_contiguous"):  # since torch 2.9
    QUERIES[aten.sym_is_contiguous.default] = ("contiguity", aten.sym_is_contiguous.default)

CONCRETE_QUERIES = {
    aten.size.default: "sizes",
    aten.stride.default: "strides",
    aten.storage_offset.default: "storage_offset",
    aten.numel.default: "numel",
}
"""The queries that take no symbolic answer, each with the name in the error that C++ raises for one."""


def is_empty(operator: Any) -> bool:
    """Whether an operator is `torch.empty` with sizes."""
    return operator is aten.empty.memory_format


_DATA_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


def reads_data(operator: Any, args: Sequence[Any]) -> bool:
    """Whether what an operator returns, or its shape, depends on a tensor's values (`item`, `equal`, `nonzero`)."""
    if _DATA_TAGS.isdisjoint(getattr(operator, "tags", ())):
        return False
    if operator is aten.index.Tensor:  # tagged for its masks; integer indices give a shape of their own
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return True


@functools.lru_cache(maxsize=4096)
def written_arguments(operator: Any) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments that an operator writes to."""
    schema = getattr(operator, "_schema", None)
    if schema is None or not schema.is_mutable:
        return ()
    aliases = [(place, argument.name, argument.alias_info) for place, argument in enumerate(schema.arguments)]
    return tuple((place, name) for place, name, alias in aliases if alias is not None and alias.is_write)


# -- targets of graph nodes ----------------------------------------------------------------------------------

_SIZE_READS = frozenset({aten.sym_size, aten.sym_stride, aten.sym_storage_offset, aten.sym_numel})


def is_aten_call(target: Any) -> bool:
    """Whether a graph node's target is one overload of an operator."""
    return isinstance(target, torch._ops.OpOverload)


def is_arithmetic(target: Any) -> bool:
    """Whether a graph node's target computes with plain numbers."""
    return getattr(target, "__module__", "") == "_operator" and target is not operator.getitem


def is_size_arithmetic(target: Any) -> bool:
    """Whether a call of a lowered graph computes with sizes: `aten.sym_size.int`, `operator.mul`."""
    if isinstance(target, torch._ops.OpOverload):
        return target.overloadpacket in _SIZE_READS
    module = getattr(target, "__module__", "")
    return module in ("_operator", "math", "torch") and target is not operator.getitem


def is_literal(node: torch.fx.Node) -> bool:
    """Whether a graph's constant is a literal of the program (`torch.tensor([1.0])`), copied where it is used."""
    return bool(node.users) and all(user.target is aten.lift_fresh_copy.default for user in node.users)


def viewed_argument(node: torch.fx.Node) -> torch.fx.Node | None:
    """The argument that a graph node's result is, or is a view of, by the operator's schema; None for a new tensor."""
    if node.target is operator.getitem:
        return node.args[0] if isinstance(node.args[0], torch.fx.Node) else None
    if not isinstance(node.target, torch._ops.OpOverload) or returns_new_tensors(node.target):
        return None
    return next((argument for argument in node.args if isinstance(argument, torch.fx.Node)), None)
