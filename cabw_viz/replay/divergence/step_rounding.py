"""Whether rounding explains what one step of a backward makes differently on two sides."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cabw_viz.numerics.compare import plain
from cabw_viz.numerics.tolerance import coarser, unit_of
from cabw_viz.record.divergence import Difference
from cabw_viz.record.kinds import GOOD
from cabw_viz.replay.divergence.node_comparison import brought_together
from cabw_viz.replay.steps.eager_noise import SUMS

HALF = 1e-5
"""A dtype whose rounding is above it is a half one."""

ROUNDINGS = 4
"""In another dtype saved tensors and gradients are rounded before the step, and its result after."""

MANY = 32
"""In fewer elements roundings may look like a factor."""

HALF_RATIO = 3.0
"""In half precision kernels sum in single precision and round once: two sides are about as far off as each other."""


@dataclass(frozen=True)
class Held:
    """What a step made on both sides of the same gradients."""

    reference: torch.Tensor
    candidate: torch.Tensor


def needs_float64(difference: Difference, reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    """Whether a step's own difference needs a closer look.

    In half precision torch.testing's tolerance is several times what one rounding takes, so the difference as a whole
    counts too: two sides that round once are apart by a third of a rounding or less, in the Euclidean norm.
    """
    if difference.verdict == "mismatch":
        return True
    if difference.verdict != "within_tolerance":
        return False
    unit = unit_of(coarser(reference.dtype, candidate.dtype))
    return unit > HALF and distance(*brought_together(plain(reference), plain(candidate))) > unit / 2


def judged_against_float64(difference: Difference, held: Held, exact: torch.Tensor, *, independent: bool) -> Difference:
    """The difference, as noise of rounding if both sides are about as far from the exact result; else a mismatch.

    A step that cancels most of what it sums is far from exact on either side; one that does something else is far on
    one side alone.

    Args:
        difference: the step's own.
        held: what it made.
        exact: what it made in double precision.
        independent: whether the graph as such is right here, so that a fault of the candidate cannot be in the exact
            result too. Then the candidate may be nearer to that than the reference is; otherwise that may be the very
            fault.
    """
    sides = plain(held.reference), plain(held.candidate)
    dtypes = [side.dtype for side in sides]
    unit = unit_of(coarser(*dtypes))
    errors = [distance(plain(exact).to(side.device), side) for side in sides]
    notes = [f"in float64: {errors[0]:.1e} off the reference, {errors[1]:.1e} off the candidate"]
    near, far = errors if independent else sorted(errors)
    if held.reference.dtype != held.candidate.dtype:
        # Where the reference is worse than one rounding, it shows by how much the step magnifies that.
        magnified = max(1.0, near / (unit_of(sides[0].dtype) or 1.0)) if independent else 1.0
        within = far <= ROUNDINGS * unit_of(sides[1].dtype if independent else coarser(*dtypes)) * magnified
    elif unit > HALF:
        within = far <= HALF_RATIO * near + unit / 8 and not is_scaled(*sides)
    else:
        within = far <= SUMS * (near + unit)
    if difference.verdict in GOOD and within:
        return difference
    return replace(
        difference,
        verdict="within_noise" if within else "mismatch",
        note="; ".join(filter(None, [difference.note, *notes])),
    )


def is_scaled(reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    """Whether one side is the other by a factor: roundings go up and down, and leave no such thing in many elements."""
    if reference.numel() < MANY or reference.shape != candidate.shape:
        return False
    wide = torch.complex128 if reference.is_complex() else torch.float64
    one, other = reference.to(wide).reshape(-1), candidate.to(wide).reshape(-1)
    factor = torch.vdot(one, other) / torch.vdot(one, one)
    apart = float((factor - 1).abs())
    return apart > unit_of(reference.dtype) / 2 and distance(factor * one, other) < apart / 2


def distance(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference."""
    wide = torch.complex128 if reference.is_complex() else torch.float64
    if reference.shape != candidate.shape:
        return float("inf")
    exact = reference.to(wide)
    size = float(torch.linalg.vector_norm(exact))
    apart = float(torch.linalg.vector_norm(candidate.to(wide) - exact))
    return apart / size if size else (float("inf") if apart else 0.0)
