"""The elements of tensors in figures: range, zeros, NaN and infinities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from cabw_viz import torch_adapter
from cabw_viz.record.nonfinite import ValueRange
from cabw_viz.runtime.gradient_snapshots import Gradient, GradientSnapshot, without_conj_neg_bits

T = TypeVar("T")


def has_numbers(tensor: Any) -> bool:
    """Whether a tensor is of a floating or complex dtype, the only ones that hold NaN or infinity."""
    return isinstance(tensor, torch.Tensor) and (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def is_finite(tensor: torch.Tensor) -> bool | None:
    """Whether no element is NaN or infinite; None where the elements cannot be read."""
    return _read(lambda: not has_numbers(tensor) or bool(torch.isfinite(_elements(tensor)).all()))


def value_range(tensor: Any) -> ValueRange | None:
    """The figures of a tensor of any shape; of a sparse one, of the elements that it stores.

    None where the elements cannot be read, or are neither floating nor complex numbers.
    """
    return _read(lambda: _range(tensor)) if has_numbers(tensor) else None


def _read(read: Callable[[], T]) -> T | None:
    try:
        with torch.no_grad(), torch_adapter.below_modes_and_functions():
            return read()
    except Exception:  # noqa: BLE001  # freed memory, a layout without kernels: whatever it is, it is not known then
        return None


def _range(tensor: torch.Tensor) -> ValueRange:
    elements = _elements(tensor)
    nans, positive, negative = (int(each(elements).sum()) for each in (torch.isnan, torch.isposinf, torch.isneginf))
    finite = elements[torch.isfinite(elements)] if nans or positive or negative else elements
    low, high = map(float, torch.aminmax(finite)) if finite.numel() else (math.nan, math.nan)
    zeros = int((finite == 0).sum())
    sizes = (finite[finite != 0] if zeros else finite).abs()
    smallest = float(sizes.min()) if sizes.numel() else None
    shape = torch_adapter.shape_of(tensor)
    return ValueRange(shape, str(tensor.dtype), low, high, smallest, zeros, nans, positive, negative)


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as a flat tensor of real numbers; those of an expanded dimension once."""
    if torch_adapter.is_freed(tensor):
        raise ValueError("its memory was freed")
    if torch_adapter.inner_tensors(tensor):
        parts = [_elements(part) for part in torch_adapter.plain_parts(tensor) if has_numbers(part)]
        return torch.cat(parts)
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    tensor = without_conj_neg_bits(tensor)
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if tensor.numel():
        tensor = tensor[tuple(slice(None) if step else slice(0, 1) for step in tensor.stride())]
    flat = tensor.reshape(-1)
    return flat.float() if flat.element_size() == 1 else flat  # float8 has few kernels


def range_of_snapshot(snapshot: GradientSnapshot) -> ValueRange | None:
    """The figures of a gradient that was kept; of a fingerprint those that it has."""
    if isinstance(snapshot, Gradient):
        return value_range(snapshot.value)
    low, high = (bound if math.isfinite(bound) else math.nan for bound in (snapshot.low, snapshot.high))
    shape, dtype = snapshot.shape, str(snapshot.dtype)
    return ValueRange(shape, dtype, low, high, None, snapshot.zeros, snapshot.nans, snapshot.infinities, 0)


def snapshot_is_finite(snapshot: GradientSnapshot) -> bool | None:
    """Whether a gradient that was kept is finite; None where that cannot be read."""
    return is_finite(snapshot.value) if isinstance(snapshot, Gradient) else not (snapshot.nans or snapshot.infinities)
