"""Eager's own noise: how far it is from itself, from run to run and by rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

from cabw_viz.numerics.compare import plain
from cabw_viz.numerics.tolerance import coarsest
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.steps import StepCall
from cabw_viz.replay.steps.observing import Key, Observed
from cabw_viz.runtime.gradient_snapshots import Gradient

SUMS = 32
"""In single and double precision kernels sum in other orders, and may be off by as many times more than eager: kernels
of inductor on the CPU were by up to 15 times, in batch norms after convolutions."""
HALF_SUMS = 4
"""In half precision kernels sum in single precision, and noise is known from few samples: 3.5 times were seen."""


@dataclass(frozen=True)
class Noise:
    """How far eager is from itself."""

    errors: Mapping[Key, float] = field(default_factory=dict)
    """The largest absolute error of each value; nothing of one that was not measured."""
    largest: float = 0.0
    """The largest element of all gradients of the step."""
    dtype: torch.dtype | None = None
    """The coarsest dtype in which the step computes, as far as that is known."""

    @classmethod
    def of(cls, references: Iterable[Observed]) -> Noise:
        """None yet, for calls that gave these values."""
        grads = [
            plain(seen.value)
            for call in references
            for (kind, _), seen in call.values.items()
            if kind == "gradient" and isinstance(seen, Gradient)
        ]
        sizes = (float(grad.abs().max()) for grad in grads if grad.numel())
        largest = max((size for size in sizes if math.isfinite(size)), default=0.0)
        return cls({}, largest, coarsest(grad.dtype for grad in grads))

    def and_of(self, calls: Iterable[StepCall]) -> Noise:
        """With what these calls of eager, rounded otherwise or made once more, differ by."""
        errors = dict(self.errors)
        for row in (row for call in calls for row in call.rows):
            if row.max_abs_err is not None:
                key = row.kind, row.name
                errors[key] = max(errors.get(key, 0.0), row.max_abs_err)
        return replace(self, errors=errors)

    def credited(self, row: GradientComparison) -> GradientComparison:
        """The row with eager's noise; a mismatch that is no larger is one of the noise."""
        noise = self.errors.get((row.kind, row.name))
        row = replace(row, noise=noise)
        if row.verdict != "mismatch" or row.max_abs_err is None or not noise:
            return row
        times = HALF_SUMS if self._dtype(row) in (torch.bfloat16, torch.float16) else SUMS
        explained = row.max_abs_err <= min(times * noise, self._limit(row))
        return replace(row, verdict="within_noise") if explained else row

    def covers(self, row: GradientComparison) -> bool:
        """Whether a difference between two eager runs is small enough to come from rounding."""
        if row.max_abs_err is None:
            return row.verdict in {"nonfinite", "bitwise"}  # what is not finite has no distance
        return row.max_abs_err <= self._limit(row)

    def _limit(self, row: GradientComparison) -> float:
        """How large a difference may be and still be called noise.

        More than the square root of the precision tells of a state or random numbers of the step's own, or of a jump in
        a gradient, and would excuse any fault. It is taken of the largest gradient of all, for one that should be zero
        consists of rounding.
        """
        dtype = self._dtype(row)
        if dtype is None:
            return 0.0
        return math.sqrt(torch.finfo(dtype).eps) * (self.largest if row.kind == "gradient" else _size(row))

    def _dtype(self, row: GradientComparison) -> torch.dtype | None:
        """In what a value was computed; None for one that is not rounded."""
        own = getattr(torch, row.dtype.removeprefix("torch."), None)
        if not isinstance(own, torch.dtype) or coarsest({own}) is None:
            return None
        return coarsest({own, self.dtype or own})


def _size(row: GradientComparison) -> float:
    """The largest element of a row's reference, as far as its errors tell."""
    if not row.max_abs_err or not row.max_rel_err or math.isinf(row.max_rel_err):
        return 0.0
    return row.max_abs_err / row.max_rel_err
