"""Tensors in pieces that fit into a processor's cache: what is computed of them needs no memory of their size."""

from __future__ import annotations

from collections.abc import Iterator

import torch

CHUNK = 2**17
"""Elements of a piece: 1 MiB in float64."""

CHUNK_OF_ACCELERATOR = 2**24
"""The same on an accelerator, which is waited for at each piece."""


def chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Pieces of strided tensors of one shape that belong together, in the order of the first one's memory.

    The pieces are views, unless a tensor is conjugated or negated by a mark.
    """
    first = tensors[0]
    order = sorted(range(first.dim()), key=first.stride, reverse=True)
    yield from row_chunks(*(tensor.permute(order) for tensor in tensors))


def row_chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same in the order of the indices."""
    values = [tensor.detach().resolve_conj().resolve_neg() for tensor in tensors]
    size = CHUNK if values[0].device.type == "cpu" else CHUNK_OF_ACCELERATOR
    if values[0].numel() <= size:
        yield tuple(values)
        return
    if all(value.is_contiguous() for value in values):
        values = [value.view(-1) for value in values]
    rows = values[0].shape[0]
    count = max(1, size * rows // values[0].numel())
    if rows == 1:  # the pieces of its one row
        yield from row_chunks(*(value[0] for value in values))
        return
    yield from zip(*(value.split(count) for value in values), strict=True)


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no element of a dense tensor of floating or complex numbers is a NaN or infinite."""
    return all(_is_finite(chunk) for (chunk,) in chunks(tensor))


def _is_finite(chunk: torch.Tensor) -> bool:
    if not chunk.numel():
        return True
    real = torch.view_as_real(chunk) if chunk.is_complex() else chunk
    if real.is_floating_point() and real.element_size() == 1:
        real = real.float()
    # The sum is finite only where all are; if it is not, it may have overflowed.
    return abs(real.sum(dtype=_sum_dtype(real)).item()) < float("inf") or bool(torch.isfinite(real).all())


def _sum_dtype(real: torch.Tensor) -> torch.dtype:
    return torch.float64 if real.dtype is torch.float64 else torch.float32
