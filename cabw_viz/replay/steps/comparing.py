"""Whole steps, run again and again from the same state in several manners, and held against the uncompiled one.

compare_steps ── for each place and dtype: _ground (the reference, twice)
     └─ for each manner: _candidate
          └─ _run: keep the state, load the first, call `repeats` times and judge each call, put back
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.numerics.perturb import Roundings
from cabw_viz.numerics.tolerance import coarsest
from cabw_viz.record.steps import StepCall, StepMatrix, StepRun
from cabw_viz.replay.steps.call_comparison import Judge
from cabw_viz.replay.steps.eager_noise import Noise
from cabw_viz.replay.steps.observing import Observed, observe
from cabw_viz.replay.steps.random_state import RandomState
from cabw_viz.replay.steps.step_plan import AGAIN, AS_IS, COMPILED_AUTOGRAD, EAGER, Manner, Plan, Source, Variant
from cabw_viz.replay.steps.step_under_test import State

T = TypeVar("T")

ROUNDINGS = 3
"""Runs with other roundings: in half precision one alone may miss a ReLU that another turns over."""


def compare_steps(plan: Plan) -> StepMatrix:
    """Run a step in every manner of a plan, each from the same state, and hold it against the uncompiled one.

    Afterwards parameters, buffers, `.grad`, training flags and random numbers are as before, whatever was raised.
    What Dynamo had compiled is dropped: it is compiled anew when it is called again.

    Raises:
        CabwError: this is no place to do it, or the step gives nothing to compare.
    """
    if torch_adapter.backward_is_running() or torch_adapter.compiled_autograd_is_on():
        raise CabwError(
            "compare() was called while a backward is running or compiled autograd is on",
            expected="neither: it switches compiled autograd on and off itself",
            try_="compare() outside of that block or hook",
        )
    random = RandomState()
    try:
        with torch.enable_grad():
            return _Comparing(plan, random).matrix()
    finally:
        random.restore()
        torch_adapter.reset_dynamo()


@dataclass(frozen=True)
class _Ground:
    """What the runs in one place and dtype are held against."""

    eager: list[Observed]
    again: StepRun
    """Eager once more."""
    as_is: list[Observed] | None = None
    """Where the step has compiled parts of its own: what it gives with them."""
    as_is_run: StepRun | None = None
    noise: Noise = field(default_factory=Noise)


class _Comparing:
    """One comparison on its way."""

    def __init__(self, plan: Plan, random: RandomState) -> None:
        self.plan, self.base = plan, plan.variants[0]
        self._random = random
        self._start: dict[str, torch.Tensor] | None = None
        self._own_backwards: list[bool | None] = [None] * plan.repeats
        self._grounds: dict[Variant, _Ground] = {}
        self._used: dict[str, tuple[float, float]] = {}
        self._notes: list[str] = []

    def matrix(self) -> StepMatrix:
        """Make all runs."""
        for variant in self.plan.variants:
            self._grounds[variant] = self._ground(variant)
        for variant, ground in self._grounds.items():
            self._grounds[variant] = replace(ground, noise=self._noise(variant, ground))
        runs = [run for variant in self.plan.variants for run in self._runs_of(variant)]
        used = tuple((dtype, *values) for dtype, values in sorted(self._used.items()))
        eager = self._grounds[self.base].eager
        values = dict.fromkeys(key for call in eager for key in call.values)
        return StepMatrix(
            tuple(runs),
            EAGER.words,
            self.plan.repeats,
            tuple(values),
            raised=tuple(call.raised for call in eager) if any(call.raised for call in eager) else (),
            tolerances=used,
            notes=tuple(dict.fromkeys(self._notes)),
        )

    def _runs_of(self, variant: Variant) -> list[StepRun]:
        """The runs of a step in one place and dtype; the first is eager, against itself or against the reference."""
        ground = self._grounds[variant]
        runs = [] if variant == self.base else self._across(variant)
        if variant == self.base and EAGER in self.plan.manners:
            runs.append(_with_noise(ground.again, ground.noise))
        own = [_with_noise(ground.as_is_run, ground.noise)] if ground.as_is_run else []
        others = [(manner, self.plan.source) for manner in self.plan.manners if manner is not EAGER]
        others += self.plan.against if variant == self.base else ()
        candidates = [self._candidate(manner, source, variant) for manner, source in others]
        return runs + self._with_rounding(own + candidates, variant)

    # -- the reference ---------------------------------------------------------------------------------------

    def _ground(self, variant: Variant) -> _Ground:
        """Run the step in eager, and then as it is: once more in eager, if it has no compiled parts of its own."""
        eager = self._run(EAGER, self.plan.source, variant, _kept)
        _something_to_compare(eager)
        if variant == self.base:
            self._own_backwards = [seen.own_backward for seen in eager]
        judge = Judge(eager, self._given, used=self._used)
        as_is: list[Observed] = []

        def keep(index: int, seen: Observed) -> StepCall:
            as_is.append(seen.kept())
            return judge(index, seen)

        before = torch_adapter.count_of_graphs()
        calls = self._run(AS_IS, self.plan.source, variant, keep)
        if torch_adapter.count_of_graphs() == before:
            return _Ground(eager, self._named(AGAIN, variant, calls))
        again = self._run(EAGER, self.plan.source, variant, judge)
        return _Ground(eager, self._named(AGAIN, variant, again), as_is, self._named(AS_IS, variant, calls))

    def _noise(self, variant: Variant, ground: _Ground) -> Noise:
        """How far eager is from itself, and from itself in a finer dtype where that was asked for."""
        none = Noise.of(ground.eager)
        noise = none.and_of(ground.again.calls)
        finer = [other for other in self.plan.variants if _is_finer(other, variant)]
        if finer:
            finest = min(finer, key=lambda other: torch.finfo(other.dtype or torch.float32).eps)
            noise = noise.and_of(self._judged_across(finest, variant))
            self._notes.append(f"the noise of {variant.dtype} contains its rounding, measured against {finest.dtype}")
        if not _is_steady(ground.again, none):
            self._notes.append(
                "eager differs from itself from one run to the next, far more than by rounding: the step has a state "
                "or random numbers beside its parameters; a function that builds the step, given without params, makes "
                "a fresh one for each run"
            )
            return none
        return noise

    def _with_rounding(self, runs: list[StepRun], variant: Variant) -> list[StepRun]:
        """The runs, where any is outside the tolerance, judged by what rounding alone does to eager."""
        ground = self._grounds[variant]
        mismatched = any(row.verdict == "mismatch" for run in runs for call in run.calls for row in call.rows)
        if not mismatched or not _is_steady(ground.again, Noise.of(ground.eager)):
            return runs
        judge = Judge(ground.eager, self._given, used=self._used)
        roundings, noise = Roundings(), ground.noise
        for _ in range(ROUNDINGS):
            calls = self._run(replace(EAGER, around=roundings.context), self.plan.source, variant, judge)
            noise = replace(noise.and_of(calls), dtype=coarsest(roundings.dtypes))
        self._notes.append(
            "what is outside the tolerance was also judged by what rounding does to eager, every result of which was "
            "changed in its last bit"
        )
        return [_with_noise(run, noise) for run in runs]

    # -- the others ------------------------------------------------------------------------------------------

    def _across(self, variant: Variant) -> list[StepRun]:
        """The step in eager elsewhere, against the reference; judged by the rounding of the coarser of the two."""
        run = self._named(EAGER, variant, self._judged_across(variant, self.base))
        coarser = variant if _is_finer(self.base, variant) else self.base
        return self._with_rounding([replace(run, reference=EAGER.name)], coarser)

    def _judged_across(self, variant: Variant, other: Variant) -> list[StepCall]:
        judge = Judge(self._grounds[other].eager, self._given, across=True, used=self._used)
        return [judge(index, seen) for index, seen in enumerate(self._grounds[variant].eager)]

    def _candidate(self, manner: Manner, source: Source, variant: Variant) -> StepRun:
        """A step in some manner, against eager in the same place; compiled autograd against the step as it is."""
        ground = self._grounds[variant]
        own = manner is COMPILED_AUTOGRAD and ground.as_is is not None
        reference = ground.as_is if own and ground.as_is is not None else ground.eager
        judge = Judge(reference, self._given, noise=ground.noise, used=self._used)
        before = manner.compiled() if manner.compiled else 0
        calls = self._run(manner, source, variant, judge)
        idle = manner.compiled is not None and manner.compiled() == before and not all(call.raised for call in calls)
        notes = ("nothing was compiled: this is eager",) if idle else ()
        return self._named(manner, variant, calls, AS_IS if own else EAGER, notes)

    def _named(
        self,
        manner: Manner,
        variant: Variant,
        calls: list[StepCall],
        reference: Manner = EAGER,
        notes: tuple[str, ...] = (),
    ) -> StepRun:
        """A run with its name and words: `cuda/aot_eager`."""
        where = variant.name(self.base)
        name, against = (f"{where}/{each.name}" if where else each.name for each in (manner, reference))
        words = f"{manner.words}, in {where}" if where else manner.words
        return StepRun(name, words, against, tuple(calls), notes)

    # -- running ---------------------------------------------------------------------------------------------

    @property
    def _given(self) -> tuple[float | None, float | None]:
        return self.plan.rtol, self.plan.atol

    def _run(self, manner: Manner, source: Source, variant: Variant, judge: Callable[[int, Observed], T]) -> list[T]:
        """Call a step several times in a row, from the state in which the first run began, and judge each call."""
        torch_adapter.reset_dynamo()
        self._random.restore()
        subject = source(variant)
        state = State(subject)
        results = []
        try:
            if self._start is None:
                self._start = state.values()
            state.load(self._start)
            self._random.restore()
            step = manner.prepare(subject)
            for index, own_backward in enumerate(self._own_backwards):
                with manner.around():
                    seen = observe(subject, step, self.plan.backward, own_backward)
                results.append(judge(index, seen))
        finally:
            state.put_back()
        return results


def _kept(_: int, seen: Observed) -> Observed:
    return seen.kept()


def _something_to_compare(calls: list[Observed]) -> None:
    """Refuse a step that ran and left neither a gradient nor a result."""
    told = ("gradient", "result")
    if any(call.raised or any(kind in told for kind, _ in call.values) for call in calls):
        return
    raise CabwError(
        "the step left no gradient in any of the parameters",
        expected="a loss that needs a gradient of them, or a step that calls backward itself",
        try_="compare(step, model), where step() returns the loss of that very model",
    )


def _is_finer(other: Variant, variant: Variant) -> bool:
    """Whether a variant differs from another in nothing but a dtype with more digits."""
    if other.dtype is None or variant.dtype is None or other.device != variant.device:
        return False
    same_numbers = other.dtype.is_complex == variant.dtype.is_complex
    return same_numbers and torch.finfo(other.dtype).eps < torch.finfo(variant.dtype).eps


def _is_steady(again: StepRun, noise: Noise) -> bool:
    """Whether eager's second run differs from the first by no more than rounding."""
    return all(noise.covers(row) for call in again.calls for row in call.rows)


def _with_noise(run: StepRun, noise: Noise) -> StepRun:
    """A run, its differences told as noise where they are that."""
    calls = tuple(replace(call, rows=tuple(map(noise.credited, call.rows))) for call in run.calls)
    return replace(run, calls=calls)
