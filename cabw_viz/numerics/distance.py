"""How far two gradients are apart: three figures against a float64 gradient, or one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cabw_viz.numerics.constants import SMALLEST_SIZE


@dataclass(frozen=True)
class Distance:
    """How far a gradient is from the float64 one, in units of that."""

    largest: float
    """Largest absolute difference by largest absolute value."""
    mean_square: float
    """Norm of the difference by norm."""
    systematic: float
    """By which part of itself the gradient is too large: its component along the float64 one, less one."""

    def maximum(self, other: Distance) -> Distance:
        """The larger in each respect."""
        return Distance(
            max(self.largest, other.largest),
            max(self.mean_square, other.mean_square),
            max(abs(self.systematic), abs(other.systematic)),
        )

    def with_direction(self, part: float) -> Distance:
        """The same, where at least a part of the mean square may be along the gradient."""
        return Distance(self.largest, self.mean_square, max(abs(self.systematic), part * self.mean_square))

    def divided_by(self, divisor: float) -> Distance:
        """Each figure, divided."""
        return Distance(self.largest / divisor, self.mean_square / divisor, self.systematic / divisor)


ZERO = Distance(0.0, 0.0, 0.0)


def distance(value: torch.Tensor, exact: torch.Tensor) -> Distance:
    """How far a dense gradient is from the float64 one of its shape, where both are finite."""
    exact = exact.reshape(-1)
    value = value.to(exact.device, exact.dtype).reshape(-1)
    finite = exact.isfinite() & value.isfinite()
    difference = value - exact
    if not bool(finite.all()):
        exact, difference = exact[finite], difference[finite]
    if not exact.numel():
        return ZERO
    norm = max(float(torch.linalg.vector_norm(exact)), SMALLEST_SIZE)
    largest = max(float(exact.abs().max()), SMALLEST_SIZE)
    along = float(torch.vdot(exact, difference).real)
    return Distance(
        float(difference.abs().max()) / largest,
        float(torch.linalg.vector_norm(difference)) / norm,
        along / (norm * norm),
    )


def relative_distance(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    """Norm of the difference by norm of the reference, in float64; infinite for tensors of different shapes."""
    if reference.shape != candidate.shape:
        return math.inf
    expected, actual = in_float64(reference), in_float64(candidate)
    norm, difference = (float(torch.linalg.vector_norm(each)) for each in (expected, actual - expected))
    return difference / norm if norm else (math.inf if difference else 0.0)


def in_float64(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in float64, or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def displayed_error(error: float) -> float:
    """The error to display: infinite if the exact gradient is zero and this one is not."""
    return math.inf if error > 1 / math.sqrt(SMALLEST_SIZE) else error
