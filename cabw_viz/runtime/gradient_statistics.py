"""Sizes of gradients: norm, largest element, and how many elements are zero, subnormal, NaN or infinite.

A gradient is read in pieces that fit into a processor's cache. Half precision is widened to single precision, and the
squares are summed in double precision where single would overflow or lose them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cabw_viz import torch_adapter
from cabw_viz.record.gradients import GradientStatistics

_PIECE = 2**16
"""Elements; on an accelerator four thousand times as many, where each piece costs launches of kernels."""

_SAFE_LOW, _SAFE_HIGH = 1e-12, 1e12
"""Where the largest element lies between these, single precision loses no square that matters, and none overflows."""


@dataclass
class Sums:
    """What is added up of the elements of a gradient."""

    squares: float = 0.0
    low: float = math.inf
    """Smallest element; of complex numbers the smallest real or imaginary part. NaN where there is a NaN."""
    high: float = -math.inf
    largest: float = 0.0
    zeros: int = 0
    subnormals: int = 0
    nans: int = 0
    infinities: int = 0

    @property
    def norm(self) -> float:
        """Euclidean."""
        return math.sqrt(self.squares)


def statistics_of(gradient: torch.Tensor) -> GradientStatistics:
    """The statistics of a gradient of any class, layout and dtype; with a note where they cannot be had."""
    shape, dtype, elements = torch_adapter.shape_of(gradient), str(gradient.dtype), gradient.numel()
    try:
        values, note = _values(gradient.detach())
    except Exception as error:  # noqa: BLE001  # a subclass may refuse anything; the note says what
        values, note = None, f"not known: {type(error).__name__}: {error}"
    if values is None:
        return GradientStatistics(shape, dtype, elements, note=note)
    elements = values.numel() if note else elements
    return from_sums(shape, dtype, elements, sums_of(values.reshape(-1)), elements - values.numel(), note)


def from_sums(
    shape: tuple[int, ...], dtype: str, elements: int, sums: Sums, left_out: int = 0, note: str = ""
) -> GradientStatistics:
    """Statistics of these sums, over all elements but so many that are zero and were left out."""
    zeros = sums.zeros + left_out
    return GradientStatistics(
        shape, dtype, elements, sums.norm, sums.largest, zeros, sums.subnormals, sums.nans, sums.infinities, note
    )


def norm_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The Euclidean norm of a plain dense tensor of numbers, shape (), on its device; None of any other tensor.

    Nothing waits for an accelerator. It is in single precision or better.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return None
    if tensor.is_meta or tensor.is_nested or torch_adapter.is_freed(tensor):
        return None
    flat = tensor.detach()
    flat = torch.view_as_real(flat.resolve_conj()) if flat.is_complex() else flat
    wide = flat.dtype if flat.dtype is torch.float64 else torch.float32
    norm: torch.Tensor = torch.linalg.vector_norm(flat, dtype=wide)
    if flat.device.type == "cpu" and wide is torch.float32 and not _SAFE_LOW < float(norm) < _SAFE_HIGH:
        norm = torch.linalg.vector_norm(flat, dtype=torch.float64)
    return norm


def sums_of(flat: torch.Tensor) -> Sums:
    """The sums over a plain dense tensor of one dimension."""
    sums = Sums()
    if not flat.numel():
        return Sums(low=0.0, high=0.0)
    flat = flat.resolve_conj().resolve_neg()
    subnormal = _largest_subnormal(flat.dtype)
    for piece in flat.split(_PIECE if flat.device.type == "cpu" else _PIECE * 4096):
        _add(sums, piece, subnormal)
    return sums


def _add(sums: Sums, piece: torch.Tensor, subnormal: float) -> None:
    wide = _widened(piece)
    parts, sizes = (torch.view_as_real(wide), wide.abs()) if wide.is_complex() else (wide, wide)
    low, high, norm = torch.stack([*torch.aminmax(parts), torch.linalg.vector_norm(parts)]).tolist()
    largest = float(sizes.max()) if wide.is_complex() else max(-low, high)
    if parts.dtype is torch.float32 and largest and not _SAFE_LOW < largest < _SAFE_HIGH:
        norm = float(torch.linalg.vector_norm(parts, dtype=torch.float64))
    _count(sums, sizes, subnormal, is_finite=largest < math.inf)
    sums.squares += norm * norm
    sums.low, sums.high = _least(sums.low, low), -_least(-sums.high, -high)
    sums.largest = -_least(-sums.largest, -largest)


def _count(sums: Sums, sizes: torch.Tensor, subnormal: float, *, is_finite: bool) -> None:
    """Count elements by kind. What is not below the smallest normal number, NaN too, remains after a hard shrink."""
    count = _nonzero_among_finite if is_finite and sizes.device.type == "cpu" else _nonzero
    normal = count(torch.nn.functional.hardshrink(sizes, subnormal))
    if normal < sizes.numel():
        others = count(sizes)
        sums.zeros += sizes.numel() - others
        sums.subnormals += others - normal
    if not is_finite:
        sums.nans += int(sizes.isnan().sum())
        sums.infinities += int(sizes.isinf().sum())


def _nonzero(sizes: torch.Tensor) -> int:
    return int(torch.count_nonzero(sizes))


def _nonzero_among_finite(sizes: torch.Tensor) -> int:
    """The same in a third of the time on a CPU; exact, for a piece has fewer elements than single precision counts."""
    signs = sizes.sign()
    return int(torch.dot(signs, signs))


def _least(one: float, other: float) -> float:
    """The smaller of two numbers; NaN where one is NaN."""
    return one if math.isnan(one) or one < other else other


def _widened(piece: torch.Tensor) -> torch.Tensor:
    """In single precision, or in double where it is in double."""
    if piece.dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        return piece
    if piece.dtype.is_complex:
        return piece.to(torch.complex64)
    return piece.to(torch.float32 if piece.dtype.is_floating_point else torch.float64)


def _largest_subnormal(dtype: torch.dtype) -> float:
    """The largest number below the smallest normal one; 0 where there is none."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    limits = torch.finfo(dtype)
    return limits.smallest_normal * (1 - limits.eps)


def _values(gradient: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """The elements of a gradient that may not be zero, as a plain dense tensor, and what is to be said of them."""
    if torch_adapter.is_fake(gradient) or gradient.is_meta:
        return None, "not known: a meta tensor has no values"
    if torch_adapter.is_wrapper_subclass(gradient):
        return _values_of_wrapper(gradient)
    if gradient.is_nested:
        return torch.cat([part.reshape(-1) for part in gradient.unbind()]), ""
    if gradient.layout is torch.sparse_coo:
        return gradient.coalesce().values(), ""
    if gradient.layout is not torch.strided:
        return gradient.to_dense(), ""
    return gradient.as_subclass(torch.Tensor), ""


def _values_of_wrapper(gradient: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """Of a tensor that holds one other, such as a DTensor; reading all of it would wait for other processes."""
    inner = torch_adapter.inner_tensors(gradient)
    if gradient.is_nested:
        return gradient.values(), ""
    if len(inner) != 1:
        return None, f"not known: only {type(gradient).__name__} knows its elements"
    values, note = _values(inner[0][1])
    is_part = tuple(inner[0][1].shape) != tuple(gradient.shape)
    return values, f"of this process's part, {tuple(inner[0][1].shape)}" if is_part and not note else note
