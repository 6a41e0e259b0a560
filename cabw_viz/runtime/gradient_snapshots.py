"""Snapshots of gradients: copies, or fingerprints where memory is short."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from cabw_viz import torch_adapter
from cabw_viz.runtime.gradient_statistics import sums_of

SMALL = 1024
"""A gradient of at most this many bytes is always copied: its fingerprint would take as much."""

SAMPLES = 32
_ROW = 512
_MULTIPLIER = 0x5851F42D4C957F2D  # Knuth's, for MMIX
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Gradient:
    """A copy of a gradient, with the strides that it had in the run: a clone loses those of an expanded tensor."""

    value: torch.Tensor
    strides: tuple[int, ...] | None
    """None where strides mean nothing (sparse) or cannot differ (accumulated into `.grad`, which sets its own)."""


@dataclass(frozen=True)
class Fingerprint:
    """Statistics, hash and samples of a gradient that was not copied. Equal bits give equal fingerprints."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    norm: float
    """Euclidean norm, in single precision or better and summed in double."""
    low: float
    """Smallest element; for complex numbers the smallest real or imaginary part. NaN where there is a NaN."""
    high: float
    nans: int
    """How many elements are NaN, or have a part that is."""
    infinities: int
    """How many others are infinite, or have a part that is."""
    largest: float
    """Largest absolute value."""
    zeros: int
    """How many elements are zero; of complex numbers both parts."""
    subnormals: int
    """How many others are below the dtype's smallest normal number."""
    hash: tuple[int, int]
    """Of the bits in the order of the elements: two sums modulo 2**64, so that no other order has the same."""
    samples: tuple[complex, ...]
    """Elements at `SAMPLES` fixed positions, evenly spread."""


GradientSnapshot = Gradient | Fingerprint


@dataclass
class NodeGradients:
    """The input and output gradients of the autograd nodes of one run, by NodeCall number.

    Each node has a tuple with an entry for every gradient: None for one that is undefined. A gradient that passes
    through nodes unchanged is one object in all entries.
    """

    inputs: dict[int, tuple[GradientSnapshot | None, ...]] = field(default_factory=dict)
    """The input gradients of each node, after all hooks."""
    outputs: dict[int, tuple[GradientSnapshot | None, ...]] = field(default_factory=dict)
    """The output gradients of each node, after all hooks."""
    inputs_before_hooks: dict[int, tuple[GradientSnapshot | None, ...]] = field(default_factory=dict)
    """For nodes with pre-hooks: the input gradients before these, after the hooks of tensors."""
    outputs_before_hooks: dict[int, tuple[GradientSnapshot | None, ...]] = field(default_factory=dict)
    """For nodes with post-hooks: the output gradients before these."""
    bytes: int = 0
    """Bytes of the copies."""
    fingerprints: int = 0
    """How many gradients are fingerprints, as `max_bytes` was used up."""

    def clear(self) -> None:
        """Drop every tensor."""
        for gradients in (self.inputs, self.outputs, self.inputs_before_hooks, self.outputs_before_hooks):
            gradients.clear()


def detached_copy(gradient: torch.Tensor) -> torch.Tensor:
    """A copy without history; of one of vmap's the elements of the whole batch, see `plain_values`."""
    return torch_adapter.plain_values(gradient).detach().clone()


def strides_of(gradient: torch.Tensor) -> tuple[int, ...] | None:
    """Strides, where the layout has any."""
    return tuple(gradient.stride()) if gradient.layout is torch.strided and not gradient.is_nested else None


def compact_copy(gradient: torch.Tensor) -> torch.Tensor:
    """A copy without history; an expanded dimension is copied once and expanded again."""
    if type(gradient) is not torch.Tensor or 0 not in (strides_of(gradient) or ()):
        return gradient.detach().clone() if gradient.requires_grad else gradient.clone()
    sizes, strides = gradient.size(), gradient.stride()
    once = [1 if stride == 0 else size for size, stride in zip(sizes, strides, strict=True)]
    if 0 in sizes or once == list(sizes):
        return gradient.detach().clone()
    return gradient.detach().as_strided(once, strides).clone().expand(sizes)


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes that a copy of a tensor takes: an expanded dimension counts once."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return torch_adapter.bytes_of_elements(tensor)
    strides, count = tensor.stride(), tensor.numel()
    if 0 in strides and count:
        once = (size for size, stride in zip(tensor.size(), strides, strict=True) if stride)
        count = math.prod(once)
    return count * tensor.element_size()


def can_be_fingerprinted(tensor: torch.Tensor) -> bool:
    """Whether a gradient is a plain dense one with numbers whose bits can be read."""
    is_number = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and is_number and not tensor.is_nested


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits, where -0.0 is not 0.0; False where their bits cannot be read."""
    if not (can_be_fingerprinted(one) and can_be_fingerprinted(other)):  # a nested one has no shape
        return False
    if one.shape != other.shape or one.dtype is not other.dtype or one.device != other.device:
        return False
    return equal_bits(one, other)


def equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two dense tensors of one shape and dtype hold the same bits. Raises where their bits cannot be read.

    Wrapper subclasses are equal if they are of one class, and the tensors that `__tensor_flatten__` names are equal.
    What else such a class keeps (numbers, a DTensor's placements) is not compared.
    """
    inner, others = torch_adapter.inner_tensors(one), torch_adapter.inner_tensors(other)
    if inner or others:
        return type(one) is type(other) and _equal_inner_bits(inner, others)
    if one.is_complex():
        one, other = (torch.view_as_real(without_conj_neg_bits(side.detach())) for side in (one, other))
    elif one.is_neg() or other.is_neg():
        one, other = without_conj_neg_bits(one.detach()), without_conj_neg_bits(other.detach())
    if not one.numel():  # strides of 0 have no such view
        return True
    bits = _BITS[one.element_size()]
    if one.dim() > 1 and not one.is_contiguous() and one.mT.is_contiguous():
        one, other = one.mT, other.mT
    if one.is_contiguous() and other.is_contiguous() and _has_words(one) and _has_words(other):
        one, other, bits = one.reshape(-1), other.reshape(-1), torch.int64  # in half the time
    return torch.equal(one.detach().view(bits), other.detach().view(bits))


def _equal_inner_bits(inner: Sequence[tuple[str, torch.Tensor]], others: Sequence[tuple[str, torch.Tensor]]) -> bool:
    return [name for name, _ in inner] == [name for name, _ in others] and all(
        one.shape == other.shape and one.dtype == other.dtype and equal_bits(one, other)
        for (_, one), (_, other) in zip(inner, others, strict=True)
    )


def _has_words(tensor: torch.Tensor) -> bool:
    """Whether a contiguous tensor can be read eight bytes at a time."""
    size = tensor.element_size()
    return not (tensor.numel() * size % 8 or tensor.storage_offset() * size % 8)


def fingerprint(tensor: torch.Tensor) -> Fingerprint:
    """The fingerprint of a gradient for which `can_be_fingerprinted` is true."""
    flat = without_conj_neg_bits(tensor.detach()).reshape(-1)
    real = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    sums = sums_of(flat)
    return Fingerprint(
        tuple(tensor.shape), tensor.dtype, tensor.device, sums.norm, sums.low, sums.high, sums.nans, sums.infinities,
        sums.largest, sums.zeros, sums.subnormals, hash_of(real), samples_of(flat),
    )  # fmt: skip


def without_conj_neg_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its conjugation and negation carried out."""
    return tensor.resolve_conj().resolve_neg()


def hash_of(real: torch.Tensor) -> tuple[int, int]:
    """Two sums over the bits of a flat tensor, eight bytes at a time: along rows and across, weighted by position."""
    table, rest = _words(real)
    return int(_weighted([table.sum(1), *rest])), int(_weighted([table.sum(0), *rest]))


def row_hash(real: torch.Tensor) -> torch.Tensor:
    """The first of the two sums, on the device of the tensor: int64, shape ()."""
    table, rest = _words(real)
    return _weighted([table.sum(1), *rest])


def _words(real: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The bits of a flat tensor as a table of rows, and what is left of them."""
    flat = real.contiguous()
    size = flat.element_size()
    if flat.storage_offset() * size % 8:
        flat = flat.clone()
    words = flat.numel() * size // 8
    whole, tail = flat[: words * 8 // size].view(torch.int64), flat[words * 8 // size :].view(_BITS[size])
    rows = words // _ROW
    return whole[: rows * _ROW].view(rows, _ROW), [whole[rows * _ROW :], tail.to(torch.int64)]


def _weighted(parts: list[torch.Tensor]) -> torch.Tensor:
    sums = torch.cat(parts)
    weights = torch.arange(1, sums.numel() + 1, device=sums.device) * _MULTIPLIER
    return (sums * weights).sum()


def samples_of(flat: torch.Tensor) -> tuple[complex, ...]:
    """Elements of a flat tensor at fixed positions."""
    count = flat.numel()
    if not count:
        return ()
    positions = torch.arange(min(count, SAMPLES), device=flat.device) * count // min(count, SAMPLES)
    return tuple(_numbers(flat[positions]))


def _numbers(tensor: torch.Tensor) -> Sequence[complex]:
    numbers: Sequence[complex] = tensor.tolist()
    return numbers
