"""One call of a step held against the same call of the reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

from cabw_viz.live import Gradient
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.kinds import Verdict
from cabw_viz.record.steps import StepCall, StepRun
from cabw_viz.replay.compare import Tolerance, compare, tolerance_for
from cabw_viz.replay.observing import Key, Observed, Seen

NOISE_FACTOR = 2
"""Two eager runs are one sample of how far eager can be from itself; another run may well be a little further."""

Noise = Mapping[Key, float]
"""How far eager is from itself, in each value, as an absolute error."""


@dataclass
class Judge:
    """Holds calls against those of a reference."""

    references: list[Observed]
    given: tuple[float | None, float | None]
    """rtol and atol, where the user gave them."""
    across: bool = False
    """Whether the two sides are meant to be on different devices or in different dtypes."""
    noise: Noise = field(default_factory=dict)
    used: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The tolerance that was used for each dtype."""

    def __post_init__(self) -> None:
        dtypes = {
            seen.value.dtype
            for call in self.references
            for (kind, _), seen in call.values.items()
            if kind == "gradient" and isinstance(seen, Gradient)
        }
        self._coarsest = coarsest(dtypes)

    def __call__(self, index: int, seen: Observed) -> StepCall:
        """Judge one call."""
        reference = self.references[index]
        if seen.raised or reference.raised:
            return StepCall(index, (), seen.raised, reference.raised)
        keys = dict.fromkeys([*reference.values, *seen.values])
        order = sorted(keys, key=lambda key: ("gradient", "loss", "result", "buffer").index(key[0]))
        return StepCall(index, tuple(self._row(key, reference.values.get(key), seen.values.get(key)) for key in order))

    def _row(self, key: Key, reference: Seen | None, candidate: Seen | None) -> GradientComparison:
        kind, name = key
        if isinstance(reference, str) or isinstance(candidate, str):
            return replace(_texts(name, reference, candidate), kind=kind)
        if self.across and reference is not None and candidate is not None:
            candidate = _brought(candidate, reference.value)
        row = compare(name, reference, candidate, self._tolerance(key, reference or candidate))
        return credited(replace(row, kind=kind), self.noise.get(key))

    def _tolerance(self, key: Key, seen: Gradient | None) -> Tolerance:
        """That of the value's dtype; a loss is no more exact than the gradients, whatever it was converted to."""
        assert seen is not None  # a key stands on one side at least
        dtype = seen.value.dtype
        if (key[0] != "gradient" or self.across) and dtype.is_floating_point and self._coarsest is not None:
            dtype = coarsest({dtype, self._coarsest}) or dtype
        tolerance = tolerance_for(dtype, *self.given)
        if self.across and self.given[0] is None:  # a whole step in another dtype or on another device rounds anew
            tolerance = Tolerance(tolerance.rtol, max(tolerance.rtol, tolerance.atol))
        self.used[str(dtype)] = (tolerance.rtol, tolerance.atol)
        return tolerance


def coarsest(dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
    """The dtype with the fewest digits; None where there is none with digits."""
    floating = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    return max(floating, key=lambda dtype: (torch.finfo(dtype).eps, str(dtype)), default=None)


def _brought(candidate: Gradient, reference: torch.Tensor) -> Gradient:
    """A gradient on the reference's device and in its dtype; complex numbers stay complex."""
    dtype = reference.dtype if reference.is_complex() == candidate.value.is_complex() else candidate.value.dtype
    return Gradient(candidate.value.to(reference.device, dtype), None)


def _texts(name: str, reference: Seen | None, candidate: Seen | None) -> GradientComparison:
    """Two values of which at least one is a text."""
    shown = [side if isinstance(side, str) else "a tensor" for side in (reference, candidate)]
    verdict: Verdict = "bitwise" if reference == candidate else "mismatch"
    if reference is None or candidate is None:
        verdict = "unexpected" if reference is None else "missing"
    note = "" if verdict == "bitwise" else f"{shown[0]!r} | {shown[1]!r}"
    return GradientComparison(name, verdict, None, None, (), "str", note=note)


# -- eager's own noise ---------------------------------------------------------------------------------------


def credited(row: GradientComparison, noise: float | None) -> GradientComparison:
    """The row with eager's own noise; a mismatch that is no larger is one of the noise."""
    if noise is None:
        return row
    row = replace(row, noise=noise)
    error = row.max_abs_err
    if row.verdict == "mismatch" and error is not None and error <= NOISE_FACTOR * noise:
        return replace(row, verdict="within_noise")
    return row


def noise_of(run: StepRun) -> Noise:
    """How far eager is from itself in each value, the most of all calls.

    What differs by more than the square root of the dtype's precision is not noise: the step then has a state or
    random numbers of its own, and would excuse any fault.
    """
    noise: dict[Key, float] = {}
    for row in (row for call in run.calls for row in call.rows):
        if row.max_abs_err is not None and is_noise(row):
            key = row.kind, row.name
            noise[key] = max(noise.get(key, 0.0), row.max_abs_err)
    return noise


def is_noise(row: GradientComparison) -> bool:
    """Whether a difference between two eager runs is small enough to come from rounding."""
    dtype = getattr(torch, row.dtype.removeprefix("torch."), None)
    if (
        row.max_rel_err is None
        or not isinstance(dtype, torch.dtype)
        or not (dtype.is_floating_point or dtype.is_complex)
    ):
        return row.verdict == "bitwise"
    return row.max_rel_err <= math.sqrt(torch.finfo(dtype).eps)


def most(*noises: Noise) -> Noise:
    """The largest noise of each value."""
    keys = dict.fromkeys(key for noise in noises for key in noise)
    return {key: max(noise.get(key, 0.0) for noise in noises) for key in keys}
