"""Further measures of how far two gradients are apart, which `measures=` adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch

from cabw_viz.errors import CabwError
from cabw_viz.numerics.distance import in_float64, relative_distance
from cabw_viz.record.options import MEASURES

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def cosine(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    """Cosine of the angle between the two as vectors, in float64; NaN where one of them is zero."""
    a, b = (in_float64(side).reshape(-1) for side in (reference, candidate))
    norms = float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    return float(torch.vdot(a, b).real) / norms if norms else math.nan


def ulp(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    """The largest distance of two elements, counted in representable numbers of their dtype between them.

    The candidate is rounded to the reference's dtype first. 0 and -0 are the same number here.
    """
    a, b = (_ordinals(side.to(reference.dtype)) for side in (reference, candidate))
    same_sign = (a < 0) == (b < 0)
    # The difference of two numbers of unlike sign may not fit; there it is a sum, and need not be exact.
    distances = torch.where(same_sign, (a - b).abs().double(), a.abs().double() + b.abs().double())
    return float(distances.max()) if distances.numel() else 0.0


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], float]] = dict(
    zip(MEASURES, (cosine, ulp, relative_distance), strict=True)
)
"""By the name of their column: functions of two dense tensors of one shape, finite in every element."""


def measures_named(names: str | Sequence[str]) -> tuple[str, ...]:
    """The measures of these names, or of this one, each once.

    Raises:
        CabwError: there is no measure of a name; the error lists the measures.
    """
    listed = ", ".join(MEASURES)
    if not isinstance(names, Iterable):
        raise CabwError(f"measures={names!r}", expected=f"names of {listed}", try_='measures=("cosine", "ulp")')
    names = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    for name in names:
        if name not in FUNCTIONS:
            raise CabwError(
                f"there is no measure {name!r}", expected=f"any of {listed}", try_='measures=("cosine", "ulp")'
            )
    return names


def _ordinals(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers in the order of a tensor's values; neighbouring values differ by one."""
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    size = real.element_size()
    bits = real.contiguous().view(_INTEGERS[size]).to(torch.int64)
    magnitude = bits & (2 ** (8 * size - 1) - 1)
    return torch.where(bits < 0, -magnitude, bits)
