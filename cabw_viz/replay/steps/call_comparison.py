"""One call of a step, compared with the same call of the reference."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cabw_viz.numerics.compare import aligned, compare, plain, zeros_where_not_finite
from cabw_viz.numerics.distance import relative_distance
from cabw_viz.numerics.tolerance import Tolerance, UsedTolerances, coarsest, tolerance_for
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.kinds import Verdict
from cabw_viz.record.steps import StepCall
from cabw_viz.replay.steps.eager_noise import EagerNoise
from cabw_viz.replay.steps.observing import CallResult, CallValue, ValueKey
from cabw_viz.runtime.gradient_snapshots import Gradient


@dataclass
class CallComparer:
    """Compares calls with those of a reference."""

    references: list[CallResult]
    tolerances: tuple[float | None, float | None]
    """The user's rtol and atol; None for torch.testing's."""
    across: bool = False
    """Whether the two sides are meant to be on different devices or in different dtypes."""
    noise: EagerNoise = field(default_factory=EagerNoise)
    used: UsedTolerances = field(default_factory=UsedTolerances)
    draws_otherwise: bool = False
    """Whether a call drew other random numbers than the reference, or more or fewer of them."""

    def __post_init__(self) -> None:
        dtypes = {
            value.value.dtype
            for call in self.references
            for (kind, _), value in call.values.items()
            if kind == "gradient" and isinstance(value, Gradient)
        }
        self._coarsest = coarsest(dtypes)

    def __call__(self, index: int, result: CallResult) -> StepCall:
        """Compare one call."""
        reference = self.references[index]
        self.draws_otherwise |= reference.draws and result.random_state != reference.random_state
        if result.raised or reference.raised:
            return StepCall(index, (), result.raised, reference.raised)
        keys = dict.fromkeys([*reference.values, *result.values])
        order = sorted(keys, key=lambda key: ("gradient", "loss", "result", "buffer").index(key[0]))
        rows = (self._row(key, reference.values.get(key), result.values.get(key)) for key in order)
        return StepCall(index, tuple(rows))

    def _row(self, key: ValueKey, reference: CallValue | None, candidate: CallValue | None) -> GradientComparison:
        kind, name = key
        if isinstance(reference, str) or isinstance(candidate, str):
            return replace(_text_comparison(name, reference, candidate), kind=kind)
        tolerance = self._tolerance(key, reference, candidate)
        if self.across and reference is not None and candidate is not None:
            candidate = aligned(candidate, reference.value)
        row = compare(name, reference, candidate, tolerance)
        if row.verdict == "mismatch" and reference is not None and candidate is not None:
            sides = zeros_where_not_finite(plain(reference.value), plain(candidate.value))
            row = replace(row, norm_err=relative_distance(*sides))
        return self.noise.apply_to(replace(row, kind=kind))

    def _tolerance(self, key: ValueKey, *sides: Gradient | None) -> Tolerance:
        """The tolerance for the coarser side's dtype, or for that of the gradients, if it is coarser still.

        A loss is no more exact than the gradients, whatever dtype it was converted to. Other kernels round at other
        places, at the size of the largest values: an element near zero may be off as far as the largest. In float32
        torch.testing's own absolute tolerance allows that, in half precision it does not.
        """
        dtypes = {side.value.dtype for side in sides if side is not None}
        dtype = coarsest(dtypes)
        if dtype is None:
            dtype = next(iter(dtypes))
            tolerance = tolerance_for(dtype, *self.tolerances)
        else:
            if key[0] != "gradient":
                dtype = coarsest({dtype, self._coarsest or dtype}) or dtype
            tolerance = tolerance_for(dtype, *self.tolerances)
            if self.tolerances[0] is None:
                tolerance = tolerance.for_other_kernels()
        self.used.add(dtype, tolerance)
        return tolerance


def _text_comparison(name: str, reference: CallValue | None, candidate: CallValue | None) -> GradientComparison:
    """Two values, at least one of them a text."""
    texts = [repr(side) if isinstance(side, str) else "a tensor" for side in (reference, candidate)]
    verdict: Verdict = "bitwise" if reference == candidate else "mismatch"
    if reference is None or candidate is None:
        verdict = "unexpected" if reference is None else "missing"
    note = {"bitwise": "", "missing": texts[0], "unexpected": texts[1]}.get(verdict, " | ".join(texts))
    return GradientComparison(name, verdict, None, None, (), "str", note=note)
