"""Whether rounding explains what one step of a backward makes differently on two sides."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cabw_viz.numerics.compare import plain
from cabw_viz.numerics.constants import (
    CLOSER_LOOK,
    DTYPE_ROUNDINGS,
    FACTOR_ELEMENTS,
    FACTOR_REMAINDER,
    FACTOR_SIZE,
    HALF_RATIO,
    HALF_SLACK,
    HALF_UNIT,
    SUMS,
)
from cabw_viz.numerics.distance import in_float64, relative_distance
from cabw_viz.numerics.tolerance import coarser, unit_of
from cabw_viz.record.divergence import Difference
from cabw_viz.record.kinds import GOOD
from cabw_viz.replay.divergence.node_comparison import in_coarser_dtype


@dataclass(frozen=True)
class StepOutputs:
    """The results of a step on both sides, for the same inputs."""

    reference: torch.Tensor
    candidate: torch.Tensor


def needs_float64(difference: Difference, reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    """Whether a step's own difference must be judged against float64.

    In half precision torch.testing's tolerance is several times what one rounding takes, so there a difference within
    it is judged too, if it is more than part of a rounding in the Euclidean norm; see `CLOSER_LOOK`.
    """
    if difference.verdict == "mismatch":
        return True
    if difference.verdict != "within_tolerance":
        return False
    unit = unit_of(coarser(reference.dtype, candidate.dtype))
    if unit <= HALF_UNIT:
        return False
    return relative_distance(*in_coarser_dtype(plain(reference), plain(candidate))) > unit * CLOSER_LOOK


def judge_against_float64(
    difference: Difference, outputs: StepOutputs, exact: torch.Tensor, *, independent: bool
) -> Difference:
    """The difference, as `within_noise` if both sides are about as far from the exact result; else a mismatch.

    A step that cancels most of what it sums is far from exact on either side; one that computes something else is far
    on one side alone.

    Args:
        difference: the step's own.
        outputs: its results.
        exact: its result in double precision.
        independent: whether the graph as such is right here, so that a fault of the candidate cannot be in the exact
            result too. Then the candidate may be nearer to that than the reference is; otherwise that may be the very
            fault.
    """
    sides = plain(outputs.reference), plain(outputs.candidate)
    errors = [relative_distance(plain(exact).to(side.device), side) for side in sides]
    note = f"in float64: {errors[0]:.1e} off the reference, {errors[1]:.1e} off the candidate"
    is_noise = _is_noise(sides, errors, independent=independent)
    if difference.verdict in GOOD and is_noise:
        return difference
    return replace(
        difference,
        verdict="within_noise" if is_noise else "mismatch",
        note="; ".join(filter(None, [difference.note, note])),
    )


def _is_noise(sides: tuple[torch.Tensor, torch.Tensor], errors: list[float], *, independent: bool) -> bool:
    """Whether rounding explains the distances of the reference and of the candidate from the exact result."""
    near, far = errors if independent else sorted(errors)
    reference, candidate = (side.dtype for side in sides)
    unit = unit_of(coarser(reference, candidate))
    if reference != candidate:
        # Where the reference is worse than one rounding, it shows by how much the step magnifies that.
        magnified = max(1.0, near / (unit_of(reference) or 1.0)) if independent else 1.0
        return far <= DTYPE_ROUNDINGS * (unit_of(candidate) if independent else unit) * magnified
    if unit > HALF_UNIT:
        return far <= HALF_RATIO * near + unit * HALF_SLACK and not is_scaled(*sides)
    return far <= SUMS * (near + unit)


def is_scaled(reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    """Whether one side is the other times a factor: roundings go up and down, and in many elements make no factor."""
    if reference.numel() < FACTOR_ELEMENTS or reference.shape != candidate.shape:
        return False
    expected, actual = in_float64(reference).reshape(-1), in_float64(candidate).reshape(-1)
    factor = torch.vdot(expected, actual) / torch.vdot(expected, expected)
    size = float((factor - 1).abs())
    remainder = relative_distance(factor * expected, actual)
    return size > unit_of(reference.dtype) * FACTOR_SIZE and remainder < size * FACTOR_REMAINDER
