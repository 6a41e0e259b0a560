"""Compares one gradient that flows between autograd nodes with its reference.

Unlike a parameter's gradient, one that is not finite may agree here: it does if both sides hold the same. Its range is
part of the comparison, so that the search can name the node that first makes a NaN or an infinity.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from cabw_viz.numerics.compare import compare, plain
from cabw_viz.numerics.tolerance import Tolerance, UsedTolerances, coarser, tolerance_for
from cabw_viz.record.divergence import Difference, Range
from cabw_viz.record.kinds import GOOD
from cabw_viz.replay.placement.device_dtype_map import is_out_of_memory
from cabw_viz.runtime.gradient_snapshots import (
    Fingerprint,
    Gradient,
    GradientSnapshot,
    can_be_fingerprinted,
    fingerprint,
    same_bits,
)
from cabw_viz.runtime.tensor_state import version_of

EMPTY = Range(0.0, 0.0)


@dataclass(frozen=True)
class NodeComparison:
    """One gradient, seen from a reference and from a candidate."""

    difference: Difference
    finite: tuple[bool, bool]
    """Whether no element is a NaN or an infinity, in the reference and in the candidate."""
    ranges: tuple[Range | None, Range | None] | None = None
    """Of the reference and the candidate, None for a side without a gradient; None for gradients that are equal."""

    @property
    def agrees(self) -> bool:
        """Whether the two are the same, bit by bit or by the tolerance."""
        return self.difference.verdict in GOOD

    @property
    def differs(self) -> bool:
        """Whether they could be compared, and are not the same."""
        return not self.agrees and self.difference.verdict != "not_judged"


EQUAL = NodeComparison(Difference("bitwise", 0.0, 0.0), (True, True))
EQUAL_NOT_FINITE = NodeComparison(Difference("bitwise", 0.0, 0.0, "not finite, alike on both sides"), (False, False))


class _EqualMemory:
    """Memory that holds the same on both sides, so that views of it need not be read again.

    Storages are held by weak references: a new storage at the address of an old one is not mistaken for it.
    """

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[Any, ...]] = {}

    def add(self, reference: torch.Tensor, candidate: torch.Tensor) -> None:
        """Note that two tensors hold the same finite numbers."""
        if candidate.is_contiguous() and not candidate.is_inference():
            expected, actual = reference.untyped_storage(), candidate.untyped_storage()
            self._pairs[expected.data_ptr()] = (
                weakref.ref(expected),
                weakref.ref(actual),
                reference.storage_offset(),
                candidate.storage_offset(),
                candidate.numel(),
                version_of(candidate) or 0,
            )

    def covers(self, reference: torch.Tensor, candidate: torch.Tensor) -> bool:
        """Whether two tensors are the same view of equal memory."""
        if not self._pairs or reference.layout is not torch.strided or type(candidate) is not torch.Tensor:
            return False
        expected, actual = reference.untyped_storage(), candidate.untyped_storage()
        pair = self._pairs.get(expected.data_ptr())
        if pair is None or pair[0]() is not expected or pair[1]() is not actual or version_of(candidate) != pair[5]:
            return False
        same_metadata = reference.dtype is candidate.dtype and reference.stride() == candidate.stride()
        starts = reference.storage_offset() - pair[2], candidate.storage_offset() - pair[3]
        if not same_metadata or reference.shape != candidate.shape or starts[0] != starts[1] or starts[0] < 0:
            return False
        steps = zip(candidate.shape, candidate.stride(), strict=True)
        return starts[0] + sum((size - 1) * step for size, step in steps) < pair[4] and 0 not in candidate.shape


class _NoMemory(_EqualMemory):
    """No memory at all, for a backward in which writes may bypass the version counter."""

    def add(self, reference: torch.Tensor, candidate: torch.Tensor) -> None:
        """Do nothing."""


@dataclass
class NodeComparer:
    """Compares gradients by torch.testing's tolerance for the coarser dtype of the two, or by the user's.

    Args:
        rtol: relative tolerance; with `atol`, instead of torch.testing's for the dtype.
        atol: tolerance in units of the largest element.
        across: whether the two sides may lie on different devices and be of different dtypes.
    """

    rtol: float | None = None
    atol: float | None = None
    across: bool = False
    rereads: bool = False
    """Whether a view is read again although all of the memory behind it is equal."""
    used: UsedTolerances = field(default_factory=UsedTolerances)

    def __post_init__(self) -> None:
        self._equal_memory = _NoMemory() if self.rereads else _EqualMemory()

    @property
    def has_user_tolerance(self) -> bool:
        """Whether the user set the tolerance, which alone decides then."""
        return self.rtol is not None

    def __call__(self, reference: GradientSnapshot | None, candidate: torch.Tensor | None) -> NodeComparison | None:
        """Compare one gradient; None where neither side has one.

        A gradient that cannot be compared (a kernel for its kind is missing) is `not_judged`.
        """
        try:
            return self._compared(reference, candidate)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            note = f"could not be compared: {type(error).__name__}: {error}"
            return NodeComparison(Difference("not_judged", note=note), (True, True))

    def _compared(self, reference: GradientSnapshot | None, candidate: torch.Tensor | None) -> NodeComparison | None:
        if reference is None and candidate is None:
            return None
        if reference is None or candidate is None:
            return self._one_sided(reference, candidate)
        if isinstance(reference, Fingerprint):
            return self._by_fingerprint(reference, candidate)
        if self._equal_memory.covers(reference.value, candidate):
            return EQUAL
        if not same_bits(reference.value, candidate):
            return self._by_value(reference, candidate)
        if not all_finite(candidate):
            return EQUAL_NOT_FINITE
        self._equal_memory.add(reference.value, candidate)
        return EQUAL

    def tolerance(self, *dtypes: torch.dtype) -> Tolerance:
        """The tolerance for the coarsest of some dtypes."""
        dtype = coarser(*dtypes)
        tolerance = tolerance_for(dtype, self.rtol, self.atol)
        self.used.add(dtype, tolerance)
        return tolerance

    def _one_sided(self, reference: GradientSnapshot | None, candidate: torch.Tensor | None) -> NodeComparison:
        """A gradient that one side alone has. Zeros are as good as none: a formula may or may not make them."""
        gradient = reference.value if isinstance(reference, Gradient) else candidate
        bounds = range_of(gradient) if gradient is not None else None
        finite = bounds is None or is_finite(bounds)
        flags, sides = ((True, finite), (None, bounds)) if reference is None else ((finite, True), (bounds, None))
        if bounds == EMPTY:
            return NodeComparison(Difference("bitwise", 0.0, 0.0, "zeros on one side, none on the other"), flags, sides)
        return NodeComparison(Difference("unexpected" if reference is None else "missing"), flags, sides)

    def _by_value(self, reference: Gradient, candidate: torch.Tensor) -> NodeComparison:
        expected, actual = plain(reference.value), plain(candidate)
        if self.across:
            expected, actual = in_coarser_dtype(expected, actual)
        ranges = range_of(expected), range_of(actual)
        tolerance = self.tolerance(expected.dtype)
        row = compare("", Gradient(expected, None), Gradient(actual, None), tolerance)
        return _comparison(Difference(row.verdict, row.max_abs_err, row.max_rel_err, row.note), *ranges)

    def _by_fingerprint(self, reference: Fingerprint, candidate: torch.Tensor) -> NodeComparison:
        candidate, expected = candidate.detach(), Range(reference.low, reference.high)
        if tuple(candidate.shape) != reference.shape or not can_be_fingerprinted(candidate):
            note = f"shape: {reference.shape} | {tuple(candidate.shape)}"
            return _comparison(Difference("metadata", note=note), expected, range_of(candidate))
        if candidate.dtype != reference.dtype and not self.across:
            note = f"dtype: {reference.dtype} | {candidate.dtype}"
            return _comparison(Difference("metadata", note=note), expected, range_of(candidate))
        other = fingerprint(candidate)
        actual = Range(other.low, other.high)
        if other.dtype == reference.dtype and other.hash == reference.hash:
            return _comparison(Difference("bitwise", 0.0, 0.0, "by fingerprint"), expected, actual)
        counts = (reference.nans, reference.infinities), (other.nans, other.infinities)
        if counts[0] == counts[1] and any(counts[0]):
            note = f"by fingerprint: {sum(counts[0])} elements not finite on both sides, and others differ"
            return _comparison(Difference("not_judged", note=note), expected, actual)
        if counts[0] != counts[1]:
            note = f"by fingerprint: {sum(counts[0])} elements of the reference not finite, {sum(counts[1])} here"
            return _comparison(Difference("nonfinite", note=note), expected, actual)
        return _comparison(self._by_samples(reference, other), expected, actual)

    def _by_samples(self, reference: Fingerprint, candidate: Fingerprint) -> Difference:
        """The difference of samples, ranges and norms. The difference of the gradients is no smaller."""
        tolerance = self.tolerance(reference.dtype, candidate.dtype)
        scale = max(abs(reference.low), abs(reference.high))
        pairs = [*zip(reference.samples, candidate.samples, strict=True)]
        pairs += [(reference.low, candidate.low), (reference.high, candidate.high)]
        errors = [abs(actual - expected) for expected, actual in pairs]
        outside = any(
            error > tolerance.rtol * abs(expected) + tolerance.atol * scale
            for error, (expected, _) in zip(errors, pairs, strict=True)
        )
        outside |= abs(candidate.norm - reference.norm) > (tolerance.rtol + tolerance.atol) * reference.norm
        largest = max(errors, default=0.0)
        relative = largest / scale if scale else (math.inf if largest else 0.0)
        return Difference("mismatch" if outside else "within_tolerance", largest, relative, "by fingerprint")


def _comparison(difference: Difference, reference: Range, candidate: Range) -> NodeComparison:
    return NodeComparison(difference, (is_finite(reference), is_finite(candidate)), (reference, candidate))


def in_coarser_dtype(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two gradients on the reference's device and in the coarser of their dtypes."""
    candidate = candidate.to(reference.device)
    if reference.dtype == candidate.dtype or reference.is_complex() != candidate.is_complex():
        return reference, candidate
    dtype = coarser(reference.dtype, candidate.dtype)
    return reference.to(dtype), candidate.to(dtype)


def range_of(tensor: torch.Tensor) -> Range:
    """The smallest and largest element; of a complex tensor, the smallest and largest part."""
    numbers = _real_numbers(tensor)
    if not numbers.numel():
        return EMPTY
    low, high = torch.aminmax(numbers)
    return Range(float(low), float(high))


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether no element is a NaN or an infinity. The sum is finite only then; if it is not, it may have overflowed."""
    numbers = _real_numbers(tensor)
    return abs(numbers.sum().item()) < math.inf or is_finite(range_of(numbers))


def _real_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor in a form that has sums and ranges: complex numbers and those of one byte have not."""
    tensor = plain(tensor)
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def is_finite(bounds: Range) -> bool:
    """Whether no element is a NaN or an infinity."""
    return math.isfinite(bounds.low) and math.isfinite(bounds.high)
