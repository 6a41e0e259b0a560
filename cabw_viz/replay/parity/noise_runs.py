"""Tells noise from faults in a parity, by further runs of the captured graph; see `exact`.

judge ── where anything is in question, or it was asked for: NoiseRuns
   ├─ exact        one run in float64: both sides' errors
   ├─ by_rounding  two more of it, results changed at random, where a verdict hangs on it; and one on rounded inputs,
   │               where the candidate is in a coarser dtype
   └─ by_kernels   three runs on the kernels in question, results changed too, where it still does
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from cabw_viz.errors import CabwError
from cabw_viz.numerics.compare import plain
from cabw_viz.numerics.constants import KERNEL_RUNS, ROUNDING_RUNS
from cabw_viz.numerics.distance import distance
from cabw_viz.numerics.noise import Float64Errors, Noise
from cabw_viz.numerics.perturb import PerturbedResults, UniformFactors
from cabw_viz.numerics.precision import Precision, precision_of_sides
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.replay.interpreter import GradientCollector
from cabw_viz.replay.parity.gradient_pairs import COMPARED, GradientPairs, ParityOptions, added, near
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.replay.placement.target import AS_CAPTURED, Target, resolve_target
from cabw_viz.replay.replay import Replay


def judge(
    replay: Replay,
    options: ParityOptions,
    rows: Sequence[GradientComparison],
    sides: GradientPairs,
) -> tuple[list[GradientComparison], list[str]]:
    """The rows of a comparison with the errors of both sides and the final verdicts, and how these came about.

    Args:
        replay: the graph, for further runs.
        options: what was asked for.
        rows: one for each of `sides.leaves`.
        sides: the gradients.

    Raises:
        CabwError: errors against float64 were insisted on, and there is no such run.
    """
    record = sides.record
    in_question = [row for row in rows if row.verdict in COMPARED and row.verdict != "bitwise"]
    target, gradients = options.target, (gradient.value for gradient in sides.run.values())
    how = precision_of_sides(record, gradients, target.device, target.dtype, eager=record.run == "eager")
    if how is None or not (options.exact is True or (options.exact == "auto" and in_question)):
        return list(rows), []
    further = NoiseRuns(replay, sides)
    try:
        exact = further.exact()
    except CabwError as error:
        if options.exact is True:
            raise
        return list(rows), [f"no float64 run to judge by: {error.seen}"]
    judged = {
        index: Float64Errors(*(distance(side, exact[index]) for side in sides.pair(index)))
        for index, row in zip(sides.leaves, rows, strict=True)
        if row.verdict in COMPARED and index in exact and bool(exact[index].isfinite().all())
    }
    if any(row.verdict == "mismatch" or how.half for row in in_question):
        further.by_rounding(how)
    found = _verdicts(rows, sides.leaves, judged, further.noise, how)
    if further.noise and any(row.verdict == "mismatch" for row in found):
        further.by_kernels(how)
        found = _verdicts(rows, sides.leaves, judged, further.noise, how)
    return found, further.notes


def _verdicts(
    rows: Sequence[GradientComparison],
    leaves: Sequence[int],
    judged: dict[int, Float64Errors],
    noise: dict[int, Noise],
    how: Precision,
) -> list[GradientComparison]:
    found = []
    for index, row in zip(leaves, rows, strict=True):
        if index not in judged:
            found.append(row)
            continue
        noted = judged[index].row_with_errors(row)
        questioned = index in noise and row.verdict != "bitwise"
        found.append(judged[index].row_with_verdict(noted, noise[index], how) if questioned else noted)
    return found


class NoiseRuns:
    """Further runs of a captured graph, and what they say of each leaf's gradient."""

    def __init__(self, replay: Replay, pairs: GradientPairs) -> None:
        self._replay, self._pairs = replay, pairs
        self._exact: dict[int, torch.Tensor] = {}
        self.noise: dict[int, Noise] = {}
        self.notes: list[str] = []

    def exact(self) -> dict[int, torch.Tensor]:
        """Dense gradients in float64, run where the graph was captured if there is float64 there."""
        reference = next((g.value.device for g in self._pairs.run.values()), torch.device("cpu"))
        self._target = resolve_target(None if _has_float64(reference) else "cpu", torch.float64)
        (self._exact,) = self._runs(self._target, [None])
        devices = " and ".join(dict.fromkeys(str(gradient.device) for gradient in self._exact.values()))
        self.notes.append(
            f"reference_err and candidate_err are against a float64 run of the captured graph on {devices}"
        )
        return self._exact

    def by_rounding(self, how: Precision) -> None:
        """Find out what rounding the results of operators does to the float64 run."""
        units = [PerturbedResults(UniformFactors(how.unit, seed)) for seed in range(ROUNDING_RUNS)]
        for changed in self._runs(self._target, units):
            for index, gradient in changed.items():
                apart = distance(gradient, self._exact[index])
                self.noise[index] = self.noise.get(index, Noise()).maximum(Noise(apart, apart))
        if how.coarser > 1:
            self._by_rounding_what_was_saved(how)
        computed = "TF32" if how.tf32[0] else str(how.reference).removeprefix("torch.")
        self.notes.append(
            f"what is noise was judged by {ROUNDING_RUNS} more such runs, in which each result of an operator was "
            f"changed at random within the precision of {computed}"
        )

    def _by_rounding_what_was_saved(self, how: Precision) -> None:
        """Find out what it does to the float64 run that a coarser candidate has rounded all that it runs on."""
        graph = self._replay.at(self._target).graph
        inputs = [_rounded(value, self._replay.target.dtype) for value in graph.arguments.inputs]
        (changed,) = self._runs_of(replace(graph, arguments=replace(graph.arguments, inputs=inputs)), [None])
        for index, gradient in changed.items():
            apart = distance(gradient, self._exact[index]).divided_by(how.coarser)
            self.noise[index] = self.noise[index].maximum(Noise(candidate=apart))

    def by_kernels(self, how: Precision) -> None:
        """Find out how far runs on the reference's and the candidate's own kernels spread, results changed too."""
        own = self._spread(AS_CAPTURED, how.unit)
        target = self._replay.target
        moved = target.moves and not target.compiles
        there = self._spread(target, how.unit_of_candidate) if moved else {}
        for index, noise in own.items():
            candidate = there.get(index, noise).reference.divided_by(how.coarser if index in there else 1.0)
            self.noise[index] = self.noise[index].maximum(Noise(noise.reference, candidate))
        self.notes.append(
            f"what was then still in question was judged by the spread of {KERNEL_RUNS} runs on the kernels of "
            "each side, with results changed likewise"
        )

    def _spread(self, target: Target, unit: float) -> dict[int, Noise]:
        """How far runs at a target are from one another, in units of the float64 gradient."""
        modes = (PerturbedResults(UniformFactors(unit, seed)) for seed in range(KERNEL_RUNS))
        base, *changed = self._runs(target, [None, *modes])
        found: dict[int, Noise] = {}
        for run in changed:
            for index, gradient in run.items():
                exact = self._exact.get(index)
                if exact is None or gradient.shape != exact.shape:
                    continue
                apart = gradient.to(exact.device, exact.dtype) - base[index].to(exact.device, exact.dtype)
                found[index] = found.get(index, Noise()).maximum(Noise(distance(apart + exact, exact)))
        return found

    def _runs(self, target: Target, modes: Sequence[PerturbedResults | None]) -> list[dict[int, torch.Tensor]]:
        """The graph run at a target once in each mode: dense gradients by leaf."""
        return self._runs_of(self._replay.at(target).graph, modes)

    def _runs_of(self, graph: PlacedGraph, modes: Sequence[PerturbedResults | None]) -> list[dict[int, torch.Tensor]]:
        runs = []
        for mode in modes:
            with mode or nullcontext():
                gradients = self._replay.run(GradientCollector(graph))
            sides = {index: added(self._pairs.captured, index, g) for index, g in gradients.items()}
            runs.append({index: plain(near(gradient).value) for index, gradient in sides.items()})
        return runs


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
