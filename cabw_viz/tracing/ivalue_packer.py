"""How C++ packs metadata into the arguments of graph nodes, read back.

`IValuePacker` in torch/csrc/dynamo/compiled_autograd.h turns C++ types into plain Python values; the form of a value
says which type it was. A dtype, a layout and a memory format become bare numbers: 6 may be float32, a dim or an
exponent. Only their positions in these tuples say which. In torch 2.8 to 2.15:

    TensorOptions    (requires_grad, memory_format, device, dtype, layout, pinned_memory), each or None
    InputMetadata    (TensorOptions, sizes, is_tensor_subclass); since 2.10 a fourth, grad_dtype
    TypeAndSize      (sizes, TensorOptions)
    VariableInfo     (layout, device, dtype, sizes, requires_grad, is_empty)
    TensorGeometry   (sizes, strides, storage_offset)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from cabw_viz.torch_adapter import DTYPES

# c10/core/Layout.h and c10/core/MemoryFormat.h
LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "_mkldnn", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged")
MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")


@dataclass(frozen=True)
class PackedField:
    """One field of a packed C++ value."""

    attribute: str
    """As in `Baked`; `size`, `stride` and `storage_offset` may be symbolic."""
    value: Any
    """Text for what was a number; for sizes, strides and offsets the argument of the graph node."""
    name: str = ""
    """Name of the field where its attribute does not say enough: `grad_dtype`."""


def packed_fields(value: Any) -> list[PackedField] | None:
    """The fields of a packed C++ value; None where the value is no such tuple."""
    if type(value) is not tuple:
        return None
    for is_form, fields_of in FORMS:
        if is_form(value):
            return list(fields_of(value))
    return None


def _is_options(value: Any) -> bool:
    return (
        type(value) is tuple
        and len(value) == 6
        and (value[2] is None or isinstance(value[2], torch.device))
        and all(item is None or isinstance(item, int) for item in (*value[:2], *value[3:]))
    )


def _is_input_metadata(value: tuple[Any, ...]) -> bool:
    return len(value) in (3, 4) and _is_options(value[0]) and isinstance(value[1], list) and isinstance(value[2], bool)


def _is_type_and_size(value: tuple[Any, ...]) -> bool:
    return len(value) == 2 and isinstance(value[0], list) and _is_options(value[1])


def _is_variable_info(value: tuple[Any, ...]) -> bool:
    return len(value) == 6 and isinstance(value[1], torch.device) and isinstance(value[3], list)


def _is_geometry(value: tuple[Any, ...]) -> bool:
    return len(value) == 3 and isinstance(value[0], list) and isinstance(value[1], list)


def _options(value: tuple[Any, ...]) -> Iterator[PackedField]:
    requires_grad, memory_format, device, dtype, layout, pinned = value
    if device is not None:
        yield PackedField("device", str(device))
    if dtype is not None:
        yield PackedField("dtype", _torch_name(DTYPES, dtype))
    if layout is not None:
        yield PackedField("layout", _torch_name(LAYOUTS, layout))
    if memory_format is not None:
        yield PackedField("memory_format", _torch_name(MEMORY_FORMATS, memory_format))
    if requires_grad:
        yield PackedField("flag", "True", "requires_grad")
    if pinned:
        yield PackedField("flag", "True", "pinned_memory")


def _input_metadata(value: tuple[Any, ...]) -> Iterator[PackedField]:
    options, sizes, is_subclass, *grad_dtype = value
    yield from _options(options)
    yield PackedField("size", sizes)
    if is_subclass:
        yield PackedField("flag", "True", "is_tensor_subclass")
    if grad_dtype and grad_dtype[0] not in (None, options[3]):
        yield PackedField("dtype", _torch_name(DTYPES, grad_dtype[0]), "grad_dtype")


def _type_and_size(value: tuple[Any, ...]) -> Iterator[PackedField]:
    yield PackedField("size", value[0])
    yield from _options(value[1])


def _variable_info(value: tuple[Any, ...]) -> Iterator[PackedField]:
    layout, device, dtype, sizes, requires_grad, _ = value
    yield from _options((requires_grad, None, device, dtype, layout, None))
    yield PackedField("size", sizes)


def _geometry(value: tuple[Any, ...]) -> Iterator[PackedField]:
    sizes, strides, offset = value
    yield PackedField("size", sizes)
    yield PackedField("stride", strides, "stride")
    yield PackedField("storage_offset", offset, "storage offset")


FORMS = (
    (_is_options, _options),
    (_is_variable_info, _variable_info),
    (_is_input_metadata, _input_metadata),
    (_is_type_and_size, _type_and_size),
    (_is_geometry, _geometry),
)


def _torch_name(names: tuple[str, ...], number: int) -> str:
    """`torch.float32` for a number in a packed tuple; a number without a name as it is."""
    return f"torch.{names[number]}" if 0 <= number < len(names) else str(number)
