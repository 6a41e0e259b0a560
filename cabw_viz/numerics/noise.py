"""What rounding explains: both sides of a comparison against a float64 run of the same graph.

Two right answers differ by rounding, and how much depends on the gradient: one that should be zero consists of nothing
else. So each side's distance from a float64 run is measured, and what rounding may do is measured on neither of them:
the float64 run is made again, each result of an operator changed at random within the precision that was computed in. A
difference beyond the tolerance is noise if neither side is further from float64 than a few times that, in the worst
element, over all, and along the gradient itself: rounding averages out over the elements, a wrong factor does not.

Kernels that sum in the precision of their results (layer norm's in bfloat16 on the CPU) round within an operator too.
What is still in question is judged by the spread of such runs on those kernels themselves.

A fault that every run of the graph has, in a custom Function or an operator, is in the float64 run too. Then the side
without it is the far one, and the verdict is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from cabw_viz.numerics.constants import (
    FLOORS,
    FULL_LIMITS,
    HALF_LIMITS,
    PROPORTION,
    SYSTEMATIC_SPREAD,
    noise_limit,
)
from cabw_viz.numerics.distance import ZERO, Distance, displayed_error
from cabw_viz.numerics.precision import Precision
from cabw_viz.record.comparison import GradientComparison


@dataclass(frozen=True)
class Noise:
    """What rounding alone does to one gradient."""

    reference: Distance = ZERO
    """In the precision of the reference, and on its kernels, if these were run."""
    candidate: Distance = ZERO
    """The same for the candidate, divided by how much coarser its precision is."""

    def maximum(self, other: Noise) -> Noise:
        """The larger in each respect."""
        return Noise(self.reference.maximum(other.reference), self.candidate.maximum(other.candidate))


def proportional_noise(large: Distance, small: Distance, unit: float) -> tuple[Distance, bool]:
    """What rounding does in proportion to its size, and whether there is something else.

    Rounding changes a gradient in proportion. A comparison inside a kernel, or memory that nobody wrote, does not.

    Args:
        large: what a perturbation did, in units of that perturbation.
        small: what a much smaller one of the same direction did, likewise.
        unit: the spacing of numbers around 1: no noise is told below it.
    """
    figures = [(large.largest, small.largest), (large.mean_square, small.mean_square)]
    figures = [(max(a, unit * FLOORS.largest), max(b, unit * FLOORS.largest)) for a, b in figures]
    if all(1 / PROPORTION <= b / a <= PROPORTION for a, b in figures):
        return large, False
    if any(b / a > PROPORTION for a, b in figures):  # the smallest change does as much: nothing of it is rounding
        return ZERO, True
    return small, True


def is_bounded(error: Distance, precision: Precision, known: float, exact: torch.Tensor) -> bool:
    """Whether what rounding to a coarser dtype does is no more than rounding can do.

    It is where it is small, or in proportion to what rounding in the finer dtype does, or where the gradient is so
    small that the coarser dtype has few numbers left for it.

    Args:
        error: what it does.
        precision: of both sides.
        known: what rounding does by the finer dtype, in the units of the coarser one; in the mean square.
        exact: the gradient.
    """
    limits = torch.finfo(precision.candidate)
    is_small = float(exact.abs().nan_to_num().max()) < limits.smallest_normal / limits.eps if exact.numel() else True
    limit = max(noise_limit(precision.unit_of_candidate), FULL_LIMITS.mean_square * known)
    return is_small or error.mean_square <= limit


@dataclass(frozen=True)
class Float64Errors:
    """How far both sides of a comparison are from float64."""

    reference: Distance
    candidate: Distance

    @property
    def largest(self) -> float:
        """The larger of the two, in the worst element."""
        return max(self.reference.largest, self.candidate.largest)

    def row_with_errors(self, row: GradientComparison) -> GradientComparison:
        """A row with these errors."""
        errors = displayed_error(self.reference.largest), displayed_error(self.candidate.largest)
        return replace(row, reference_err=errors[0], candidate_err=errors[1])

    def is_explained(self, noise: Noise, elements: int, precision: Precision) -> bool:
        """Whether neither side is further off than rounding takes it."""
        return max(self._ratios(noise, elements, precision)) <= 1

    def row_with_verdict(self, row: GradientComparison, noise: Noise, precision: Precision) -> GradientComparison:
        """A row that is not equal to the last bit, with the verdict that rounding leads to.

        Args:
            row: outside or inside the tolerance.
            noise: what rounding alone does to the gradient.
            precision: how both sides round.
        """
        ratios = self._ratios(noise, row.elements, precision)
        if row.verdict == "mismatch" and max(ratios) <= 1:
            return replace(row, verdict="within_noise")
        if row.verdict == "within_tolerance" and precision.half and max(ratios[2], ratios[5]) > 1:
            # The tolerance of half precision is wide enough for a wrong factor to pass.
            factor = self.candidate.systematic - self.reference.systematic
            note = f"larger by {factor:+.2%} as a whole: more than rounding gives"
            return replace(row, verdict="mismatch", note=note)
        return row

    def _ratios(self, noise: Noise, elements: int, precision: Precision) -> tuple[float, ...]:
        unit, halves = precision.unit, precision.halves
        return (
            *_ratios_to_limits(self.reference, noise.reference, elements, unit, 1.0, half=halves[0]),
            *_ratios_to_limits(self.candidate, noise.candidate, elements, unit, precision.coarser, half=halves[1]),
        )


def _ratios_to_limits(
    side: Distance, noise: Distance, elements: int, unit: float, coarser: float, *, half: bool
) -> tuple[float, float, float]:
    """A side's distance, divided by what is allowed, in each respect; up to 1 is in order."""
    limits = HALF_LIMITS if half else FULL_LIMITS
    spread = SYSTEMATIC_SPREAD / math.sqrt(max(elements, 1))
    mean_square = max(noise.mean_square, unit * FLOORS.mean_square)
    systematic = max(abs(noise.systematic), spread * mean_square, unit * FLOORS.systematic)
    return (
        side.largest / (coarser * limits.largest * max(noise.largest, unit * FLOORS.largest)),
        side.mean_square / (coarser * limits.mean_square * mean_square),
        abs(side.systematic) / (coarser * limits.systematic * systematic),
    )
