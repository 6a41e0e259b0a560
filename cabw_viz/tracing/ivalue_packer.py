"""How C++ packs metadata into the arguments of graph nodes, read back.

`IValuePacker` in torch/csrc/dynamo/compiled_autograd.h turns C++ types into plain Python values; what a value was is
told by its form. A dtype, a layout and a memory format are bare numbers there, so that 6 is float32, and a dim, and
an exponent: only inside these tuples do their places tell which. In torch 2.8 to 2.15:

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
class Part:
    """One piece of a packed value."""

    attribute: str
    """As in `Baked`; `size`, `stride` and `storage_offset` may be symbolic."""
    value: Any
    """Text for what was a number; for sizes, strides and offsets what stands in the graph."""
    what: str = ""
    """Which of several of the attribute: `grad_dtype`."""


def parts(value: Any) -> list[Part] | None:
    """The pieces of a packed C++ value; None for what is not one."""
    if type(value) is not tuple:
        return None
    for is_form, read in FORMS:
        if is_form(value):
            return list(read(value))
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


def _options(value: tuple[Any, ...]) -> Iterator[Part]:
    requires_grad, memory_format, device, dtype, layout, pinned = value
    if device is not None:
        yield Part("device", str(device))
    if dtype is not None:
        yield Part("dtype", named(DTYPES, dtype))
    if layout is not None:
        yield Part("layout", named(LAYOUTS, layout))
    if memory_format is not None:
        yield Part("memory_format", named(MEMORY_FORMATS, memory_format))
    if requires_grad:
        yield Part("flag", "True", "requires_grad")
    if pinned:
        yield Part("flag", "True", "pinned_memory")


def _input_metadata(value: tuple[Any, ...]) -> Iterator[Part]:
    options, sizes, is_subclass, *grad_dtype = value
    yield from _options(options)
    yield Part("size", sizes)
    if is_subclass:
        yield Part("flag", "True", "is_tensor_subclass")
    if grad_dtype and grad_dtype[0] not in (None, options[3]):
        yield Part("dtype", named(DTYPES, grad_dtype[0]), "grad_dtype")


def _type_and_size(value: tuple[Any, ...]) -> Iterator[Part]:
    yield Part("size", value[0])
    yield from _options(value[1])


def _variable_info(value: tuple[Any, ...]) -> Iterator[Part]:
    layout, device, dtype, sizes, requires_grad, _ = value
    yield from _options((requires_grad, None, device, dtype, layout, None))
    yield Part("size", sizes)


def _geometry(value: tuple[Any, ...]) -> Iterator[Part]:
    sizes, strides, offset = value
    yield Part("size", sizes)
    yield Part("stride", strides, "stride")
    yield Part("storage_offset", offset, "storage offset")


FORMS = (
    (_is_options, _options),
    (_is_variable_info, _variable_info),
    (_is_input_metadata, _input_metadata),
    (_is_type_and_size, _type_and_size),
    (_is_geometry, _geometry),
)


def named(names: tuple[str, ...], number: int) -> str:
    """`torch.float32` for a number in a packed tuple; a number that is not known stays one."""
    return f"torch.{names[number]}" if 0 <= number < len(names) else str(number)
