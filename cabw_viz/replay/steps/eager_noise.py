"""The noise of a step in eager: how far it is from itself, from run to run and by rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from cabw_viz.numerics.compare import plain
from cabw_viz.numerics.constants import HALF_SUMS, SUMS, noise_limit
from cabw_viz.numerics.perturb import LastBitFactors, PerturbedResults
from cabw_viz.numerics.tolerance import HALF_DTYPES, coarsest, has_digits, unit_of
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.steps import StepCall
from cabw_viz.replay.steps.observing import CallResult, ValueKey
from cabw_viz.runtime.gradient_snapshots import Gradient


class EagerPerturbations:
    """Contexts in which eager rounds differently, each in its own way: every result is changed in its last bit."""

    def __init__(self) -> None:
        self._factors = LastBitFactors()

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The dtypes of all results that were changed so far."""
        return self._factors.dtypes

    @contextmanager
    def context(self) -> Iterator[None]:
        """The next of the contexts."""
        with (
            torch.compiler.set_stance("force_eager"),
            PerturbedResults(self._factors, only_differentiable=True),
        ):
            yield


@dataclass(frozen=True)
class EagerNoise:
    """How far eager is from itself."""

    errors: Mapping[ValueKey, float] = field(default_factory=dict)
    """The largest absolute error of each value; a value that was not measured is absent."""
    largest: float = 0.0
    """The largest element of all gradients of the step."""
    dtype: torch.dtype | None = None
    """The coarsest dtype in which the step computes, as far as that is known."""

    @classmethod
    def none(cls, references: Iterable[CallResult]) -> EagerNoise:
        """No noise yet, for calls with these results."""
        grads = [
            plain(value.value)
            for call in references
            for (kind, _), value in call.values.items()
            if kind == "gradient" and isinstance(value, Gradient)
        ]
        sizes = (float(grad.abs().max()) for grad in grads if grad.numel())
        largest = max((size for size in sizes if math.isfinite(size)), default=0.0)
        return cls({}, largest, coarsest(grad.dtype for grad in grads))

    def including(self, calls: Iterable[StepCall]) -> EagerNoise:
        """This noise and the differences of further eager calls, perturbed or made once more."""
        errors = dict(self.errors)
        for row in (row for call in calls for row in call.rows):
            if row.max_abs_err is not None:
                key = row.kind, row.name
                errors[key] = max(errors.get(key, 0.0), row.max_abs_err)
        return replace(self, errors=errors)

    def apply_to(self, row: GradientComparison) -> GradientComparison:
        """The row with eager's noise; a mismatch that the noise explains is `within_noise`."""
        noise = self.errors.get((row.kind, row.name))
        row = replace(row, noise=noise)
        if row.verdict != "mismatch" or row.max_abs_err is None or not noise:
            return row
        times = HALF_SUMS if self._dtype(row) in HALF_DTYPES else SUMS
        is_explained = row.max_abs_err <= min(times * noise, self._limit(row))
        return replace(row, verdict="within_noise") if is_explained else row

    def covers(self, row: GradientComparison) -> bool:
        """Whether a difference between two eager runs is small enough to come from rounding."""
        if row.max_abs_err is None:
            return row.verdict in {"nonfinite", "bitwise"}  # what is not finite has no distance
        return row.max_abs_err <= self._limit(row)

    def _limit(self, row: GradientComparison) -> float:
        """How large a difference may be and still be called noise; see `noise_limit`.

        In units of the largest gradient of all, for one that should be zero consists of rounding.
        """
        dtype = self._dtype(row)
        if dtype is None:
            return 0.0
        return noise_limit(unit_of(dtype)) * (self.largest if row.kind == "gradient" else _size(row))

    def _dtype(self, row: GradientComparison) -> torch.dtype | None:
        """The dtype in which a value was computed; None for one that is not rounded."""
        own = getattr(torch, row.dtype.removeprefix("torch."), None)
        if not isinstance(own, torch.dtype) or not has_digits(own):
            return None
        return coarsest({own, self.dtype or own})


def _size(row: GradientComparison) -> float:
    """The largest element of a row's reference, as far as its errors show it."""
    if not row.max_abs_err or not row.max_rel_err or math.isinf(row.max_rel_err):
        return 0.0
    return row.max_abs_err / row.max_rel_err
