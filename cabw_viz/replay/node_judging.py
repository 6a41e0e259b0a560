"""One gradient that flows between autograd nodes, held against what it should be.

Unlike a parameter's gradient, one that is not finite may be in order here: it is if it is so on both sides alike. Its
range is noted, so that the node can be found that first makes a NaN or an infinity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from cabw_viz.kept import Fingerprint, Gradient, Kept, can_be_fingerprinted, fingerprint, same_bits
from cabw_viz.record.divergence import Difference, Range
from cabw_viz.record.kinds import GOOD
from cabw_viz.replay.compare import Tolerance, compare, plain, tolerance_for

EMPTY = Range(0.0, 0.0)


@dataclass(frozen=True)
class Judged:
    """A gradient of the candidate against the reference's."""

    difference: Difference
    reference: Range | None
    """None where the reference has none, or its range was not looked at."""
    candidate: Range | None

    @property
    def agrees(self) -> bool:
        """Whether the two are the same, bit by bit or by the tolerance."""
        return self.difference.verdict in GOOD


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
    count: int = 0
    """How many gradients were judged."""

    @property
    def given(self) -> bool:
        """Whether the tolerance was given."""
        return self.rtol is not None

    def __call__(self, reference: Kept | None, candidate: torch.Tensor | None) -> Judged | None:
        """Judge one gradient; None where neither side has one."""
        if reference is None and candidate is None:
            return None
        self.count += 1
        if reference is None or candidate is None:
            return self._one_sided(reference, candidate)
        if isinstance(reference, Fingerprint):
            return self._by_fingerprint(reference, candidate)
        if same_bits(reference.value, candidate):
            found = range_of(candidate)
            note = "not finite, alike on both sides" if not is_finite(found) else ""
            return Judged(Difference("bitwise", 0.0, 0.0, note), found, found)
        return self._by_value(reference, candidate)

    def tolerance(self, *dtypes: torch.dtype) -> Tolerance:
        """The tolerance for the coarsest of some dtypes."""
        dtype = coarsest(*dtypes)
        tolerance = tolerance_for(dtype, self.rtol, self.atol)
        self.used[str(dtype)] = (tolerance.rtol, tolerance.atol)
        return tolerance

    def _one_sided(self, reference: Kept | None, candidate: torch.Tensor | None) -> Judged:
        """A gradient that one side alone has. Zeros are as good as none: a formula may or may not make them."""
        kept = reference.value if isinstance(reference, Gradient) else candidate
        found = range_of(kept) if kept is not None else None
        sides = (None, found) if reference is None else (found, None)
        if found == EMPTY:
            return Judged(Difference("bitwise", 0.0, 0.0, "zeros on one side, none on the other"), *sides)
        return Judged(Difference("unexpected" if reference is None else "missing"), *sides)

    def _by_value(self, reference: Gradient, candidate: torch.Tensor) -> Judged:
        expected, found = plain(reference.value), plain(candidate)
        if self.across:
            expected, found = brought_together(expected, found)
        ranges = range_of(expected), range_of(found)
        if expected.shape == found.shape and expected.dtype == found.dtype and not all(map(is_finite, ranges)):
            return Judged(_not_finite(expected, found), *ranges)
        tolerance = self.tolerance(expected.dtype)
        row = compare("", Gradient(expected, None), Gradient(found, None), tolerance)
        return Judged(Difference(row.verdict, row.max_abs_err, row.max_rel_err, row.note), *ranges)

    def _by_fingerprint(self, reference: Fingerprint, candidate: torch.Tensor) -> Judged:
        expected = Range(reference.low, reference.high)
        found = candidate.detach()
        if tuple(found.shape) != reference.shape or not can_be_fingerprinted(found):
            note = f"shape: {reference.shape} | {tuple(found.shape)}"
            return Judged(Difference("metadata", note=note), expected, range_of(plain(found)))
        if found.dtype != reference.dtype and not self.across:
            note = f"dtype: {reference.dtype} | {found.dtype}"
            return Judged(Difference("metadata", note=note), expected, range_of(found))
        theirs = fingerprint(found)
        actual = Range(theirs.low, theirs.high)
        if theirs.dtype == reference.dtype and theirs.hash == reference.hash:
            return Judged(Difference("bitwise", 0.0, 0.0, "by fingerprint"), expected, actual)
        counts = (reference.nans, reference.infinities), (theirs.nans, theirs.infinities)
        if counts[0] != counts[1] or any(counts[0]):
            note = f"by fingerprint: {sum(counts[0])} elements of the reference not finite, {sum(counts[1])} here"
            return Judged(Difference("nonfinite", note=note), expected, actual)
        return Judged(self._samples(reference, theirs), expected, actual)

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


def _not_finite(expected: torch.Tensor, found: torch.Tensor) -> Difference:
    """The difference between two gradients that are not both finite: none, if they are so alike."""
    wrong = [int((~torch.isfinite(side)).sum()) for side in (expected, found)]
    alike = torch.equal(torch.isnan(expected), torch.isnan(found)) and torch.equal(
        expected.nan_to_num(0.0), found.nan_to_num(0.0)
    )
    if alike:
        return Difference("bitwise", 0.0, 0.0, "not finite, alike on both sides")
    return Difference("nonfinite", note=f"not finite: {wrong[0]} elements of the reference, {wrong[1]} here")


def brought_together(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two gradients on the reference's device and in the coarser of their dtypes."""
    candidate = candidate.to(reference.device)
    if reference.dtype == candidate.dtype or reference.is_complex() != candidate.is_complex():
        return reference, candidate
    dtype = coarsest(reference.dtype, candidate.dtype)
    return reference.to(dtype), candidate.to(dtype)


def coarsest(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype with the fewest digits; whole numbers have more than any other."""
    return max(dtypes, key=rounding)


def rounding(dtype: torch.dtype) -> float:
    """The distance from 1 to the next number; 0 for whole numbers."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def range_of(tensor: torch.Tensor) -> Range:
    """The smallest and largest element; of a complex tensor, the smallest and largest part."""
    tensor = plain(tensor)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.numel():
        return EMPTY
    low, high = torch.aminmax(tensor)
    return Range(float(low), float(high))


def is_finite(found: Range) -> bool:
    """Whether no element is a NaN or an infinity."""
    return math.isfinite(found.low) and math.isfinite(found.high)
