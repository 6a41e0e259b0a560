"""Tells noise from faults in a parity, by further runs of the captured graph; see `cabw_viz.numerics.noise`.

final_rows ── where anything is in question, or the user asked for it: Judgement
   ├─ _measure_errors       one run in float64: both sides' errors
   ├─ _measure_noise        runs with results, then inputs, then on the kernels, changed, while a verdict depends on it
   ├─ _check_repetition     float64 once more, where something is left that rounding does not explain
   ├─ _hold_captured        float64 with the choices of the captured run, where its own are others
   └─ _judge_choices        whether what is left comes from choices that the two sides made otherwise
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from cabw_viz.errors import CabwError
from cabw_viz.numerics.choices import FUSED_CHOICES, Choices, differing_choices
from cabw_viz.numerics.compare import plain
from cabw_viz.numerics.constants import FULL_LIMITS, INSIDE_RATIO, KERNEL_RUNS, noise_limit
from cabw_viz.numerics.distance import ZERO, distance
from cabw_viz.numerics.noise import Float64Errors, Noise
from cabw_viz.numerics.precision import Precision, precision_of_sides
from cabw_viz.numerics.tolerance import unit_of
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.kinds import Verdict
from cabw_viz.replay.parity.gradient_pairs import VERDICTS_WITH_DISTANCE, GradientPairs, ParityOptions
from cabw_viz.replay.parity.noise_runs import NoiseRuns, difference_as_distance
from cabw_viz.replay.placement.target import AS_CAPTURED
from cabw_viz.replay.replay import Replay

FLOAT64_UNIT = unit_of(torch.float64)


def final_rows(
    replay: Replay,
    options: ParityOptions,
    rows: Sequence[GradientComparison],
    pairs: GradientPairs,
) -> tuple[list[GradientComparison], list[str]]:
    """The rows of a comparison with the errors of both sides and the final verdicts, and notes on how they came about.

    Args:
        replay: the graph, for further runs.
        options: of the parity.
        rows: one for each of `pairs.leaves`.
        pairs: the gradients.

    Raises:
        CabwError: the user asked for errors against float64, and the graph cannot run in float64.
    """
    record, target = pairs.record, options.target
    gradients = (gradient.value for gradient in pairs.run.values())
    precision = precision_of_sides(record, gradients, target.device, target.dtype, eager=record.run == "eager")
    in_question = any(row.verdict != "bitwise" and _has_distance(row) for row in rows) or any(
        row.verdict == "nonfinite" for row in rows
    )
    if precision is None or not (options.exact is True or (options.exact == "auto" and in_question)):
        return list(rows), []
    judgement = Judgement(replay, pairs, precision, rows)
    judgement.decide(needs_float64=options.exact is True)
    return [judgement.rows[index] for index in pairs.leaves], list(dict.fromkeys(judgement.notes))


def _has_distance(row: GradientComparison) -> bool:
    return row.verdict in VERDICTS_WITH_DISTANCE


class Judgement:
    """The verdicts of a parity, in the making.

    Args:
        replay: the graph, at the parity's target.
        pairs: the gradients.
        precision: of both sides.
        rows: one for each of `pairs.leaves`, by the tolerance.
    """

    def __init__(
        self, replay: Replay, pairs: GradientPairs, precision: Precision, rows: Sequence[GradientComparison]
    ) -> None:
        self._target, self._pairs, self._precision = replay.target, pairs, precision
        self._initial = dict(zip(pairs.leaves, rows, strict=True))
        self._runs = NoiseRuns(replay, pairs, precision)
        self._errors: dict[int, Float64Errors] = {}
        self._captured_choices: Choices | None = None
        self._without_float64 = ""
        self.rows = dict(self._initial)
        """By leaf."""
        self.notes: list[str] = []

    def decide(self, *, needs_float64: bool) -> None:
        """Make the runs that the verdicts depend on, and give the verdicts.

        Raises:
            CabwError: the graph cannot run in float64, and that was needed.
        """
        try:
            self._runs.run_exact()
        except CabwError as error:
            if needs_float64:
                raise
            self._without_float64 = error.seen
            self.notes.append(f"no float64 run to judge by: {error.seen}")
            if not self._run(self._runs.use_captured_kernels):
                return
        self._measure_errors()
        if self._without_float64:
            self._judge_without_float64()
            return
        devices = " and ".join(dict.fromkeys(str(gradient.device) for gradient in self._runs.exact.values()))
        self.notes.append(
            f"reference_err and candidate_err are against a float64 run of the captured graph on {devices}"
        )
        self._measure_noise()
        if self._open or self._doubtful:
            self._run(self._check_repetition)
        if self._open or self._one_sided:
            self._run(self._hold_captured)
        if self._open or self._one_sided:
            self._run(self._judge_choices)

    def _run(self, step: Callable[[], object]) -> bool:
        """Make a step; one that PyTorch cannot make is left out, and what it would have shown stays open."""
        try:
            step()
        except CabwError as error:
            self.notes.append(f"one of the runs that tell noise from faults could not be made: {error.seen}")
            return False
        return True

    @property
    def _open(self) -> list[int]:
        """The leaves whose difference nothing explains so far."""
        return [index for index, row in self.rows.items() if row.verdict == "mismatch"]

    @property
    def _one_sided(self) -> list[int]:
        return [index for index, row in self.rows.items() if row.verdict == "nonfinite"]

    @property
    def _doubtful(self) -> bool:
        """Whether two sides that agree are both far from float64."""
        return any(
            min(errors.reference.largest, errors.candidate.largest) > self._limit
            and self.rows[index].verdict != "bitwise"
            for index, errors in self._errors.items()
        )

    # ------------------------------------------------------------------------------------------------------ rounding

    def _measure_errors(self) -> None:
        """Both sides' distances from float64, where it is finite wherever they are."""
        exact = self._runs.exact
        for index, row in self._initial.items():
            if not _has_distance(row) or index not in exact:
                continue
            pair = self._pairs.pair(index)
            if pair[0].shape == exact[index].shape and _is_comparable(exact[index], pair):
                self._errors[index] = Float64Errors(*(distance(side, exact[index]) for side in pair))
                self.rows[index] = self._with_errors(row, index)

    def _with_errors(self, row: GradientComparison, index: int) -> GradientComparison:
        return row if self._without_float64 else self._errors[index].row_with_errors(row)

    def _measure_noise(self) -> None:
        """Measure noise by ever further runs, as long as a verdict depends on it."""
        computed = "TF32" if self._precision.tf32[0] else str(self._precision.reference).removeprefix("torch.")
        stages = (
            (
                lambda: self._settle_by(self._runs.measurements_of_results()),
                f"what is noise was judged by further such runs, with each result changed as {computed} rounds",
            ),
            (self._runs.measure_inputs, "and by two in which the inputs of the graph were changed likewise"),
            (
                self._runs.measure_kernels,
                f"and by the spread of {KERNEL_RUNS} runs on the kernels of each side, with results changed likewise",
            ),
        )
        self._apply_noise()  # no run shows less than the least that rounding does
        for stage, note in stages:
            if not self._runs.in_question:
                return
            if self._run(stage):
                self.notes.append(note)
            self._apply_noise()
            if not self._open:
                return

    def _settle_by(self, measurements: Iterable[None]) -> None:
        """Measure noise by one kind of change after another, as long as a verdict depends on it."""
        for _ in measurements:
            self._apply_noise()
            if not self._runs.in_question:
                return

    def _apply_noise(self) -> None:
        """The verdicts that the noise leads to, as far as it is known; more noise changes none but a mismatch."""
        undecided: set[int] = set()
        for index, errors in self._errors.items():
            row, noise = self._initial[index], self._runs.noise.get(index)
            is_judged = row.verdict == "mismatch" or (row.verdict != "bitwise" and self._precision.half)
            if not is_judged or self.rows[index].verdict == "not_reproducible":
                continue
            judged = errors.row_with_verdict(row, noise or Noise(), self._precision)
            if judged.verdict == "mismatch" and self._is_rounded_inside(index):
                judged = replace(row, verdict="within_noise") if row.verdict == "mismatch" else row
            if judged.verdict == "mismatch":
                undecided.add(index)
            if judged.verdict != "mismatch" or noise is not None:
                self.rows[index] = self._with_errors(judged, index)
        self._runs.in_question = undecided

    def _is_rounded_inside(self, index: int) -> bool:
        """Whether rounding inside of operators explains a small difference."""
        errors, inside = self._errors[index], self._runs.inside.get(index)
        noise = self._runs.noise.get(index, Noise())
        return (
            inside is not None
            and inside.reference.mean_square > INSIDE_RATIO * noise.reference.mean_square
            and errors.largest <= self._limit
            and self._is_explained(errors, noise.maximum(inside), index)
        )

    @property
    def _limit(self) -> float:
        """The largest difference that weaker evidence excuses."""
        return noise_limit(max(self._precision.unit, self._precision.unit_of_candidate))

    def _is_explained(self, errors: Float64Errors, noise: Noise, index: int) -> bool:
        return errors.is_explained(noise, self._initial[index].elements, self._precision)

    def _judge_without_float64(self) -> None:
        """The verdicts by the kernels alone: what these do not explain is a fault if rounding cannot be that large."""
        if not self._open:
            return
        self._run(self._runs.measure_kernels)
        self._apply_noise()
        for index in self._open:
            row = self.rows[index]
            is_fault = row.max_rel_err is None or row.max_rel_err > self._limit
            reason = "there is no float64 run to judge it by"
            verdict: Verdict = "mismatch" if is_fault else "not_judged"
            self.rows[index] = replace(row, verdict=verdict, note="; ".join(filter(None, (row.note, reason))))

    # ---------------------------------------------------------------------------------------------------- repetition

    def _check_repetition(self) -> None:
        """Find the gradients that are not the same in two runs of the graph."""
        differing = {
            index: apart
            for index, apart in self._runs.repeated().items()
            if apart.largest > FULL_LIMITS.largest * FLOAT64_UNIT
        }
        self._runs.measure_unmeasured(differing)
        for index, apart in differing.items():
            known = self._runs.noise.get(index, Noise()).reference.largest / self._precision.unit
            if apart.largest > FULL_LIMITS.largest * FLOAT64_UNIT * max(1.0, known):
                self._mark_not_reproducible(index, f"two float64 runs of this graph differ {_by(apart.largest)}")
        if self._target != AS_CAPTURED:
            return
        for index in set(self._open) & self._runs.captured.keys():
            again, graph = self._runs.captured[index], plain(self._pairs.graph[index].value)
            if index not in self._errors or torch.equal(again, graph):
                continue
            apart = difference_as_distance(again, graph, self._runs.exact[index])
            noise = self._runs.noise.get(index, Noise())
            if not self._is_explained(Float64Errors(apart, ZERO), noise, index):
                self._mark_not_reproducible(index, f"two replays of this graph differ {_by(apart.largest)}")

    def _mark_not_reproducible(self, index: int, note: str) -> None:
        row = self.rows[index]
        if row.verdict in VERDICTS_WITH_DISTANCE and row.verdict != "bitwise":
            self.rows[index] = replace(row, verdict="not_reproducible", note=note)

    # ------------------------------------------------------------------------------------------------------- choices

    def _hold_captured(self) -> None:
        """Measure against a float64 run with the choices of the captured run, where its own are others."""
        self._captured_choices = self._runs.choices_at(AS_CAPTURED)
        if not differing_choices(self._captured_choices, self._runs.choices):
            return
        self._runs.run_exact(self._captured_choices)
        self.notes.append("the float64 run was made again with the choices (indices, masks) of the captured run")
        self._measure_errors()
        self._measure_noise()

    def _judge_choices(self) -> None:
        """Find the gradients whose difference comes from choices that the two sides made otherwise."""
        if self._target.compiles or self._pairs.record.run != "eager":
            self._runs.measure_free()
            self._judge_by(self._runs.free, "rounding may turn over what an operator chooses (an index, a mask)")
            return
        if self._target.moves and self._captured_choices is not None:
            own = self._runs.choices_at(self._target)
            differing = differing_choices(self._captured_choices, own)
            if differing:
                self._judge_by_own_choices(own, self._note_on(differing))
        if not self._open:
            return
        self._runs.measure_kernels_free()
        large = {
            index: noise
            for index, noise in self._runs.free.items()
            if index in self._errors and (index in self._runs.jumps or self._errors[index].largest > self._limit)
        }
        self._judge_by(large, "rounding may turn over what a kernel chooses inside, or cancel what it computes")

    def _judge_by_own_choices(self, own: Choices, note: str) -> None:
        exact = self._runs.with_choices(own, self._target, {*self._open, *self._one_sided})
        for index in self._open:
            if index not in self._errors or index not in exact:
                continue
            error = distance(self._pairs.pair(index)[1], exact[index])
            errors = Float64Errors(self._errors[index].reference, error)
            if self._is_explained(errors, self._runs.noise.get(index, Noise()), index):
                self._mark_choice(index, note)
        for index in self._one_sided:
            reference, candidate = self._pairs.pair(index)
            same = index in exact and torch.equal(exact[index].isfinite(), candidate.isfinite().to(exact[index].device))
            if same and bool(reference.isfinite().all()):
                self.rows[index] = replace(self.rows[index], verdict="not_judged", note=note)

    def _judge_by(self, noise: dict[int, Noise], note: str) -> None:
        for index in self._open:
            if index in noise and index in self._errors:
                sure = self._runs.noise.get(index, Noise())
                if self._is_explained(self._errors[index], noise[index].maximum(sure), index):
                    self._mark_choice(index, note)

    def _mark_choice(self, index: int, note: str) -> None:
        """A gradient that another choice explains: noise if it is as small as that, or else not to be judged."""
        verdict: Verdict = "within_noise" if self._errors[index].largest <= self._limit else "not_judged"
        self.rows[index] = replace(self.rows[index], verdict=verdict, note=note)

    def _note_on(self, differing: Sequence[tuple[str, str]]) -> str:
        graph_node, operator = differing[0]
        record = self._pairs.record
        name = next((row.autograd_node for row in record.graph_nodes if row.name == graph_node), None)
        node = record.by_number.get(name) if name is not None else None
        place = f"graph node {graph_node}" if node is None else f"{record.label(node)} (#{node.number})"
        more = f" and {len(differing) - 1:,} more" if len(differing) > 1 else ""
        chooses = "chooses inside by numbers that are rounded" if operator in FUSED_CHOICES else "chooses otherwise"
        return f"{operator} at {place}{more} {chooses}: a forward {self._target.description} would have saved another"


def _by(apart: float) -> str:
    return f"by {apart:.2g} of the largest element" if apart <= FLOAT64_UNIT**-1 else "without bound"


def _is_comparable(exact: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Whether a float64 gradient is finite where both sides are."""
    finite = exact.isfinite()
    return all(bool((finite | ~side.isfinite().to(exact.device)).all()) for side in pair)
