"""Sums over the bits of tensors: they show a write that no version counts.

`.data` and the kernels of compiled regions write without counting. A sum reads the memory once, copies nothing where a
tensor is dense, and does not wait for an accelerator.

What the sums cannot see: words of eight bytes that change places within a row of 512, and tensors whose memory cannot
be read (fake ones, functorch's wrappers, quantized ones, layouts of other libraries, freed memory); the sum of these
is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.runtime.gradient_snapshots import row_hash, without_conj_neg_bits

BitSum = torch.Tensor | None
"""Sums of int64 on the device of the tensor, shape (parts,); None where the bits cannot be read."""


def bit_sums(tensors: Iterable[Any]) -> tuple[BitSum, ...]:
    """The sums of each tensor; memory that several of them show is read once."""
    known: dict[tuple[Any, ...], torch.Tensor] = {}
    with torch.no_grad(), torch_adapter.below_modes_and_functions():
        return tuple(_sums_of(tensor, known) for tensor in tensors)


def has_same_bits(before: BitSum, now: BitSum) -> bool:
    """Whether two sums of one tensor agree; True where there was none before, False where there is none any more."""
    if before is None or now is None:
        return before is None
    return before.tolist() == now.tolist()


def _sums_of(tensor: Any, known: dict[tuple[Any, ...], torch.Tensor]) -> BitSum:
    try:
        parts = torch_adapter.memory_of(tensor)
        return torch.stack([_sum_of(part, known) for part in parts]) if parts else None
    except Exception:  # noqa: BLE001  # whatever tensor it is, the user's backward must go on
        return None


def _sum_of(tensor: torch.Tensor, known: dict[tuple[Any, ...], torch.Tensor]) -> torch.Tensor:
    real = torch.view_as_real(without_conj_neg_bits(tensor)) if tensor.is_complex() else without_conj_neg_bits(tensor)
    dims = [(size, step) for size, step in zip(real.size(), real.stride(), strict=True) if size != 1 and step]
    dims.sort(key=lambda dim: dim[1], reverse=True)
    sizes, strides = [size for size, _ in dims], [step for _, step in dims]
    key = (real.data_ptr(), *dims, real.dtype, real.device)
    if key not in known:
        # The elements in the order of the memory; this raises where the storage has become too small for them.
        known[key] = row_hash(real.as_strided(sizes, strides).reshape(-1))
    return known[key]
