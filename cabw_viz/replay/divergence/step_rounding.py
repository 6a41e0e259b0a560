"""Whether rounding explains what one step of a backward makes differently on two sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from cabw_viz.numerics.compare import plain, zeros_where_not_finite
from cabw_viz.numerics.constants import (
    CLOSER_LOOK,
    DTYPE_ROUNDINGS,
    FACTOR_ELEMENTS,
    FACTOR_REMAINDER,
    FACTOR_SIZE,
    FLOORS,
    FULL_LIMITS,
    HALF_LIMITS,
    HALF_RATIO,
    HALF_SLACK,
    HALF_UNIT,
    PROPORTION,
    SUMS,
    noise_limit,
)
from cabw_viz.numerics.distance import ZERO, Distance, distance, in_float64, relative_distance
from cabw_viz.numerics.tolerance import coarser, has_digits, step_of, unit_of
from cabw_viz.record.divergence import Difference
from cabw_viz.replay.divergence.node_comparison import in_coarser_dtype


def needs_float64(difference: Difference, reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    """Whether a step's own difference must be judged against float64.

    In half precision torch.testing's tolerance is several times what one rounding takes, so there a difference within
    it is judged too, if it is more than part of a rounding in the Euclidean norm; see `CLOSER_LOOK`.
    """
    if difference.verdict == "mismatch":
        return True
    if difference.verdict == "nonfinite":
        return reference.dtype != candidate.dtype
    if difference.verdict != "within_tolerance":
        return False
    unit = unit_of(coarser(reference.dtype, candidate.dtype))
    if unit <= HALF_UNIT:
        return False
    return relative_distance(*in_coarser_dtype(plain(reference), plain(candidate))) > unit * CLOSER_LOOK


@dataclass(frozen=True)
class StepNoise:
    """What rounding does to the result of a step, in units of the exact one."""

    distance: Distance = ZERO
    factor: float = 0.0
    """By how much it scales the result as a whole."""

    def maximum(self, other: StepNoise) -> StepNoise:
        """The larger in each respect."""
        return StepNoise(self.distance.maximum(other.distance), max(self.factor, other.factor))

    def divided_by(self, divisor: float) -> StepNoise:
        """Each figure, divided."""
        return StepNoise(self.distance.divided_by(divisor), self.factor / divisor)

    def limited(self, limit: float) -> StepNoise:
        """The same, each figure at most this large."""
        figures = self.distance.largest, self.distance.mean_square, self.distance.systematic
        return StepNoise(Distance(*(min(figure, limit) for figure in figures)), min(self.factor, limit))


def noise_between(base: torch.Tensor, changed: torch.Tensor, exact: torch.Tensor) -> StepNoise:
    """What a run that was changed as rounding would change it shows: its distance from the run without that."""
    base, changed, exact = (in_float64(each) for each in zeros_where_not_finite(base, changed, exact))
    moved = changed - base + exact
    size, remainder = common_factor(exact, moved)
    return StepNoise(distance(moved, exact), size if remainder < size * FACTOR_REMAINDER else 0.0)


def smooth_noise(large: StepNoise, small: StepNoise, ratio: float) -> StepNoise:
    """The noise of a change, if it is in proportion to the change; none where a small change makes a jump.

    A jump shows a choice (a comparison of saved values, an index, a mask) that the change has turned over. It would
    excuse any fault.

    Args:
        large: of a change of the size of a rounding.
        small: of the same change, smaller.
        ratio: how many times smaller.
    """
    bound, least = small.distance.mean_square * ratio * PROPORTION, small.distance.mean_square * PROPORTION
    if not least <= large.distance.mean_square <= bound:
        return StepNoise()
    return large


@dataclass(frozen=True)
class StepOutputs:
    """The results of a step on both sides, for the same inputs, and what it is in double precision.

    Args:
        reference: dense.
        candidate: dense, of the same shape.
        exact: the same in double precision, or the best that is known of it.
        independent: whether the graph as such is right here, so that a fault of the candidate cannot be in the exact
            result too. Then the candidate may be nearer to that than the reference is; otherwise that may be the very
            fault.
    """

    reference: torch.Tensor
    candidate: torch.Tensor
    exact: torch.Tensor
    independent: bool

    @classmethod
    def of(
        cls, reference: torch.Tensor, candidate: torch.Tensor, exact: torch.Tensor, *, independent: bool
    ) -> StepOutputs:
        """Of gradients of any kind; elements that are not finite on one of the sides are left out."""
        dense = [plain(each).to(reference.device) for each in (reference, candidate, exact)]
        dense[2] = in_float64(dense[2])
        if len({each.shape for each in dense}) == 1 and not all(bool(torch.isfinite(each).all()) for each in dense):
            dense = zeros_where_not_finite(*dense)
        return cls(dense[0], dense[1], dense[2], independent)

    @property
    def dtype(self) -> torch.dtype:
        """The coarser of the two sides'."""
        return coarser(self.reference.dtype, self.candidate.dtype)

    @property
    def unit(self) -> float:
        """The spacing of numbers around 1 in it."""
        return unit_of(self.dtype)

    @cached_property
    def errors(self) -> tuple[Distance, Distance]:
        """How far the reference and the candidate are from exact."""
        return distance(self.reference, self.exact), distance(self.candidate, self.exact)

    @property
    def note(self) -> str:
        """Both errors, in words."""
        reference, candidate = (error.mean_square for error in self.errors)
        return f"in float64: {reference:.1e} off the reference, {candidate:.1e} off the candidate"

    @cached_property
    def floors(self) -> tuple[float, float]:
        """The smallest step of the coarser dtype in units of the largest element, and as noise of the whole."""
        exact = in_float64(self.exact)
        largest, norm = float(exact.abs().max()) if exact.numel() else 0.0, float(torch.linalg.vector_norm(exact))
        step = step_of(self.dtype)
        return step / largest if largest else 0.0, step * math.sqrt(exact.numel()) / norm if norm else 0.0

    def is_as_good_as_the_other(self) -> bool:
        """Whether both sides are about as far from the exact result, within a bound.

        A step that cancels most of what it sums is far from exact on either side; one that computes something else is
        far on one side alone.
        """
        if self.reference.shape != self.exact.shape or self.candidate.shape != self.exact.shape:
            return False
        reference, candidate = self.errors
        pairs = (reference.largest, candidate.largest), (reference.mean_square, candidate.mean_square)
        for errors, floor, slack in zip(pairs, self.floors, (1.0, HALF_SLACK), strict=True):
            near, far = errors if self.independent else sorted(errors)
            if far > min(self._allowed(near, slack), noise_limit(self.unit)) + SUMS * floor:
                return False
        return not self._is_scaled(0.0)

    def _allowed(self, near: float, half_slack: float) -> float:
        """How far the farther side may be from exact, where the nearer side is this far."""
        reference, candidate = unit_of(self.reference.dtype), unit_of(self.candidate.dtype)
        if reference != candidate:
            # Where the reference is worse than one rounding, it shows by how much the step magnifies that.
            magnified = max(1.0, near / (reference or 1.0)) if self.independent else 1.0
            return DTYPE_ROUNDINGS * (candidate if self.independent else self.unit) * magnified
        if self.unit > HALF_UNIT:
            return HALF_RATIO * near + self.unit * half_slack
        return SUMS * (near + self.unit)

    def is_explained_by(self, noise: StepNoise) -> bool:
        """Whether neither side is farther from the exact result than noise, as it was measured, takes it.

        Args:
            noise: what rounding alone does to the result.
        """
        if self.reference.shape != self.exact.shape or self.candidate.shape != self.exact.shape:
            return False
        limits = HALF_LIMITS if self.unit > HALF_UNIT else FULL_LIMITS
        floors = self.floors
        largest = limits.largest * max(noise.distance.largest, self.unit * FLOORS.largest + floors[0])
        mean_square = limits.mean_square * max(noise.distance.mean_square, self.unit * FLOORS.mean_square + floors[1])
        sides = self.errors[1:] if self.independent else self.errors
        if any(side.largest > largest or side.mean_square > mean_square for side in sides):
            return False
        return not self._is_scaled(limits.systematic * noise.factor)

    def _is_scaled(self, allowed: float) -> bool:
        """Whether one side is the other times a factor that differs from 1 by more than is allowed.

        Roundings go up and down, and in many elements make no factor.
        """
        if self.reference.numel() < FACTOR_ELEMENTS or not has_digits(self.dtype):
            return False
        size, remainder = common_factor(*(in_float64(each) for each in (self.reference, self.candidate)))
        is_factor = size > self.unit * FACTOR_SIZE and remainder < size * FACTOR_REMAINDER
        return is_factor and size > max(allowed, self.unit * FACTOR_SIZE + SUMS * self.floors[0])


def common_factor(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[float, float]:
    """By how much the best factor between two tensors in float64 differs from 1, and what it leaves of the second."""
    expected, actual = reference.reshape(-1), candidate.reshape(-1)
    square = torch.vdot(expected, expected)
    if not float(square.abs()):
        return 0.0, 0.0
    factor = torch.vdot(expected, actual) / square
    return float((factor - 1).abs()), relative_distance(factor * expected, actual)


def middle(noises: Sequence[StepNoise]) -> StepNoise:
    """The middle one of an odd number of noises, by size: one run of several may turn a choice over by chance."""
    ordered = sorted(noises, key=lambda noise: noise.distance.mean_square)
    return ordered[len(ordered) // 2]
