"""Further measures of how far two gradients are apart, for those who ask for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch

from cabw_viz.errors import CabwError
from cabw_viz.record.options import MEASURES

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def cosine(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    """Cosine of the angle between the two as vectors, in float64; NaN where one of them is zero."""
    a, b = (_wide(side).reshape(-1) for side in (reference, candidate))
    norms = float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    return float(torch.vdot(a, b).real) / norms if norms else math.nan


def ulp(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    """The largest distance of two elements, counted in representable numbers of their dtype between them.

    The candidate is rounded to the reference's dtype first. 0 and -0 are the same number here.
    """
    a, b = (_ordered(side.to(reference.dtype)) for side in (reference, candidate))
    same_sign = (a < 0) == (b < 0)
    # The difference of two numbers of unlike sign may not fit; there it is a sum, and need not be exact.
    apart = torch.where(same_sign, (a - b).abs().double(), a.abs().double() + b.abs().double())
    return float(apart.max()) if apart.numel() else 0.0


def mean_square(reference: torch.Tensor, candidate: torch.Tensor) -> float:
    """Norm of the difference divided by the norm of the reference, in float64."""
    a, b = _wide(reference), _wide(candidate)
    norm, apart = (float(torch.linalg.vector_norm(side)) for side in (a, b - a))
    return apart / norm if norm else (math.inf if apart else 0.0)


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], float]] = dict(
    zip(MEASURES, (cosine, ulp, mean_square), strict=True)
)
"""By the name of their column: functions of two dense tensors of one shape, finite in every element."""


def measures_named(names: str | Sequence[str]) -> tuple[str, ...]:
    """The measures of these names, or of this one, each once.

    Raises:
        CabwError: there is none of a name; lists those there are.
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


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _ordered(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers in the order of a tensor's values, neighbours one apart."""
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    size = real.element_size()
    bits = real.contiguous().view(_INTEGERS[size]).to(torch.int64)
    magnitude = bits & (2 ** (8 * size - 1) - 1)
    return torch.where(bits < 0, -magnitude, bits)
