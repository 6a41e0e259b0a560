"""One call of a step held against the same call of the reference."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from cabw_viz.numerics.compare import compare
from cabw_viz.numerics.tolerance import Tolerance, coarsest, tolerance_for
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.kinds import Verdict
from cabw_viz.record.steps import StepCall
from cabw_viz.replay.steps.eager_noise import Noise
from cabw_viz.replay.steps.observing import Key, Observed, Seen
from cabw_viz.runtime.gradient_snapshots import Gradient


@dataclass
class Judge:
    """Holds calls against those of a reference."""

    references: list[Observed]
    given: tuple[float | None, float | None]
    """rtol and atol, where the user gave them."""
    across: bool = False
    """Whether the two sides are meant to be on different devices or in different dtypes."""
    noise: Noise = field(default_factory=Noise)
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
        tolerance = self._tolerance(key, reference, candidate)
        if self.across and reference is not None and candidate is not None:
            candidate = _brought(candidate, reference.value)
        row = compare(name, reference, candidate, tolerance)
        return self.noise.credited(replace(row, kind=kind))

    def _tolerance(self, key: Key, *sides: Gradient | None) -> Tolerance:
        """That of the coarser side's dtype; a loss is no more exact than the gradients, whatever it was converted to.

        Other kernels round elsewhere, at the size of the largest values: an element near zero may be off as far as the
        largest. In float32 torch.testing's own absolute tolerance says as much, in half precision it does not.
        """
        dtypes = {side.value.dtype for side in sides if side is not None}
        dtype = coarsest(dtypes)
        if dtype is None:
            return self._noted(next(iter(dtypes)), tolerance_for(next(iter(dtypes)), *self.given))
        if key[0] != "gradient":
            dtype = coarsest({dtype, self._coarsest or dtype}) or dtype
        tolerance = tolerance_for(dtype, *self.given)
        if self.given[0] is None:
            tolerance = tolerance.for_other_kernels()
        return self._noted(dtype, tolerance)

    def _noted(self, dtype: torch.dtype, tolerance: Tolerance) -> Tolerance:
        self.used[str(dtype)] = (tolerance.rtol, tolerance.atol)
        return tolerance


def _brought(candidate: Gradient, reference: torch.Tensor) -> Gradient:
    """A gradient on the reference's device and in its dtype; complex numbers stay complex."""
    dtype = reference.dtype if reference.is_complex() == candidate.value.is_complex() else candidate.value.dtype
    return Gradient(candidate.value.to(reference.device, dtype), None)


def _texts(name: str, reference: Seen | None, candidate: Seen | None) -> GradientComparison:
    """Two values of which at least one is a text."""
    shown = [repr(side) if isinstance(side, str) else "a tensor" for side in (reference, candidate)]
    verdict: Verdict = "bitwise" if reference == candidate else "mismatch"
    if reference is None or candidate is None:
        verdict = "unexpected" if reference is None else "missing"
    note = {"bitwise": "", "missing": shown[0], "unexpected": shown[1]}.get(verdict, " | ".join(shown))
    return GradientComparison(name, verdict, None, None, (), "str", note=note)
