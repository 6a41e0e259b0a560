"""Further runs of a captured graph: what rounding does to each gradient, what was chosen, what comes again.

`Judgement` decides which are made; see there for the order, and `cabw_viz.numerics.noise` for the measure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial

import torch

from cabw_viz.numerics.choices import Choices, FilledMemory, HeldChoices
from cabw_viz.numerics.chunks import chunks, is_finite
from cabw_viz.numerics.constants import (
    INPUT_RUNS,
    INSIDE_DIRECTION,
    KERNEL_RUNS,
    LEAST_PERTURBATION,
    SMALLER_PERTURBATION,
)
from cabw_viz.numerics.distance import ZERO, Distance, distance
from cabw_viz.numerics.noise import Noise, is_bounded, proportional_noise
from cabw_viz.numerics.perturb import Rounding, RoundingTo, SteppedRounding, UniformRounding
from cabw_viz.numerics.precision import Precision
from cabw_viz.numerics.tolerance import unit_of
from cabw_viz.replay.parity.gradient_pairs import GradientPairs
from cabw_viz.replay.parity.graph_runs import Gradients, GraphRuns, Mode, perturbing, with_inputs
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.replay.placement.target import AS_CAPTURED, Target, resolve_target
from cabw_viz.replay.replay import Replay


class NoiseRuns(GraphRuns):
    """Runs of a captured graph in float64 and on the kernels in question, and what they show.

    run_exact                in float64: what both sides are measured against
    ├─ measurements_of_results  results of operators changed at random, all choices held
    ├─ measure_inputs        the graph's inputs too: what operators round inside
    ├─ measure_kernels       the kernels of each side, results changed
    ├─ measure_kernels_free  the same with the inputs changed
    ├─ measure_free          results changed, choices made anew
    ├─ repeated              the same again
    └─ choices_at            what operators choose at a target

    Of the runs behind the first, the gradients in question alone are looked at, each as it is made and not kept.

    Args:
        replay: the graph, at the parity's target.
        pairs: the gradients.
        precision: of both sides.
    """

    def __init__(self, replay: Replay, pairs: GradientPairs, precision: Precision) -> None:
        super().__init__(replay, pairs.captured)
        self._pairs, self._precision = pairs, precision
        self.in_question: Collection[int] = frozenset(pairs.leaves)
        """The leaves of which rounding is measured."""
        self.exact: Gradients = {}
        self.noise: dict[int, Noise] = {}
        """What rounding does in proportion to its size, with all choices held."""
        self.inside: dict[int, Noise] = {}
        """What rounding of the graph's inputs does: operators may round as much inside, and in one direction."""
        self.free: dict[int, Noise] = {}
        """What rounding does at all."""
        self.jumps: set[int] = set()
        """Leaves that change out of proportion, though the choices are held: a kernel compares inside."""
        self._choices: Choices | None = None
        """Of the float64 run; None as long as they were not noted."""
        self._missing: set[str] = set()
        """Operators that chose where nothing was known of it."""
        self._rounded_to: dict[int, Distance] = {}
        """What rounding to the dtype of a coarser candidate does."""
        self.captured: Gradients = {}
        """Run again as captured; empty until `measure_kernels`."""
        self._fused_dtype: torch.dtype | None = None
        device = next((g.value.device for g in pairs.run.values()), torch.device("cpu"))
        self._target = resolve_target(None if _has_float64(device) else "cpu", torch.float64)

    # --------------------------------------------------------------------------------------------------- in float64

    def run_exact(self, held: Choices | None = None) -> None:
        """Run the graph in float64, on the device of the capture if that has float64, or on the CPU.

        Args:
            held: choices of another run, which this one makes too; None for its own.

        Raises:
            CabwError: the graph cannot run in float64.
        """
        if held is None:
            if self._target == self._replay.target:
                self.exact = {index: self._side(index, each.value) for index, each in self._pairs.graph.items()}
            else:
                self.exact, self._choices = self._recorded(self._target, self._pairs.leaves)
            return
        self._choices, self._fused_dtype = held, self._precision.reference
        self.noise, self.inside, self.free, self.jumps, self._rounded_to = {}, {}, {}, set(), {}
        self.exact = self._run(self._graph(self._target), self._held)

    @property
    def choices(self) -> Choices:
        """Of the float64 run: its own, or those that are held in it."""
        if self._choices is None:
            self._choices = self._recorded(self._target)[1]
        return self._choices

    def use_captured_kernels(self) -> None:
        """Take a run on the kernels of the capture for the float64 run, where there is none."""
        self.captured, self._choices = self._recorded(AS_CAPTURED, self._pairs.leaves)
        self.exact = {
            index: value.to(torch.complex128 if value.is_complex() else torch.float64)
            for index, value in self.captured.items()
        }

    def with_choices(self, held: Choices, target: Target, leaves: Collection[int]) -> Gradients:
        """Gradients of the float64 run with the choices that were made at a target."""
        dtype = None if target.dtype is torch.float64 else target.dtype or self._precision.reference
        return self._run(self._graph(self._target), partial(HeldChoices, choices=held, dtype=dtype), leaves=leaves)

    def repeated(self) -> dict[int, Distance]:
        """How far a second float64 run is from the first, where they differ in any bit.

        Memory that operators hand out unwritten holds something else in it.
        """
        held = () if self._fused_dtype is None else (self._held,)
        distances: dict[int, Distance] = {}

        def compare(index: int, value: torch.Tensor) -> None:
            if not _equal(value, self.exact[index]):
                distances[index] = distance(value, self.exact[index]) if is_finite(value) else _INFINITE

        self._visit(self._graph(self._target), self.exact, compare, lambda _: FilledMemory(), *held)
        return distances

    def measurements_of_results(self) -> Iterator[None]:
        """Measure what rounding the results of operators does to the float64 run, by one kind of change after another.

        What is noise by fewer kinds of changes is noise by all.
        """
        self._measure_proportional()
        yield
        if self._precision.coarser > 1:
            self._measure_rounding_to(self._precision.candidate)
            yield
        dtype, unit = self._precision.reference, self._unit
        steps = SteppedRounding(dtype, unit, seed=1)
        self._add_run(steps)
        self._add_rounded_to()
        yield
        if steps.has_rounded:
            self._add_run(SteppedRounding(dtype, unit, seed=2, random=True))
            self._add_rounded_to()
            yield

    def measure_unmeasured(self, leaves: Iterable[int]) -> None:
        """Measure what changed results do to those of some leaves that were decided without."""
        self.in_question = [index for index in leaves if index not in self.noise]
        if self.in_question:
            self._measure_proportional()

    def measure_inputs(self) -> None:
        """Measure what it does to the float64 run that its inputs are rounded otherwise, as an operator may do inside.

        Inside, half precision is single. A single number stays: to change it would be to change a factor of all.
        """
        unit = min(self._unit, max(SINGLE_UNIT, LEAST_PERTURBATION))
        scale = min(self._precision.unit, SINGLE_UNIT) / unit
        share = max(1.0, self._precision.coarser * self._precision.unit / SINGLE_UNIT)
        for seed in range(INPUT_RUNS):
            rounding = UniformRounding(unit, seed)
            graph = with_inputs(self._graph(self._target), rounding, least=2)
            for index, error in self._distances(graph, *self._perturbed(rounding)).items():
                noise = error.divided_by(1 / scale).with_direction(INSIDE_DIRECTION)
                self._maximum(self.inside, index, Noise(noise, noise.divided_by(share)))

    def measure_free(self) -> None:
        """Measure what rounding does where it may turn choices over."""
        for seed in range(2):
            rounding = UniformRounding(self._unit, seed)
            self._add(self.free, self._distances(self._graph(self._target), perturbing(rounding)))

    @property
    def _unit(self) -> float:
        """The size of the perturbation: that of rounding, or larger where float64 could not show it."""
        return max(self._precision.unit, LEAST_PERTURBATION)

    @property
    def _scale(self) -> float:
        return self._precision.unit / self._unit

    @property
    def _held(self) -> Mode:
        return partial(HeldChoices, choices=self._choices, dtype=self._fused_dtype, missing=self._missing)

    def _measure_proportional(self) -> None:
        """Two runs with the same change, one of them much smaller: what is in proportion is noise."""

        def distances(scale: float) -> dict[int, Distance]:
            rounding = UniformRounding(self._unit, 0, scale)
            return self._distances(self._graph(self._target), *self._perturbed(rounding))

        large = distances(1.0)
        if self._missing and self._choices is None:  # few graphs choose anything, and noting it takes a run
            self._choices = self.choices
            large = distances(1.0)
        small = distances(SMALLER_PERTURBATION)
        for index, error in large.items():
            errors = error.divided_by(1 / self._scale), small[index].divided_by(SMALLER_PERTURBATION / self._scale)
            noise, jumps = proportional_noise(*errors, self._precision.unit)
            if jumps:
                self.jumps.add(index)
            self._maximum(self.noise, index, Noise(noise, noise))
            self._maximum(self.free, index, Noise(errors[0], errors[0]))

    def _measure_rounding_to(self, dtype: torch.dtype) -> None:
        """Measure what it does to the float64 run that a coarser candidate rounds inputs and results to its dtype."""
        rounding, coarser = RoundingTo(dtype), self._precision.coarser
        graph = with_inputs(self._graph(self._target), rounding)
        self._rounded_to |= self._distances(graph, *self._perturbed(rounding))
        for index, error in self._rounded_to.items():
            self._maximum(self.free, index, Noise(candidate=error.divided_by(coarser)))
        self._add_rounded_to()

    def _add_rounded_to(self) -> None:
        """Take that for noise as far as it is in proportion to the noise that is known so far."""
        coarser = self._precision.coarser
        for index, error in self._rounded_to.items():
            known = self.noise[index].candidate.mean_square * coarser if index in self.noise else 0.0
            if is_bounded(error, self._precision, known, self.exact[index]):
                self._maximum(self.noise, index, Noise(candidate=error.divided_by(coarser)))

    def _perturbed(self, rounding: Rounding) -> tuple[Mode, ...]:
        return perturbing(rounding), self._held

    def _add_run(self, rounding: Rounding) -> None:
        distances = self._distances(self._graph(self._target), *self._perturbed(rounding))
        self._add(self.free, distances)
        self._add(self.noise, {index: error for index, error in distances.items() if index not in self.jumps})

    def _add(self, noise: dict[int, Noise], distances: dict[int, Distance]) -> None:
        for index, error in distances.items():
            scaled = error.divided_by(1 / self._scale)
            self._maximum(noise, index, Noise(scaled, scaled))

    def _distances(self, graph: PlacedGraph, *modes: Mode) -> dict[int, Distance]:
        """How far the gradients in question are from those of the float64 run, in a run in these modes."""
        distances: dict[int, Distance] = {}

        def measure(index: int, value: torch.Tensor) -> None:
            distances[index] = distance(value, self.exact[index])

        self._visit(graph, self.exact.keys() & set(self.in_question), measure, *modes)
        return distances

    @staticmethod
    def _maximum(noise: dict[int, Noise], index: int, other: Noise) -> None:
        noise[index] = noise.get(index, Noise()).maximum(other)

    # --------------------------------------------------------------------------------------------- on other kernels

    def choices_at(self, target: Target) -> Choices:
        """What operators choose at a target."""
        return self._recorded(target)[1]

    def measure_kernels(self) -> None:
        """Measure how far perturbed runs on the reference's and the candidate's own kernels spread."""
        for index, noise in self._spread_of_sides(inputs=False).items():
            if index not in self.jumps:
                self._maximum(self.noise, index, noise)
            self._maximum(self.free, index, noise)

    def measure_kernels_free(self) -> None:
        """The same where the inputs change too, and with them what kernels choose inside."""
        for index, noise in self._spread_of_sides(inputs=True).items():
            self._maximum(self.free, index, noise)

    def _spread_of_sides(self, *, inputs: bool) -> dict[int, Noise]:
        precision, target = self._precision, self._replay.target
        self.captured, at_capture = self._spread(AS_CAPTURED, precision.unit, inputs=inputs)
        has_own_kernels = target.moves and not target.compiles
        at_target = self._spread(target, precision.unit_of_candidate, inputs=inputs)[1] if has_own_kernels else {}
        return {
            index: Noise(
                spread, at_target.get(index, spread).divided_by(precision.coarser if index in at_target else 1.0)
            )
            for index, spread in at_capture.items()
        }

    def _spread(self, target: Target, unit: float, *, inputs: bool) -> tuple[Gradients, dict[int, Distance]]:
        """A run at a target, and how far perturbed ones are from it, in units of the float64 gradient."""
        wanted = self.exact.keys() & set(self.in_question)
        base, choices = self._recorded(target, wanted)
        held = partial(HeldChoices, choices=choices)
        spread: dict[int, Distance] = {}

        def measure(index: int, gradient: torch.Tensor) -> None:
            exact = self.exact[index]
            if gradient.shape == exact.shape:
                apart = difference_as_distance(gradient, base[index], exact)
                spread[index] = spread.get(index, ZERO).maximum(apart)

        for seed in range(KERNEL_RUNS):
            rounding = UniformRounding(unit, seed)
            graph = with_inputs(self._graph(target), rounding) if inputs else self._graph(target)
            self._visit(graph, wanted, measure, perturbing(rounding), held)
        return base, spread


SINGLE_UNIT = unit_of(torch.float32)

_INFINITE = Distance(float("inf"), float("inf"), float("inf"))


def difference_as_distance(one: torch.Tensor, other: torch.Tensor, exact: torch.Tensor) -> Distance:
    """How far two gradients are from each other, in units of the float64 one."""
    difference = one.to(exact.device, exact.dtype) - other.to(exact.device, exact.dtype)
    return distance(difference + exact, exact)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two dense gradients are equal; NaN is equal to NaN."""
    return one.shape == other.shape and all(
        bool(torch.isclose(here, there, rtol=0.0, atol=0.0, equal_nan=True).all()) for here, there in chunks(one, other)
    )


def _has_float64(device: torch.device) -> bool:
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):  # MPS has none
        return False
    return True
