"""How far two gradients may differ, by the dtype in which they were computed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from cabw_viz.errors import CabwError
from cabw_viz.numerics.constants import TOLERANCE_STEPS

TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
"""(rtol, atol) by dtype, as the reference of `torch.testing.assert_close` lists them."""


@dataclass(frozen=True)
class Tolerance:
    """How far two gradients may differ.

    An element may differ by `rtol` times its own size plus `atol` times the largest size in the whole reference:
    torch.testing's rule, read at the scale of the gradient. So an absolute tolerance that is meant for values around 1
    does not excuse a gradient of 1e-9, and an element near zero in a large gradient raises no alarm.
    """

    rtol: float
    atol: float
    floor: float = 0.0
    """What an element may differ by whatever the sizes: numbers near the smallest of a dtype round by a fixed step."""

    def for_other_kernels(self) -> Tolerance:
        """The same with an `atol` no less than the `rtol`: other kernels round at the size of the largest values."""
        return Tolerance(self.rtol, max(self.rtol, self.atol), self.floor)


def tolerance_for(dtype: torch.dtype, rtol: float | None = None, atol: float | None = None) -> Tolerance:
    """The tolerance for a dtype: `rtol` and `atol` if they are not None, or else torch.testing's default.

    Raises:
        CabwError: one of the two is given without the other, or is negative or no number.
    """
    if (rtol is None) != (atol is None):
        raise CabwError(f"rtol={rtol}, atol={atol}", expected="both or none", try_="rtol=1e-4, atol=1e-5")
    if rtol is not None and atol is not None:
        if not all(map(_is_tolerance, (rtol, atol))):
            raise CabwError(f"rtol={rtol!r}, atol={atol!r}", expected="two numbers from 0", try_="rtol=1e-4, atol=1e-5")
        return Tolerance(rtol, atol)
    return Tolerance(*TOLERANCES.get(dtype, (0.0, 0.0)), floor=TOLERANCE_STEPS * step_of(dtype))


def _is_tolerance(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


class UsedTolerances:
    """The tolerance that a comparison used for each dtype."""

    def __init__(self) -> None:
        self._by_dtype: dict[str, Tolerance] = {}

    def add(self, dtype: torch.dtype, tolerance: Tolerance) -> None:
        """Note a tolerance."""
        self._by_dtype[str(dtype)] = tolerance

    def rows(self) -> tuple[tuple[str, float, float], ...]:
        """(dtype, rtol, atol), in the order of the names."""
        return tuple((dtype, each.rtol, each.atol) for dtype, each in sorted(self._by_dtype.items()))


# -------------------------------------------------------------------------------------------------- digits of dtypes

HALF_DTYPES = frozenset({torch.bfloat16, torch.float16})


def has_digits(dtype: torch.dtype) -> bool:
    """Whether numbers of a dtype are rounded: floating and complex ones are."""
    return dtype.is_floating_point or dtype.is_complex


def coarsest(dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
    """The dtype with the fewest digits; None if none of them is rounded."""
    rounded = [dtype for dtype in dtypes if has_digits(dtype)]
    return max(rounded, key=lambda dtype: (torch.finfo(dtype).eps, str(dtype)), default=None)


def coarser(first: torch.dtype, *others: torch.dtype) -> torch.dtype:
    """The dtype with the fewest digits, which sets the tolerance of a comparison; the first if none is rounded."""
    return coarsest((first, *others)) or first


def unit_of(dtype: torch.dtype) -> float:
    """The distance from 1 to the next number of a dtype; 0 for whole numbers."""
    return torch.finfo(dtype).eps if has_digits(dtype) else 0.0


def step_of(dtype: torch.dtype) -> float:
    """The smallest positive number of a dtype, by which its subnormal numbers are apart; 0 for whole numbers.

    Below `torch.finfo(dtype).smallest_normal` a number is rounded by this step, and not in proportion to its size.
    """
    if not has_digits(dtype):
        return 0.0
    limits = torch.finfo(dtype)
    return limits.smallest_normal * limits.eps
