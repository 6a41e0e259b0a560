"""Tells noise from faults in a parity, by further runs of the captured graph; see `cabw_viz.numerics.noise`.

final_rows ── where anything is in question, or the user asked for it: NoiseRuns
   ├─ run_in_float64        one run in float64: both sides' errors
   ├─ perturb_float64_runs  more of it with results changed at random, where a verdict depends on that; and one on
   │                        rounded inputs, where the candidate is in a coarser dtype
   └─ perturb_kernel_runs   runs on the kernels of each side with results changed, where a verdict still depends on that
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from cabw_viz.errors import CabwError
from cabw_viz.numerics.compare import on_comparable_device, plain
from cabw_viz.numerics.constants import KERNEL_RUNS, ROUNDING_RUNS
from cabw_viz.numerics.distance import ZERO, Distance, distance
from cabw_viz.numerics.noise import Float64Errors, Noise
from cabw_viz.numerics.perturb import PerturbedResults, UniformFactors
from cabw_viz.numerics.precision import Precision, precision_of_sides
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.replay.interpreter import GradientCollector
from cabw_viz.replay.parity.gradient_pairs import (
    VERDICTS_WITH_DISTANCE,
    GradientPairs,
    ParityOptions,
    with_previous_grad,
)
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.replay.placement.target import AS_CAPTURED, Target, resolve_target
from cabw_viz.replay.replay import Replay


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
    record = pairs.record
    in_question = [row for row in rows if row.verdict in VERDICTS_WITH_DISTANCE and row.verdict != "bitwise"]
    target, gradients = options.target, (gradient.value for gradient in pairs.run.values())
    precision = precision_of_sides(record, gradients, target.device, target.dtype, eager=record.run == "eager")
    if precision is None or not (options.exact is True or (options.exact == "auto" and in_question)):
        return list(rows), []
    runs = NoiseRuns(replay, pairs)
    try:
        exact = runs.run_in_float64()
    except CabwError as error:
        if options.exact is True:
            raise
        return list(rows), [f"no float64 run to judge by: {error.seen}"]
    errors = {
        index: Float64Errors(*(distance(side, exact[index]) for side in pairs.pair(index)))
        for index, row in zip(pairs.leaves, rows, strict=True)
        if row.verdict in VERDICTS_WITH_DISTANCE and index in exact and _is_comparable(exact[index], pairs.pair(index))
    }
    if any(row.verdict == "mismatch" or precision.half for row in in_question):
        runs.perturb_float64_runs(precision)
    final = _with_verdicts(rows, pairs.leaves, errors, runs.noise, precision)
    if runs.noise and any(row.verdict == "mismatch" for row in final):
        runs.perturb_kernel_runs(precision)
        final = _with_verdicts(rows, pairs.leaves, errors, runs.noise, precision)
    return final, runs.notes


def _with_verdicts(
    rows: Sequence[GradientComparison],
    leaves: Sequence[int],
    errors: dict[int, Float64Errors],
    noise: dict[int, Noise],
    precision: Precision,
) -> list[GradientComparison]:
    """The rows with the errors of both sides and the verdicts that the noise leads to."""
    final = []
    for index, row in zip(leaves, rows, strict=True):
        if index not in errors:
            final.append(row)
            continue
        with_errors = errors[index].row_with_errors(row)
        in_question = index in noise and row.verdict != "bitwise"
        final.append(
            errors[index].row_with_verdict(with_errors, noise[index], precision) if in_question else with_errors
        )
    return final


class NoiseRuns:
    """Further runs of a captured graph, and what rounding does to each leaf's gradient by these."""

    def __init__(self, replay: Replay, pairs: GradientPairs) -> None:
        self._replay, self._pairs = replay, pairs
        self._exact: dict[int, torch.Tensor] = {}
        self.noise: dict[int, Noise] = {}
        self.notes: list[str] = []

    def run_in_float64(self) -> dict[int, torch.Tensor]:
        """Run the graph in float64, on the device of the capture if that has float64, or on the CPU.

        Returns:
            Dense gradients by leaf.
        """
        reference = next((g.value.device for g in self._pairs.run.values()), torch.device("cpu"))
        self._target = resolve_target(None if _has_float64(reference) else "cpu", torch.float64)
        (self._exact,) = self._runs(self._target, [None])
        devices = " and ".join(dict.fromkeys(str(gradient.device) for gradient in self._exact.values()))
        self.notes.append(
            f"reference_err and candidate_err are against a float64 run of the captured graph on {devices}"
        )
        return self._exact

    def perturb_float64_runs(self, precision: Precision) -> None:
        """Measure what rounding the results of operators does to the float64 run."""
        modes = [PerturbedResults(UniformFactors(precision.unit, seed)) for seed in range(ROUNDING_RUNS)]
        for gradients in self._runs(self._target, modes):
            for index, gradient in gradients.items():
                error = distance(gradient, self._exact[index])
                self.noise[index] = self.noise.get(index, Noise()).maximum(Noise(error, error))
        if precision.coarser > 1:
            self._round_inputs(precision)
        computed = "TF32" if precision.tf32[0] else str(precision.reference).removeprefix("torch.")
        self.notes.append(
            f"what is noise was judged by {ROUNDING_RUNS} more such runs, in which each result of an operator was "
            f"changed at random within the precision of {computed}"
        )

    def _round_inputs(self, precision: Precision) -> None:
        """Measure what it does to the float64 run that a coarser candidate has rounded what the forward saved."""
        graph = self._replay.at(self._target).graph
        inputs = [_rounded(value, self._replay.target.dtype) for value in graph.arguments.inputs]
        (gradients,) = self._runs_of(replace(graph, arguments=replace(graph.arguments, inputs=inputs)), [None])
        for index, gradient in gradients.items():
            error = distance(gradient, self._exact[index]).divided_by(precision.coarser)
            self.noise[index] = self.noise[index].maximum(Noise(candidate=error))

    def perturb_kernel_runs(self, precision: Precision) -> None:
        """Measure how far perturbed runs on the reference's and the candidate's own kernels spread."""
        at_capture = self._spread(AS_CAPTURED, precision.unit)
        target = self._replay.target
        has_own_kernels = target.moves and not target.compiles
        at_target = self._spread(target, precision.unit_of_candidate) if has_own_kernels else {}
        for index, spread in at_capture.items():
            coarser = precision.coarser if index in at_target else 1.0
            candidate = at_target.get(index, spread).divided_by(coarser)
            self.noise[index] = self.noise[index].maximum(Noise(spread, candidate))
        self.notes.append(
            f"what was then still in question was judged by the spread of {KERNEL_RUNS} runs on the kernels of "
            "each side, with results changed likewise"
        )

    def _spread(self, target: Target, unit: float) -> dict[int, Distance]:
        """How far perturbed runs at a target are from an unperturbed one, in units of the float64 gradient."""
        modes = (PerturbedResults(UniformFactors(unit, seed)) for seed in range(KERNEL_RUNS))
        base, *perturbed = self._runs(target, [None, *modes])
        spread: dict[int, Distance] = {}
        for gradients in perturbed:
            for index, gradient in gradients.items():
                exact = self._exact.get(index)
                if exact is None or gradient.shape != exact.shape:
                    continue
                difference = gradient.to(exact.device, exact.dtype) - base[index].to(exact.device, exact.dtype)
                spread[index] = spread.get(index, ZERO).maximum(distance(difference + exact, exact))
        return spread

    def _runs(self, target: Target, modes: Sequence[PerturbedResults | None]) -> list[dict[int, torch.Tensor]]:
        """The graph run at a target once in each mode: dense gradients by leaf."""
        return self._runs_of(self._replay.at(target).graph, modes)

    def _runs_of(self, graph: PlacedGraph, modes: Sequence[PerturbedResults | None]) -> list[dict[int, torch.Tensor]]:
        runs = []
        for mode in modes:
            with mode or nullcontext():
                collector = GradientCollector(graph)
                if mode is not None:  # what was saved is an input of both sides, unpacked as it was saved
                    collector.while_unpacking = mode.paused
                gradients = self._replay.run(collector)
            captured = self._pairs.captured
            sides = {index: with_previous_grad(captured, index, value) for index, value in gradients.items()}
            runs.append({index: plain(on_comparable_device(side).value) for index, side in sides.items()})
        return runs


def _is_comparable(exact: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Whether a float64 gradient is finite where both sides are."""
    finite = exact.isfinite()
    return all(bool((finite | ~side.isfinite().to(exact.device)).all()) for side in pair)


def _rounded(value: Any, dtype: torch.dtype | None) -> Any:
    """A tensor of real numbers rounded to a dtype, in its own; anything else as it is."""
    if dtype is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.detach().to(dtype).to(value.dtype)


def _has_float64(device: torch.device) -> bool:
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):  # MPS has none
        return False
    return True
