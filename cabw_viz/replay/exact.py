"""What rounding explains: both sides of a comparison held against a float64 run of the same graph.

Two right answers differ by rounding, and how much depends on the gradient: one that should be zero consists of nothing
else. So each side's own distance from float64 is measured. A difference beyond the tolerance is noise if the candidate
is no further from float64 than the reference is, times a factor for kernels that sum in another order, and if it is off
in no direction: an error of rounding averages out over a gradient's elements, a factor or a dropped term does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.model import CaptureRecord
from cabw_viz.replay.noise import coarsest

HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Allowance:
    """How many times as far from float64 as the reference a candidate may be, and still be right."""

    largest: float
    """In its worst element,"""
    mean_square: float
    """over all elements,"""
    systematic: float
    """and along the gradient itself."""


# Seen of inductor against eager on the CPU, over the parameters of a GPT-2 of three layers and of a small net of
# convolutions and batch norms: at most 1.63, 1.00 and (bfloat16, of what SYSTEMATIC gives) 1.0 in bfloat16; in float32
# 3.04 and 1.31, in other nets up to 15 in the worst element. A factor of 1.01 in one node gives 5 and more in bfloat16.
HALF = Allowance(4.0, 2.0, 3.0)
FULL = Allowance(32.0, 16.0, 16.0)


@dataclass(frozen=True)
class Distance:
    """How far a gradient is from the float64 one, in units of that."""

    largest: float
    """Largest absolute difference by largest absolute value."""
    mean_square: float
    """Norm of the difference by norm."""
    systematic: float
    """By which part of itself the gradient is too large: its component along the float64 one, less one."""


def distance(value: torch.Tensor, exact: torch.Tensor) -> Distance:
    """How far a dense gradient is from the float64 one of its shape."""
    exact = exact.reshape(-1)
    apart = value.to(exact.device, exact.dtype).reshape(-1) - exact
    if not exact.numel():
        return Distance(0.0, 0.0, 0.0)
    norm = torch.linalg.vector_norm(exact)
    along = torch.vdot(exact, apart).real
    return Distance(
        _ratio(apart.abs().max(), exact.abs().max()),
        _ratio(torch.linalg.vector_norm(apart), norm),
        _ratio(along, norm * norm),
    )


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> float:
    top, bottom = float(part), float(whole)
    return top / bottom if bottom else (math.copysign(math.inf, top) if top else 0.0)


@dataclass(frozen=True)
class Rounding:
    """How the two sides of a comparison round."""

    computed: torch.dtype
    """The coarsest dtype in which the reference computes."""
    candidate: torch.dtype
    """That of the candidate."""

    @property
    def half(self) -> bool:
        """Whether either computes in half precision."""
        return self.computed in HALVES or self.candidate in HALVES

    @property
    def coarser(self) -> float:
        """How many times coarser the candidate rounds than the reference; 1 where it does not."""
        return max(1.0, torch.finfo(self.candidate).eps / torch.finfo(self.computed).eps)


def rounding(record: CaptureRecord, gradients: Iterable[torch.Tensor], asked: torch.dtype | None) -> Rounding | None:
    """How both sides round; None where nothing has digits.

    Autocast leaves gradients in single precision that were computed in half: the lifted tensors tell.
    """
    lifted = (getattr(torch, row.dtype.removeprefix("torch."), None) for row in record.inputs)
    dtypes = [dtype for dtype in lifted if isinstance(dtype, torch.dtype)]
    computed = coarsest([*dtypes, *(gradient.dtype for gradient in gradients)])
    return None if computed is None else Rounding(computed, asked or computed)


def judged(
    row: GradientComparison, reference: torch.Tensor, candidate: torch.Tensor, exact: torch.Tensor, how: Rounding
) -> GradientComparison:
    """A row with the errors of both sides, and with the verdict that they lead to.

    Args:
        row: what the comparison of the two came to: `bitwise`, `within_tolerance` or `mismatch`.
        reference: a dense gradient.
        candidate: the same of the candidate.
        exact: the same of a float64 run.
        how: how both round.
    """
    ours, theirs = distance(reference, exact), distance(candidate, exact)
    row = replace(row, reference_err=ours.largest, candidate_err=theirs.largest)
    if row.verdict == "bitwise":
        return row
    unit = torch.finfo(how.computed).eps
    allowed = HALF if how.half else FULL
    spread = 3 / math.sqrt(max(exact.numel(), 1))
    bias = max(abs(ours.systematic), spread * max(ours.mean_square, unit / 4), unit / 8)
    straight = abs(theirs.systematic) <= allowed.systematic * how.coarser * bias
    near = theirs.largest <= allowed.largest * how.coarser * max(
        ours.largest, unit / 2
    ) and theirs.mean_square <= allowed.mean_square * how.coarser * max(ours.mean_square, unit / 4)
    if row.verdict == "mismatch" and near and straight:
        return replace(row, verdict="within_noise")
    if row.verdict == "within_tolerance" and how.half and not straight:
        # The tolerance of half precision is wide enough for a wrong factor to pass.
        return replace(row, verdict="mismatch", note=_off(theirs.systematic, ours.systematic))
    return row


def _off(candidate: float, reference: float) -> str:
    return f"off by {candidate:+.2%} as a whole, the reference by {reference:+.2%}: more than rounding gives"
