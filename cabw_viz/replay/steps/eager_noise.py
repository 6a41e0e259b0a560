"""The noise of a step in eager: how far it is from itself, from run to run and by rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.numerics.compare import plain
from cabw_viz.numerics.constants import HALF_CHOICES, HALF_SUMS, SUMS, noise_limit
from cabw_viz.numerics.perturb import LastBitRounding, PerturbedResults
from cabw_viz.numerics.tolerance import HALF_DTYPES, coarsest, has_digits, unit_of
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.steps import StepCall
from cabw_viz.replay.steps.observing import CallResult, ValueKey
from cabw_viz.runtime.gradient_snapshots import Gradient


class EagerPerturbations:
    """Contexts in which eager rounds differently, each in its own way: every result is changed in its last bit.

    Args:
        only_backward: whether results of the forward, recomputed or not, stay as they are. Then every choice that a
            forward makes (an index, a mask, the side of a ReLU) stays too, and gradients only round.
    """

    def __init__(self, *, only_backward: bool = False) -> None:
        self._rounding, self._only_backward = LastBitRounding(), only_backward

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The dtypes of all results that were changed so far."""
        return self._rounding.dtypes

    @contextmanager
    def context(self) -> Iterator[None]:
        """The next of the contexts."""
        kind = _PerturbedBackward if self._only_backward else PerturbedResults
        with torch_adapter.nothing_compiled(), kind(self._rounding, only_differentiable=True):
            yield


class _PerturbedBackward(PerturbedResults):
    """Changes the results of a backward that are no part of a forward recomputed in it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch_adapter.backward_is_running() and not torch.is_grad_enabled():
            return super().__torch_dispatch__(func, types, args, kwargs)
        return torch_adapter.call_below_autograd(func, args, kwargs or {})


NOT_REPRODUCIBLE = "eager's own differs as much from one run to the next"
TURNED_OVER = (
    "eager's own changes as much when its results change in the last bit: rounding turns a choice over (an index, a "
    "mask, the side of a ReLU), and what else differs cannot be told from that"
)


@dataclass(frozen=True)
class EagerNoise:
    """How far eager is from itself."""

    errors: Mapping[ValueKey, float] = field(default_factory=dict)
    """The largest absolute error of each value; a value that was not measured is absent."""
    largest: float = 0.0
    """The largest element of all gradients of the step."""
    dtype: torch.dtype | None = None
    """The coarsest dtype in which the step computes, as far as that is known."""
    of_backward: Mapping[ValueKey, float] | None = None
    """The same errors where nothing but the backward rounds differently; None where that was not measured."""
    unsteady: frozenset[ValueKey] = frozenset()
    """Values that are not the same from one run to the next, by more than rounding."""

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

    def maximum(self, other: EagerNoise) -> EagerNoise:
        """This noise with the larger of both errors of each value."""
        errors = dict(self.errors)
        for key, error in other.errors.items():
            errors[key] = max(errors.get(key, 0.0), error)
        return replace(self, errors=errors)

    def apply_to(self, row: GradientComparison) -> GradientComparison:
        """The row with eager's noise; a mismatch that the noise explains is `within_noise`.

        What a choice that rounding turned over may explain is `not_judged`, and what eager itself does not give twice
        is `not_reproducible`.
        """
        row = replace(row, noise=self.errors.get((row.kind, row.name)))
        if (row.kind, row.name) in self.unsteady and row.verdict not in STRUCTURAL:
            return replace(row, verdict="not_reproducible", note=_notes(row.note, NOT_REPRODUCIBLE))
        if row.verdict != "mismatch" or not self._is_explained(row):
            return row
        if row.max_abs_err is not None and (row.max_abs_err <= self._limit(row) or self._has_chosen_otherwise(row)):
            return replace(row, verdict="within_noise")
        if self.of_backward is None:
            return row
        return replace(row, verdict="not_judged", note=_notes(row.note, TURNED_OVER))

    def leaves_open(self, row: GradientComparison) -> bool:
        """Whether a row is a mismatch only for want of `of_backward`."""
        return row.verdict == "mismatch" and self.of_backward is None and self._is_explained(row)

    def uncovered(self, calls: Iterable[StepCall]) -> frozenset[ValueKey]:
        """The values of further eager calls that differ by more than rounding."""
        return frozenset((row.kind, row.name) for call in calls for row in call.rows if not self.covers(row))

    def covers(self, row: GradientComparison) -> bool:
        """Whether a difference between two eager runs is small enough to come from rounding.

        In units of the value itself, or, for a gradient that should be zero, of the largest gradient of all.
        """
        if row.max_abs_err is None:
            return row.verdict == "bitwise"  # a text
        dtype = self._dtype(row)
        if dtype is None:
            return row.max_abs_err == 0
        rounding = _times(dtype) * unit_of(dtype) * self.largest if row.kind == "gradient" else 0.0
        return row.max_abs_err <= max(noise_limit(unit_of(dtype)) * _size(row), rounding)

    def _is_explained(self, row: GradientComparison) -> bool:
        """Whether a difference is no more than a few times eager's noise."""
        dtype = self._dtype(row)
        if row.max_abs_err is None or not row.noise or dtype is None:
            return False
        return row.max_abs_err <= _times(dtype) * row.noise

    def _has_chosen_otherwise(self, row: GradientComparison) -> bool:
        """Whether a difference in half precision is one that a few choices that turn over make; see `HALF_CHOICES`."""
        if row.max_abs_err is None or row.norm_err is None or not row.noise or self._dtype(row) not in HALF_DTYPES:
            return False
        return row.norm_err <= HALF_CHOICES.norm and row.max_abs_err <= HALF_CHOICES.times * row.noise

    def _limit(self, row: GradientComparison) -> float:
        """How large a difference may be and still be called noise; see `noise_limit`.

        In units of the value itself. A gradient that should be zero consists of rounding: it may differ by a few times
        what rounding in the backward does to it, and by no more than the limit in units of the largest gradient.
        """
        dtype = self._dtype(row)
        if dtype is None:
            return 0.0
        limit = noise_limit(unit_of(dtype))
        if row.kind != "gradient" or self.of_backward is None:
            return limit * _size(row)
        rounding = _times(dtype) * self.of_backward.get((row.kind, row.name), 0.0)
        return max(limit * _size(row), min(rounding, limit * self.largest))

    def _dtype(self, row: GradientComparison) -> torch.dtype | None:
        """The dtype in which a value was computed; None for one that is not rounded."""
        own = getattr(torch, row.dtype.removeprefix("torch."), None)
        if not isinstance(own, torch.dtype) or not has_digits(own):
            return None
        return coarsest({own, self.dtype or own})


STRUCTURAL = frozenset({"missing", "unexpected", "metadata"})
"""Verdicts that hold whatever the values are."""


def _times(dtype: torch.dtype) -> int:
    """How many times eager's noise another kernel may be off."""
    return HALF_SUMS if dtype in HALF_DTYPES else SUMS


def _notes(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _size(row: GradientComparison) -> float:
    """The largest element of a row's reference, as far as its errors show it."""
    if not row.max_abs_err or not row.max_rel_err or math.isinf(row.max_rel_err):
        return 0.0
    return row.max_abs_err / row.max_rel_err
