"""How far two gradients are apart: three figures against a float64 gradient, or one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cabw_viz.numerics.chunks import chunks
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
    square = square_of_difference = along = largest = largest_difference = 0.0
    for exact_chunk, value_chunk in chunks(exact, value):
        expected = exact_chunk.reshape(-1)
        difference = value_chunk.reshape(-1).to(expected.device, expected.dtype) - expected
        products = _products(expected, difference)
        if not all(map(math.isfinite, products)):
            finite = expected.isfinite() & difference.isfinite()
            expected, difference = expected[finite], difference[finite]
            products = _products(expected, difference)
        if not expected.numel():
            continue
        square, square_of_difference, along = (
            before + now for before, now in zip((square, square_of_difference, along), products, strict=True)
        )
        largest = max(largest, float(expected.abs().max()))
        largest_difference = max(largest_difference, float(difference.abs().max()))
    norm, size = max(math.sqrt(square), SMALLEST_SIZE), max(largest, SMALLEST_SIZE)
    return Distance(largest_difference / size, math.sqrt(square_of_difference) / norm, along / (norm * norm))


def _products(expected: torch.Tensor, difference: torch.Tensor) -> tuple[float, float, float]:
    """The squares of both norms, and the component of the second along the first."""
    pairs = (expected, expected), (difference, difference), (expected, difference)
    square, square_of_difference, along = (float(torch.vdot(*pair).real) for pair in pairs)
    return square, square_of_difference, along


def relative_distance(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    """Norm of the difference by norm of the reference, in float64; infinite for tensors of different shapes."""
    if reference.shape != candidate.shape:
        return math.inf
    square = square_of_difference = 0.0
    for pair in chunks(reference, candidate):
        expected, actual = map(in_float64, pair)
        square += _square(expected)
        square_of_difference += _square(actual - expected)
    norm, difference = math.sqrt(square), math.sqrt(square_of_difference)
    return difference / norm if norm else (math.inf if difference else 0.0)


def _square(tensor: torch.Tensor) -> float:
    flat = tensor.reshape(-1)
    return float(torch.vdot(flat, flat).real)


def in_float64(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in float64, or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def displayed_error(error: float) -> float:
    """The error to display: infinite if the exact gradient is zero and this one is not."""
    return math.inf if error > 1 / math.sqrt(SMALLEST_SIZE) else error
