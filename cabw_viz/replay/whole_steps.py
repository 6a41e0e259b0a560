"""Whole steps, run again and again from the same state in several manners, and held against the uncompiled one.

compare_steps ── for each variant: the reference, twice (its noise)
     └─ for each manner: _run ── keep, load, call `repeats` times, judge each call, put back
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.steps import StepCall, StepMatrix, StepRun
from cabw_viz.replay.judging import Judge, Noise, credited, is_noise, most, noise_of
from cabw_viz.replay.observing import Observed, observe
from cabw_viz.replay.random_state import RandomState
from cabw_viz.replay.step_plan import EAGER, Manner, Plan, Source, Variant
from cabw_viz.replay.subject import State

T = TypeVar("T")


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
        torch_adapter.forget_compiled_code()


class _Comparing:
    """One comparison on its way."""

    def __init__(self, plan: Plan, random: RandomState) -> None:
        self.plan, self.base = plan, plan.variants[0]
        self._random = random
        self._start: dict[str, torch.Tensor] | None = None
        self._references: dict[Variant, list[Observed]] = {}
        self._noise: dict[Variant, Noise] = {}
        self._used: dict[str, tuple[float, float]] = {}
        self._notes: list[str] = []

    def matrix(self) -> StepMatrix:
        """Make all runs."""
        own = {variant: self._references_of(variant) for variant in self.plan.variants}
        for variant, run in own.items():
            self._measure_noise(variant, run)
        runs = [run for variant in self.plan.variants for run in self._runs_of(variant, own[variant])]
        runs += [self._candidate(manner, source, self.base) for manner, source in self.plan.against]
        used = tuple((dtype, *values) for dtype, values in sorted(self._used.items()))
        return StepMatrix(tuple(runs), self.plan.repeats, used, tuple(dict.fromkeys(self._notes)))

    def _runs_of(self, variant: Variant, own: StepRun) -> list[StepRun]:
        """The runs of a step in one place and dtype; the first is eager, against itself or against the reference."""
        runs = [] if variant == self.base else [self._across(variant, self.base)]
        for manner in self.plan.manners:
            if manner is not EAGER:
                runs.append(self._candidate(manner, self.plan.source, variant))
            elif variant == self.base:
                runs.append(_with_noise(own, self._noise[variant]))
        return runs

    # -- the reference ---------------------------------------------------------------------------------------

    def _references_of(self, variant: Variant) -> StepRun:
        """Run the step in eager twice; keep what the first run gave, and return the second held against it."""
        self._references[variant] = self._run(EAGER, self.plan.source, variant, _kept)
        _something_to_compare(self._references[variant])
        judge = Judge(self._references[variant], self._given, used=self._used)
        calls = self._run(EAGER, self.plan.source, variant, judge)
        words = EAGER.words
        return StepRun(EAGER.name, f"{words}, once more", words, tuple(calls))

    def _measure_noise(self, variant: Variant, own: StepRun) -> None:
        """Eager's noise: how far it is from itself, and from itself in a finer dtype where that was asked for."""
        noise = noise_of(own)
        finer = [other for other in self.plan.variants if _is_finer(other, variant)]
        if finer:
            finest = min(finer, key=lambda other: torch.finfo(other.dtype or torch.float32).eps)
            noise = most(noise, noise_of(self._across(finest, variant)))
            self._notes.append(f"the noise of {variant.dtype} contains its rounding, measured against {finest.dtype}")
        self._noise[variant] = noise
        wild = next((row for call in own.calls for row in call.rows if not is_noise(row)), None)
        if wild is not None:
            what = wild.name or wild.kind
            self._notes.append(
                f"eager differs from itself from one run to the next, far more than by rounding, first in {what}: the "
                "step has a state or random numbers beside its parameters; a function that builds the step, with "
                "params=None, gives each run a fresh one"
            )

    # -- the others ------------------------------------------------------------------------------------------

    def _across(self, variant: Variant, base: Variant) -> StepRun:
        """A step in eager elsewhere, against another place."""
        judge = Judge(self._references[base], self._given, across=True, used=self._used)
        calls = tuple(judge(index, seen) for index, seen in enumerate(self._references[variant]))
        name = variant.name(base)
        return StepRun(f"{name}/eager", f"{EAGER.words}, in {name}", EAGER.words, calls)

    def _candidate(self, manner: Manner, source: Source, variant: Variant) -> StepRun:
        """A step in some manner, against eager in the same place."""
        judge = Judge(self._references[variant], self._given, noise=self._noise[variant], used=self._used)
        before = manner.compiled() if manner.compiled else 0
        calls = self._run(manner, source, variant, judge)
        notes = ("nothing was compiled: this is eager",) if manner.compiled and manner.compiled() == before else ()
        where = variant.name(self.base)
        words, reference = (f"{words}, in {where}" if where else words for words in (manner.words, EAGER.words))
        return StepRun(f"{where}/{manner.name}" if where else manner.name, words, reference, tuple(calls), notes)

    # -- running ---------------------------------------------------------------------------------------------

    @property
    def _given(self) -> tuple[float | None, float | None]:
        return self.plan.rtol, self.plan.atol

    def _run(self, manner: Manner, source: Source, variant: Variant, judge: Callable[[int, Observed], T]) -> list[T]:
        """Call a step several times in a row, from the state in which the first run began, and judge each call."""
        torch_adapter.forget_compiled_code()
        self._random.restore()
        subject = source(variant)
        state = State(subject)
        known = self._references.get(variant)
        results = []
        try:
            if self._start is None:
                self._start = state.values()
            state.load(self._start)
            self._random.restore()
            step = manner.prepare(subject.step)
            for index in range(self.plan.repeats):
                own_backward = known[index].own_backward if known else None
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


def _with_noise(run: StepRun, noise: Noise) -> StepRun:
    """Eager's second run, its differences to the first told as noise where they are that."""
    calls = (
        replace(call, rows=tuple(credited(row, noise.get((row.kind, row.name))) for row in call.rows))
        for call in run.calls
    )
    return replace(run, calls=tuple[StepCall, ...](calls))
