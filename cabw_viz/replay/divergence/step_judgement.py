"""Judges what steps make differently for the same inputs: whether rounding explains it.

StepJudge.judge
├─ _judge_by_the_other_side   one run in double precision: both sides are about as far from it
├─ _judge_by_float64_noise    what is then still open: more such runs, changed at random as rounding would change them
└─ _judge_by_kernels          the rest, and steps that cannot run in double precision: such runs on their own kernels

Of a step that gives different results in two runs, nothing can be said but that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch

from cabw_viz.errors import CabwError
from cabw_viz.numerics.compare import plain, zeros_where_not_finite
from cabw_viz.numerics.constants import FINE_SIZE, FINE_UNIT, KERNEL_RUNS, SMALLER_CHANGE, noise_limit
from cabw_viz.numerics.distance import relative_distance
from cabw_viz.numerics.tolerance import unit_of
from cabw_viz.record.kinds import GOOD, Verdict
from cabw_viz.replay.divergence.gradient_sites import GradientSites
from cabw_viz.replay.divergence.node_comparison import NodeComparison
from cabw_viz.replay.divergence.step_rounding import (
    StepNoise,
    StepOutputs,
    middle,
    noise_between,
    smooth_noise,
)
from cabw_viz.replay.divergence.step_runs import OtherSide, Rounding, RoundingDtypes, StepRuns, saved_answers
from cabw_viz.replay.placement.target import Target
from cabw_viz.replay.replay import Replay

NOT_REPRODUCIBLE = "two runs of this step alone on the same gradients give different results"


@dataclass(frozen=True)
class Question:
    """The results of a step on both sides, for the same inputs, that differ by more than may be taken for granted."""

    reference: torch.Tensor
    candidate: torch.Tensor

    @property
    def unit(self) -> float:
        """The coarser of the two sides' spacings of numbers around 1."""
        return max(unit_of(self.reference.dtype), unit_of(self.candidate.dtype))


class StepJudge:
    """Judges the questions of one search.

    Args:
        replay: the graph at the target of the candidate; its backend does not matter.
        sites: its steps.
        other_side: the gradients with which the steps begin.
        questions: by site.
        comparisons: of the same sites and others; their verdicts are replaced.
        reproduced: the sites, of those that it is called with, where a fault of the candidate cannot be in a float64
            run of the graph too.
    """

    def __init__(
        self,
        replay: Replay,
        sites: GradientSites,
        other_side: OtherSide,
        questions: dict[str, Question],
        comparisons: dict[str, NodeComparison],
        reproduced: Callable[[Collection[str]], frozenset[str]],
    ) -> None:
        self._replay, self._sites, self._other_side = replay, sites, saved_answers(other_side)
        self._questions, self._comparisons = dict(questions), comparisons
        self._reproduced = reproduced(questions)
        self._outputs: dict[str, StepOutputs] = {}
        """By site, of those that can run in double precision."""
        self.notes: list[str] = []

    def judge(self) -> None:
        """Replace the verdicts of all questions."""
        candidate = self._replay.at(self._replay.target.placement)
        dtypes = RoundingDtypes(self._sites, self._other_side, candidate.graph, fused=self._replay.target.compiles)
        exact = self._replay.at(Target(dtype=torch.float64))
        try:
            self._judge_by_the_other_side(exact, dtypes)
            if self._outputs.keys() & self._questions.keys():
                self._judge_by_float64_noise(exact, dtypes)
        except CabwError as error:
            self.notes.append(f"differences could not be judged in double precision: {error.seen}")
        if self._questions:
            self._judge_by_kernels(candidate, dtypes)

    def _runs(self, replay: Replay, names: Collection[str], dtypes: RoundingDtypes) -> StepRuns:
        return StepRuns(replay, self._sites, self._other_side, names, dtypes)

    def _settle(self, name: str, verdict: Verdict, note: str = "") -> None:
        """Give the verdict on a question; a difference that agrees stays as it is if it is in order."""
        del self._questions[name]
        comparison = self._comparisons[name]
        difference = comparison.difference
        if difference.verdict in GOOD and verdict in GOOD:
            return
        if difference.verdict == "nonfinite" and verdict in GOOD:
            note = "; ".join(filter(None, (note, "beyond what the coarser dtype holds")))
        notes = "; ".join(filter(None, dict.fromkeys((difference.note, note))))
        self._comparisons[name] = replace(comparison, difference=replace(difference, verdict=verdict, note=notes))

    # -- one run in double precision -----------------------------------------------------------------------------

    def _judge_by_the_other_side(self, exact: Replay, dtypes: RoundingDtypes) -> None:
        runs = self._runs(exact, self._questions, dtypes)
        values = runs.values()
        reasons = list(runs.failures.values())
        if reasons:
            more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            self.notes.append(f"some steps could not be judged in double precision: {reasons[0]}{more}")
        for name, value in values.items():
            question = self._questions[name]
            if self._comparisons[name].difference.verdict == "nonfinite" and not self._is_range(name, value):
                self._settle(name, "nonfinite")
                continue
            outputs = StepOutputs.of(
                question.reference, question.candidate, value, independent=name in self._reproduced
            )
            self._outputs[name] = outputs
            if outputs.is_as_good_as_the_other():
                self._settle(name, "within_noise", outputs.note)

    def _is_range(self, name: str, exact: torch.Tensor) -> bool:
        """Whether the elements that are not finite on one side are so for want of range or digits of its dtype.

        They are if the other side and the exact result are finite there, and either the user's own run is the side and
        the graph makes the same of it in its dtype, or the exact result is beyond the dtype's range.
        """
        question = self._questions[name]
        reference, candidate = plain(question.reference), plain(question.candidate)
        value = plain(exact).to(reference.device)
        is_finite = [torch.isfinite(side) for side in (reference, candidate.to(reference.device))]
        if reference.shape != value.shape or is_finite[0].shape != is_finite[1].shape or name not in self._reproduced:
            return False
        in_reference_alone, in_candidate_alone = is_finite[1] & ~is_finite[0], is_finite[0] & ~is_finite[1]
        if not bool(torch.isfinite(value)[in_reference_alone | in_candidate_alone].all()):
            return False
        if unit_of(reference.dtype) > unit_of(candidate.dtype) and not bool(in_candidate_alone.any()):
            return True
        largest = torch.finfo(candidate.dtype).max
        overflows = value[in_candidate_alone].abs() >= largest / 2
        return bool(overflows.all()) and not bool(in_reference_alone.any())

    # -- more runs in double precision ---------------------------------------------------------------------------

    def _judge_by_float64_noise(self, exact: Replay, dtypes: RoundingDtypes) -> None:
        runs = self._runs(exact, self._outputs.keys() & self._questions.keys(), dtypes)
        again = runs.values()
        for name, value in again.items():
            if _differ(self._outputs[name].exact, value):
                self._settle(name, "not_reproducible", NOT_REPRODUCIBLE)
        for name, noise in self._float64_noise(runs).items():
            if name in self._questions and self._outputs[name].is_explained_by(noise):
                self._settle(name, "within_noise", self._outputs[name].note)

    def _float64_noise(self, runs: StepRuns) -> dict[str, StepNoise]:
        """What rounding does to each open step, by runs on changed gradients and results, and on changed saved tensors.

        Each kind of change is made twice as large as a rounding and as a part of one; what is not in proportion to the
        change is no noise.
        """
        noise: dict[str, StepNoise] = {}
        scale = FINE_SIZE if all(self._questions[name].unit < FINE_UNIT for name in self._questions) else 1
        for of_saved in (False, True):
            pairs = [
                (
                    runs.values(Rounding(seed, scale, of_saved)),
                    runs.values(Rounding(seed, scale / SMALLER_CHANGE, of_saved)),
                )
                for seed in (range(2) if not of_saved else range(1))
            ]
            for name in runs.names & self._questions.keys():
                for large, small in pairs:
                    if name in large and name in small:
                        exact = self._outputs[name].exact
                        measured = smooth_noise(
                            noise_between(exact, plain(large[name]).to(exact.device), exact),
                            noise_between(exact, plain(small[name]).to(exact.device), exact),
                            SMALLER_CHANGE,
                        )
                        noise[name] = noise.get(name, StepNoise()).maximum(measured.divided_by(scale))
        return noise

    # -- runs on the steps' own kernels --------------------------------------------------------------------------

    def _judge_by_kernels(self, candidate: Replay, dtypes: RoundingDtypes) -> None:
        """Judge the rest by the spread of changed runs; none of it is noise beyond `noise_limit`."""
        runs = self._runs(candidate, self._questions.keys(), dtypes)
        try:
            alone, again = runs.values(), runs.values()
            changed = [runs.values(Rounding(seed)) for seed in range(KERNEL_RUNS)]
            saved = [runs.values(Rounding(seed, of_saved=True)) for seed in range(KERNEL_RUNS)]
        except CabwError as error:
            self.notes.append(f"what rounding does to steps could not be measured: {error.seen}")
            alone = {}
        for name in list(self._questions):
            if name not in alone or name not in again:
                self._settle(name, self._final_verdict(name))
                continue
            if _differ(alone[name], again[name]):
                self._settle(name, "not_reproducible", NOT_REPRODUCIBLE)
                continue
            spreads = [[each[name] for each in side if name in each] for side in (changed, saved)]
            self._judge_by_spread(name, alone[name], spreads)

    def _judge_by_spread(self, name: str, alone: torch.Tensor, spreads: list[list[torch.Tensor]]) -> None:
        question = self._questions[name]
        exact = self._outputs.get(name)
        if exact is None:  # the side with more digits is the best that is known
            finer = min((question.reference, question.candidate), key=lambda side: unit_of(side.dtype))
            outputs = StepOutputs.of(question.reference, question.candidate, finer, independent=False)
        else:
            outputs = exact
        base = plain(alone).to(outputs.exact.device)
        if base.shape != outputs.exact.shape:
            self._settle(name, self._final_verdict(name))
            return
        noise = StepNoise()
        for spread in spreads:
            measured = [noise_between(base, plain(each).to(base.device), outputs.exact) for each in spread]
            noise = noise.maximum(middle(measured)) if measured else noise
        if outputs.is_explained_by(noise.limited(noise_limit(question.unit))):
            note = outputs.note if exact is not None else "no float64 run; within what rounding does to its kernels"
            self._settle(name, "within_noise", note)
        elif exact is None and outputs.is_explained_by(noise):
            self._settle(name, "not_judged", "no float64 run, and rounding may do as much to its kernels")
        else:
            self._settle(name, self._final_verdict(name), outputs.note if exact is not None else "")

    def _final_verdict(self, name: str) -> Verdict:
        """The verdict on a difference that nothing explains."""
        verdict = self._comparisons[name].difference.verdict
        return verdict if verdict == "nonfinite" else "mismatch"


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two runs of a step gave different results, by more than sums in another order make in them."""
    one, other = plain(one), plain(other)
    if one.shape != other.shape:
        return True
    if not bool(torch.equal(torch.isfinite(one), torch.isfinite(other))):
        return True
    one, other = zeros_where_not_finite(one, other)
    return relative_distance(one, other) > noise_limit(unit_of(one.dtype))
