"""One gradient that flows between autograd nodes, held against what it should be.

Unlike a parameter's gradient, one that is not finite may be in order here: it is if it is so on both sides alike. Its
range is noted, so that the node can be found that first makes a NaN or an infinity.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from cabw_viz.numerics.compare import compare, plain
from cabw_viz.numerics.tolerance import Tolerance, coarser, tolerance_for
from cabw_viz.record.divergence import Difference, Range
from cabw_viz.record.kinds import GOOD
from cabw_viz.runtime.capture_state import version_of
from cabw_viz.runtime.gradient_snapshots import (
    Fingerprint,
    Gradient,
    GradientSnapshot,
    can_be_fingerprinted,
    fingerprint,
    same_bits,
)

EMPTY = Range(0.0, 0.0)


@dataclass(frozen=True)
class Judged:
    """A gradient of the candidate against the reference's."""

    difference: Difference
    finite: tuple[bool, bool]
    """Whether no element is a NaN or an infinity, in the reference and in the candidate."""
    ranges: tuple[Range | None, Range | None] | None = None
    """Of the reference and the candidate, None for a side without; None where both are as they were kept."""

    @property
    def agrees(self) -> bool:
        """Whether the two are the same, bit by bit or by the tolerance."""
        return self.difference.verdict in GOOD


ALIKE = Judged(Difference("bitwise", 0.0, 0.0), (True, True))
ALIKE_NOT_FINITE = Judged(Difference("bitwise", 0.0, 0.0, "not finite, alike on both sides"), (False, False))


class _Known:
    """Memory that was found to be the same on both sides, so that views of it need not be read again.

    A storage is known by a weak reference: a new one in the place of an old one is not taken for it.
    """

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[Any, ...]] = {}

    def add(self, reference: torch.Tensor, candidate: torch.Tensor) -> None:
        """Note that two tensors hold the same finite numbers."""
        if candidate.is_contiguous() and not candidate.is_inference():
            ours, theirs = reference.untyped_storage(), candidate.untyped_storage()
            self._pairs[ours.data_ptr()] = (
                weakref.ref(ours),
                weakref.ref(theirs),
                reference.storage_offset(),
                candidate.storage_offset(),
                candidate.numel(),
                version_of(candidate) or 0,
            )

    def holds(self, reference: torch.Tensor, candidate: torch.Tensor) -> bool:
        """Whether two tensors are the same view of memory that is the same."""
        if not self._pairs or reference.layout is not torch.strided or type(candidate) is not torch.Tensor:
            return False
        ours, theirs = reference.untyped_storage(), candidate.untyped_storage()
        pair = self._pairs.get(ours.data_ptr())
        if pair is None or pair[0]() is not ours or pair[1]() is not theirs or version_of(candidate) != pair[5]:
            return False
        alike = reference.dtype is candidate.dtype and reference.stride() == candidate.stride()
        starts = reference.storage_offset() - pair[2], candidate.storage_offset() - pair[3]
        if not alike or reference.shape != candidate.shape or starts[0] != starts[1] or starts[0] < 0:
            return False
        steps = zip(candidate.shape, candidate.stride(), strict=True)
        return starts[0] + sum((size - 1) * step for size, step in steps) < pair[4] and 0 not in candidate.shape


class _Nothing(_Known):
    """No memory is known, for it may be written to behind the version counter."""

    def add(self, reference: torch.Tensor, candidate: torch.Tensor) -> None:
        """Note nothing."""


@dataclass
class NodeJudge:
    """Judges gradients by torch.testing's tolerance for the coarser dtype of the two, or by a given one.

    Args:
        rtol: relative tolerance; with `atol`, instead of torch.testing's for the dtype.
        atol: tolerance in units of the largest element.
        across: whether the two sides may lie on different devices and be of different dtypes.
    """

    rtol: float | None = None
    atol: float | None = None
    across: bool = False
    used: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The tolerance that was used for each dtype."""
    rereads: bool = False
    """Whether a view is read again although all of the memory behind it was found to be the same."""

    def __post_init__(self) -> None:
        self.known = _Nothing() if self.rereads else _Known()

    @property
    def given(self) -> bool:
        """Whether the tolerance was given."""
        return self.rtol is not None

    def __call__(self, reference: GradientSnapshot | None, candidate: torch.Tensor | None) -> Judged | None:
        """Judge one gradient; None where neither side has one."""
        if reference is None and candidate is None:
            return None
        if reference is None or candidate is None:
            return self._one_sided(reference, candidate)
        if isinstance(reference, Fingerprint):
            return self._by_fingerprint(reference, candidate)
        if self.known.holds(reference.value, candidate):
            return ALIKE
        if not same_bits(reference.value, candidate):
            return self._by_value(reference, candidate)
        if not all_finite(candidate):
            return ALIKE_NOT_FINITE
        self.known.add(reference.value, candidate)
        return ALIKE

    def tolerance(self, *dtypes: torch.dtype) -> Tolerance:
        """The tolerance for the coarsest of some dtypes."""
        dtype = coarser(*dtypes)
        tolerance = tolerance_for(dtype, self.rtol, self.atol)
        self.used[str(dtype)] = (tolerance.rtol, tolerance.atol)
        return tolerance

    def _one_sided(self, reference: GradientSnapshot | None, candidate: torch.Tensor | None) -> Judged:
        """A gradient that one side alone has. Zeros are as good as none: a formula may or may not make them."""
        kept = reference.value if isinstance(reference, Gradient) else candidate
        found = range_of(kept) if kept is not None else None
        finite = found is None or is_finite(found)
        flags, sides = ((True, finite), (None, found)) if reference is None else ((finite, True), (found, None))
        if found == EMPTY:
            return Judged(Difference("bitwise", 0.0, 0.0, "zeros on one side, none on the other"), flags, sides)
        return Judged(Difference("unexpected" if reference is None else "missing"), flags, sides)

    def _by_value(self, reference: Gradient, candidate: torch.Tensor) -> Judged:
        expected, found = plain(reference.value), plain(candidate)
        if self.across:
            expected, found = in_coarser_dtype(expected, found)
        ranges = range_of(expected), range_of(found)
        if expected.shape == found.shape and expected.dtype == found.dtype and not all(map(is_finite, ranges)):
            return _ranged(_not_finite(expected, found), *ranges)
        tolerance = self.tolerance(expected.dtype)
        row = compare("", Gradient(expected, None), Gradient(found, None), tolerance)
        return _ranged(Difference(row.verdict, row.max_abs_err, row.max_rel_err, row.note), *ranges)

    def _by_fingerprint(self, reference: Fingerprint, candidate: torch.Tensor) -> Judged:
        expected = Range(reference.low, reference.high)
        found = candidate.detach()
        if tuple(found.shape) != reference.shape or not can_be_fingerprinted(found):
            note = f"shape: {reference.shape} | {tuple(found.shape)}"
            return _ranged(Difference("metadata", note=note), expected, range_of(found))
        if found.dtype != reference.dtype and not self.across:
            note = f"dtype: {reference.dtype} | {found.dtype}"
            return _ranged(Difference("metadata", note=note), expected, range_of(found))
        theirs = fingerprint(found)
        actual = Range(theirs.low, theirs.high)
        if theirs.dtype == reference.dtype and theirs.hash == reference.hash:
            return _ranged(Difference("bitwise", 0.0, 0.0, "by fingerprint"), expected, actual)
        counts = (reference.nans, reference.infinities), (theirs.nans, theirs.infinities)
        if counts[0] != counts[1] or any(counts[0]):
            note = f"by fingerprint: {sum(counts[0])} elements of the reference not finite, {sum(counts[1])} here"
            return _ranged(Difference("nonfinite", note=note), expected, actual)
        return _ranged(self._samples(reference, theirs), expected, actual)

    def _samples(self, reference: Fingerprint, candidate: Fingerprint) -> Difference:
        """The difference as far as samples, range and norm tell it: it is no smaller than that."""
        tolerance = self.tolerance(reference.dtype, candidate.dtype)
        scale = max(abs(reference.low), abs(reference.high))
        pairs = [*zip(reference.samples, candidate.samples, strict=True)]
        pairs += [(reference.low, candidate.low), (reference.high, candidate.high)]
        apart = [abs(theirs - ours) for ours, theirs in pairs]
        outside = any(
            distance > tolerance.rtol * abs(ours) + tolerance.atol * scale
            for distance, (ours, _) in zip(apart, pairs, strict=True)
        )
        outside |= abs(candidate.norm - reference.norm) > (tolerance.rtol + tolerance.atol) * reference.norm
        largest = max(apart, default=0.0)
        relative = largest / scale if scale else (math.inf if largest else 0.0)
        return Difference("mismatch" if outside else "within_tolerance", largest, relative, "by fingerprint")


def _ranged(difference: Difference, reference: Range, candidate: Range) -> Judged:
    return Judged(difference, (is_finite(reference), is_finite(candidate)), (reference, candidate))


def _not_finite(expected: torch.Tensor, found: torch.Tensor) -> Difference:
    """The difference between two gradients that are not both finite: none, if they are so alike."""
    wrong = [int((~torch.isfinite(side)).sum()) for side in (expected, found)]
    alike = torch.equal(torch.isnan(expected), torch.isnan(found)) and torch.equal(
        expected.nan_to_num(0.0), found.nan_to_num(0.0)
    )
    if alike:
        return Difference("bitwise", 0.0, 0.0, "not finite, alike on both sides")
    return Difference("nonfinite", note=f"not finite: {wrong[0]} elements of the reference, {wrong[1]} here")


def in_coarser_dtype(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two gradients on the reference's device and in the coarser of their dtypes."""
    candidate = candidate.to(reference.device)
    if reference.dtype == candidate.dtype or reference.is_complex() != candidate.is_complex():
        return reference, candidate
    dtype = coarser(reference.dtype, candidate.dtype)
    return reference.to(dtype), candidate.to(dtype)


def range_of(tensor: torch.Tensor) -> Range:
    """The smallest and largest element; of a complex tensor, the smallest and largest part."""
    tensor = plain(tensor)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.numel():
        return EMPTY
    low, high = torch.aminmax(tensor)
    return Range(float(low), float(high))


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether no element is a NaN or an infinity: such a one makes the sum one, as a sum that is too large is."""
    total = tensor.sum().item()
    return abs(total) < math.inf or is_finite(range_of(tensor))


def is_finite(found: Range) -> bool:
    """Whether no element is a NaN or an infinity."""
    return math.isfinite(found.low) and math.isfinite(found.high)
