"""Whole steps, run several times from the same state in several modes, and compared with the uncompiled step.

compare_steps ── for each device and dtype: _baseline (the reference, twice)
     └─ for each mode: _candidate
          └─ StepRunner.run: back up the state, load the first one, call `repeats` times and compare each call, restore
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.numerics.constants import EAGER_PERTURBATIONS
from cabw_viz.numerics.tolerance import UsedTolerances, coarsest
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.kinds import GOOD
from cabw_viz.record.steps import StepCall, StepMatrix, StepRun
from cabw_viz.replay.steps.call_comparison import CallComparer
from cabw_viz.replay.steps.eager_noise import EagerNoise, EagerPerturbations
from cabw_viz.replay.steps.observing import CallResult
from cabw_viz.replay.steps.running import StepRunner
from cabw_viz.replay.steps.step_plan import (
    AS_IS,
    COMPILED_AUTOGRAD,
    EAGER_RERUN,
    EAGER_STEP,
    Plan,
    StepFactory,
    StepMode,
    Variant,
)
from cabw_viz.runtime.random_state import RandomState

EAGERS_NUMBERS = (
    "inductor ran with torch._inductor.config.fallback_random=True, so that it draws the random numbers that eager "
    "draws; by default it draws others"
)
OTHER_NUMBERS = (
    "it draws other random numbers than eager, and what differs may be these: compare with dropout off, in "
    "model.eval() or with p=0"
)
NOT_STEADY = (
    "eager differs from itself from one run to the next, far more than by rounding: the step reads uninitialised "
    "memory, or has a state or random numbers beside its parameters; a function that builds the step, given without "
    "params, makes a fresh one for each run"
)


def compare_steps(plan: Plan) -> StepMatrix:
    """Run a step in every mode of a plan, each time from the same state, and compare it with the uncompiled step.

    Afterwards parameters, buffers, `.grad`, training flags, attributes of modules, optimizers and random numbers are as
    before, whatever was raised. Inductor draws the random numbers that eager draws. Dynamo's compiled code is dropped:
    functions are compiled again when they are next called.

    Raises:
        CabwError: a backward is running, compiled autograd is on, or the step leaves nothing to compare.
    """
    if torch_adapter.backward_is_running() or torch_adapter.compiled_autograd_is_on():
        raise CabwError(
            "compare() was called while a backward is running or compiled autograd is on",
            expected="neither: it switches compiled autograd on and off itself",
            try_="compare() outside of that block or hook",
        )
    random = RandomState()
    try:
        has_own_numbers, before = torch_adapter.inductor_has_own_random_numbers(), torch_adapter.count_of_inductor()
        with torch.enable_grad(), torch_adapter.random_numbers_of_eager():
            comparison = _StepComparison(plan, random)
            matrix = comparison.matrix()
        used_inductor = torch_adapter.count_of_inductor() != before
        if has_own_numbers and used_inductor and comparison.draws:
            matrix = replace(matrix, notes=(*matrix.notes, EAGERS_NUMBERS))
        return matrix
    finally:
        random.restore()
        torch_adapter.reset_dynamo()


@dataclass(frozen=True)
class _Baseline:
    """The reference of all runs on one device and in one dtype."""

    eager: list[CallResult]
    rerun: StepRun
    """Eager once more."""
    as_is: list[CallResult] | None = None
    """Where the step has compiled parts of its own: its results with them."""
    as_is_run: StepRun | None = None
    noise: EagerNoise = field(default_factory=EagerNoise)


class _StepComparison:
    """One comparison of whole steps."""

    def __init__(self, plan: Plan, random: RandomState) -> None:
        self.plan, self.base = plan, plan.variants[0]
        self._runner = StepRunner(plan, random)
        self._baselines: dict[Variant, _Baseline] = {}
        self._used = UsedTolerances()
        self._notes: list[str] = []

    @property
    def draws(self) -> bool:
        """Whether the step draws random numbers in eager."""
        return any(call.draws for baseline in self._baselines.values() for call in baseline.eager)

    def matrix(self) -> StepMatrix:
        """Make all runs."""
        for variant in self.plan.variants:
            self._baselines[variant] = self._baseline(variant)
        for variant, baseline in self._baselines.items():
            self._baselines[variant] = replace(baseline, noise=self._noise(variant, baseline))
        runs = [run for variant in self.plan.variants for run in self._runs_of(variant)]
        eager = self._baselines[self.base].eager
        values = dict.fromkeys(key for call in eager for key in call.values)
        return StepMatrix(
            tuple(runs),
            EAGER_STEP.description,
            self.plan.repeats,
            tuple(values),
            raised=tuple(call.raised for call in eager) if any(call.raised for call in eager) else (),
            tolerances=self._used.rows(),
            notes=tuple(dict.fromkeys(self._notes)),
        )

    def _runs_of(self, variant: Variant) -> list[StepRun]:
        """The runs of a step on one device and in one dtype, the first of them in eager."""
        baseline = self._baselines[variant]
        runs = [] if variant == self.base else self._across(variant)
        if variant == self.base and EAGER_STEP in self.plan.modes:
            runs.append(_with_noise(baseline.rerun, baseline.noise))
        own = [_with_noise(baseline.as_is_run, baseline.noise)] if baseline.as_is_run else []
        others = [(mode, self.plan.factory) for mode in self.plan.modes if mode is not EAGER_STEP]
        others += self.plan.against if variant == self.base else ()
        candidates = [self._candidate(mode, factory, variant) for mode, factory in others]
        return runs + self._with_rounding(own + candidates, variant)

    # -- the reference ---------------------------------------------------------------------------------------

    def _baseline(self, variant: Variant) -> _Baseline:
        """Run the step in eager, and then as it is: once more in eager, if it has no compiled parts of its own."""
        eager = self._runner.reference(variant)
        compare_call = CallComparer(eager, self._tolerances, used=self._used)
        as_is: list[CallResult] = []
        compiled_calls: list[None] = []

        def compare_and_keep(index: int, result: CallResult) -> StepCall:
            as_is.append(result.copy())
            return compare_call(index, result)

        watched = replace(
            AS_IS, context=lambda: torch_adapter.watched_compiled_calls(lambda: compiled_calls.append(None))
        )
        before = torch_adapter.count_of_graphs()
        calls = self._runner.run(watched, self.plan.factory, variant, compare_and_keep)
        if not compiled_calls or torch_adapter.count_of_graphs() == before:
            return _Baseline(eager, self._step_run(EAGER_RERUN, variant, calls))
        rerun = self._runner.run(EAGER_STEP, self.plan.factory, variant, compare_call)
        as_is_run = self._step_run(AS_IS, variant, calls)
        return _Baseline(eager, self._step_run(EAGER_RERUN, variant, rerun), as_is, as_is_run)

    def _noise(self, variant: Variant, baseline: _Baseline) -> EagerNoise:
        """How far eager is from itself, and from itself in a finer dtype where the plan has one."""
        none = EagerNoise.none(baseline.eager)
        noise = none.including(baseline.rerun.calls)
        finer = [other for other in self.plan.variants if _is_finer(other, variant)]
        if finer:
            finest = min(finer, key=lambda other: torch.finfo(other.dtype or torch.float32).eps)
            noise = noise.including(self._calls_across(finest, variant))
            self._notes.append(f"the noise of {variant.dtype} contains its rounding, measured against {finest.dtype}")
        unsteady = none.uncovered(baseline.rerun.calls)
        if unsteady:
            self._notes.append(NOT_STEADY)
            return replace(none, unsteady=unsteady)
        return noise

    def _with_rounding(self, runs: list[StepRun], variant: Variant) -> list[StepRun]:
        """The runs; if any is outside the tolerance, with the verdicts that perturbed eager runs lead to."""
        noise = self._baselines[variant].noise
        if noise.unsteady or not any(row.verdict == "mismatch" for row in _rows(runs)):
            return runs
        perturbed = self._perturbed(EagerPerturbations(), variant)
        noise = replace(noise.maximum(perturbed), dtype=perturbed.dtype)
        self._notes.append(
            "what is outside the tolerance was also judged by what rounding does to eager, every result of which was "
            "changed in its last bit"
        )
        runs = [_with_noise(run, noise) for run in runs]
        if not any(noise.leaves_open(row) for row in _rows(runs)):
            return runs
        noise = replace(noise, of_backward=self._perturbed(EagerPerturbations(only_backward=True), variant).errors)
        return [_with_noise(run, noise) for run in runs]

    def _perturbed(self, perturbations: EagerPerturbations, variant: Variant) -> EagerNoise:
        """How far eager is from itself when its results are changed in their last bits, and in which dtype."""
        eager = self._baselines[variant].eager
        compare_call = CallComparer(eager, self._tolerances, used=self._used)
        noise = EagerNoise.none(eager)
        for _ in range(EAGER_PERTURBATIONS):
            mode = replace(EAGER_STEP, context=perturbations.context)
            calls = self._runner.run(mode, self.plan.factory, variant, compare_call)
            noise = noise.including(calls)
            raised = next((call.raised for call in calls if call.raised and not call.reference_raised), "")
            if raised:
                self._notes.append(f"eager with changed results raises, so rounding is not known: {raised}")
                break
        return replace(noise, dtype=coarsest(perturbations.dtypes) or noise.dtype)

    # -- the others ------------------------------------------------------------------------------------------

    def _across(self, variant: Variant) -> list[StepRun]:
        """The step in eager on another device or in another dtype, against the reference.

        It is judged by the rounding of the coarser of the two.
        """
        run = self._step_run(EAGER_STEP, variant, self._calls_across(variant, self.base))
        coarser = variant if _is_finer(self.base, variant) else self.base
        return self._with_rounding([replace(run, reference=EAGER_STEP.name)], coarser)

    def _calls_across(self, variant: Variant, other: Variant) -> list[StepCall]:
        """The eager calls of one variant, compared with those of another."""
        compare_call = CallComparer(self._baselines[other].eager, self._tolerances, across=True, used=self._used)
        return [compare_call(index, result) for index, result in enumerate(self._baselines[variant].eager)]

    def _candidate(self, mode: StepMode, factory: StepFactory, variant: Variant) -> StepRun:
        """A step in some mode, against eager of the same variant; compiled autograd against the step as it is."""
        baseline = self._baselines[variant]
        against_as_is = mode is COMPILED_AUTOGRAD and baseline.as_is is not None
        reference = baseline.as_is if against_as_is and baseline.as_is is not None else baseline.eager
        compare_call = CallComparer(reference, self._tolerances, noise=baseline.noise, used=self._used)
        count = mode.compiled_count
        before = count() if count else 0
        calls = self._runner.run(mode, factory, variant, compare_call)
        idle = count is not None and count() == before and not all(call.raised for call in calls)
        notes = ["nothing was compiled: this is eager"] if idle else []
        if compare_call.draws_otherwise and any(row.verdict not in GOOD for call in calls for row in call.rows):
            notes.append(OTHER_NUMBERS)
        return self._step_run(mode, variant, calls, AS_IS if against_as_is else EAGER_STEP, tuple(notes))

    def _step_run(
        self,
        mode: StepMode,
        variant: Variant,
        calls: list[StepCall],
        reference: StepMode = EAGER_STEP,
        notes: tuple[str, ...] = (),
    ) -> StepRun:
        """A run with its name, such as `cuda/aot_eager`, and its description."""
        where = variant.name(self.base)
        name, against = (f"{where}/{each.name}" if where else each.name for each in (mode, reference))
        description = f"{mode.description}, in {where}" if where else mode.description
        return StepRun(name, description, against, tuple(calls), notes)

    @property
    def _tolerances(self) -> tuple[float | None, float | None]:
        return self.plan.rtol, self.plan.atol


def _is_finer(other: Variant, variant: Variant) -> bool:
    """Whether a variant differs from another in nothing but a dtype with more digits."""
    if other.dtype is None or variant.dtype is None or other.device != variant.device:
        return False
    same_numbers = other.dtype.is_complex == variant.dtype.is_complex
    return same_numbers and torch.finfo(other.dtype).eps < torch.finfo(variant.dtype).eps


def _rows(runs: list[StepRun]) -> Iterator[GradientComparison]:
    return (row for run in runs for call in run.calls for row in call.rows)


def _with_noise(run: StepRun, noise: EagerNoise) -> StepRun:
    """A run, with eager's noise applied to every row."""
    calls = tuple(replace(call, rows=tuple(map(noise.apply_to, call.rows))) for call in run.calls)
    return replace(run, calls=calls)
