"""What rounding explains: both sides of a comparison held against a float64 run of the same graph.

Two right answers differ by rounding, and how much depends on the gradient: one that should be zero consists of nothing
else. So each side's distance from a float64 run is measured, and what rounding may do is found out apart from both: the
float64 run is made again, each result of an operator changed at random within the precision that was computed in. A
difference beyond the tolerance is noise if neither side is further from float64 than a few times that, in the worst
element, over all, and along the gradient itself: rounding averages out over the elements, a wrong factor does not.

Kernels that sum in the precision of their results (layer norm's in bfloat16 on the CPU) round within an operator too.
What is still in question is judged by the spread of such runs on those kernels themselves.

A fault that every run of the graph has, in a custom Function or an operator, is in the float64 run too. Then the side
without it is the far one, and the verdict is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.numerics.perturb import rounds, shares_memory
from cabw_viz.numerics.tolerance import TOLERANCES, coarsest
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.model import CaptureRecord


@dataclass(frozen=True)
class Distance:
    """How far a gradient is from the float64 one, in units of that."""

    largest: float
    """Largest absolute difference by largest absolute value."""
    mean_square: float
    """Norm of the difference by norm."""
    systematic: float
    """By which part of itself the gradient is too large: its component along the float64 one, less one."""

    def or_more(self, other: Distance) -> Distance:
        """The larger in each respect."""
        return Distance(
            max(self.largest, other.largest),
            max(self.mean_square, other.mean_square),
            max(abs(self.systematic), abs(other.systematic)),
        )

    def over(self, times: float) -> Distance:
        """The same, divided."""
        return Distance(self.largest / times, self.mean_square / times, self.systematic / times)


NONE = Distance(0.0, 0.0, 0.0)

# How many times what rounding did to the float64 run a right gradient may be off. Kernels sum in other orders: inductor
# was seen to be off by 15 times as much as eager in single precision. In half precision kernels sum in single.
HALF = Distance(4.0, 4.0, 3.0)
FULL = Distance(32.0, 16.0, 16.0)


def distance(value: torch.Tensor, exact: torch.Tensor) -> Distance:
    """How far a dense gradient is from the float64 one of its shape."""
    exact = exact.reshape(-1)
    apart = value.to(exact.device, exact.dtype).reshape(-1) - exact
    if not exact.numel():
        return NONE
    norm = max(float(torch.linalg.vector_norm(exact)), NOTHING)
    largest = max(float(exact.abs().max()), NOTHING)
    along = float(torch.vdot(exact, apart).real)
    return Distance(
        float(apart.abs().max()) / largest, float(torch.linalg.vector_norm(apart)) / norm, along / (norm * norm)
    )


NOTHING = 1e-100
"""Stands for zero as a gradient's size, so that what is measured by it can still be compared."""


def _told(error: float) -> float:
    """An error as people are told it: infinite for a gradient that should be zero and is not."""
    return math.inf if error > 1 / math.sqrt(NOTHING) else error


# ---------------------------------------------------------------------------------------------------------- precision


@dataclass(frozen=True)
class Precision:
    """How the two sides of a comparison round."""

    computed: torch.dtype
    """The coarsest dtype in which the reference computes."""
    candidate: torch.dtype
    """That of the candidate."""
    tf32: tuple[bool, bool] = (False, False)
    """Whether the reference's, the candidate's products of matrices or convolutions round their operands to TF32."""

    @property
    def unit(self) -> float:
        """The spacing of numbers around 1 in which the reference computes."""
        return self._unit(0)

    @property
    def unit_of_candidate(self) -> float:
        """That of the candidate."""
        return self._unit(1)

    @property
    def halves(self) -> tuple[bool, bool]:
        """Whether the reference, the candidate computes in half precision, or in TF32, which has no more digits."""
        return self.unit > HALF_UNIT, max(self.unit, self.unit_of_candidate) > HALF_UNIT

    @property
    def half(self) -> bool:
        """Whether either does."""
        return any(self.halves)

    @property
    def coarser(self) -> float:
        """How many times coarser the candidate rounds than the reference; 1 where it does not."""
        return max(1.0, self.unit_of_candidate / self.unit)

    def _unit(self, side: int) -> float:
        eps = torch.finfo((self.computed, self.candidate)[side]).eps
        return max(eps, TF32_UNIT) if self.tf32[side] else eps


HALF_UNIT = 1e-4
"""Coarser than this is half precision."""
TF32_UNIT = 2.0**-10


def precision(
    record: CaptureRecord,
    gradients: Iterable[torch.Tensor],
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    *,
    eager: bool = True,
) -> Precision | None:
    """How both sides round; None where nothing has digits.

    Autocast leaves gradients in single precision that were computed in half: the lifted tensors tell.

    Args:
        record: the capture.
        gradients: of the user's run.
        device: where the graph runs again; None where it was captured.
        dtype: in what; None for the dtypes of the capture.
        eager: whether the user's run is the reference; else it is the candidate.
    """
    gradients = list(gradients)
    lifted = (getattr(torch, row.dtype.removeprefix("torch."), None) for row in record.inputs)
    dtypes = [each for each in lifted if isinstance(each, torch.dtype)]
    computed = coarsest([*dtypes, *(gradient.dtype for gradient in gradients)])
    if computed is None:
        return None
    home = {gradient.device.type for gradient in gradients}
    there = home if device is None else {device.type}
    run, graph = (computed, _tf32(record, home)), (dtype or computed, _tf32(record, there))
    reference, candidate = (run, graph) if eager else (graph, run)
    return Precision(reference[0], candidate[0], (reference[1], candidate[1]))


def _tf32(record: CaptureRecord, devices: set[str]) -> bool:
    """Whether products in single precision round to TF32 on a device; for convolutions that is CUDA's default."""
    if "cuda" not in devices:
        return False
    convolutions = any("Convolution" in node.name for node in record.autograd_nodes)
    try:
        products, of_convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the user has set them by their newer names, and then these cannot be read
        return True
    return products or (of_convolutions and convolutions)


class PerturbedResults(torch_adapter.InfraMode):
    """Changes what operators give as rounding to a precision might: each element at random, by half a unit at most.

    Args:
        unit: the spacing of numbers around 1 in that precision.
        seed: of the random numbers, which are its own.
    """

    def __init__(self, unit: float, seed: int = 0) -> None:
        super().__init__()
        self._unit, self._seed = unit, seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        if rounds(func):
            given = [leaf for leaf in torch_adapter.tree_leaves((args, kwargs or {})) if isinstance(leaf, torch.Tensor)]
            for tensor in torch_adapter.tree_leaves(returned):
                if type(tensor) is torch.Tensor and tensor.dtype in TOLERANCES and not shares_memory(tensor, given):
                    tensor.copy_(tensor * self._factors(tensor))
        return returned

    def _factors(self, tensor: torch.Tensor) -> torch.Tensor:
        device = tensor.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        drawn = torch.rand(tensor.shape, dtype=torch.float64, device=device, generator=self._generators[device])
        return 1 + (drawn - 0.5) * self._unit


# ---------------------------------------------------------------------------------------------------------- judgement


@dataclass(frozen=True)
class Judged:
    """How far both sides of a comparison are from float64."""

    reference: Distance
    candidate: Distance

    def noted(self, row: GradientComparison) -> GradientComparison:
        """A row with these errors."""
        return replace(row, reference_err=_told(self.reference.largest), candidate_err=_told(self.candidate.largest))

    def verdict(self, row: GradientComparison, noise: Noise, how: Precision) -> GradientComparison:
        """A row that is not equal to the last bit, with the verdict that rounding leads to.

        Args:
            row: outside or inside the tolerance.
            noise: what rounding alone does to the gradient.
            how: how both sides round.
        """
        excess = (
            *_excess(self.reference, noise.reference, row.elements, how.unit, 1.0, half=how.halves[0]),
            *_excess(self.candidate, noise.candidate, row.elements, how.unit, how.coarser, half=how.halves[1]),
        )
        if row.verdict == "mismatch" and max(excess) <= 1:
            return replace(row, verdict="within_noise")
        if row.verdict == "within_tolerance" and how.half and max(excess[2], excess[5]) > 1:
            # The tolerance of half precision is wide enough for a wrong factor to pass.
            apart = self.candidate.systematic - self.reference.systematic
            note = f"larger by {apart:+.2%} as a whole: more than rounding gives"
            return replace(row, verdict="mismatch", note=note)
        return row


@dataclass(frozen=True)
class Noise:
    """What rounding alone does to one gradient."""

    reference: Distance = NONE
    """In the precision, and if need be on the kernels, of the reference;"""
    candidate: Distance = NONE
    """of the candidate, whose coarser precision is not counted in."""

    def or_more(self, other: Noise) -> Noise:
        """The larger in each respect."""
        return Noise(self.reference.or_more(other.reference), self.candidate.or_more(other.candidate))


def _excess(
    side: Distance, noise: Distance, elements: int, unit: float, coarser: float, *, half: bool
) -> tuple[float, float, float]:
    """How many times what it may be a side's distance is, in each respect; up to 1 is in order."""
    allowed = HALF if half else FULL
    spread = 3 / math.sqrt(max(elements, 1))
    straight = max(abs(noise.systematic), spread * max(noise.mean_square, unit / 4), unit / 8)
    return (
        side.largest / (coarser * allowed.largest * max(noise.largest, unit / 2)),
        side.mean_square / (coarser * allowed.mean_square * max(noise.mean_square, unit / 4)),
        abs(side.systematic) / (coarser * allowed.systematic * straight),
    )
