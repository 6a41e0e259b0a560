"""How large the gradients of the user's own run were, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class GradientStatistics:
    """The size of one gradient, and what kinds of numbers are in it.

    A complex number is one element, and counts by its absolute value.
    """

    shape: tuple[int, ...]
    dtype: str
    elements: int
    norm: float | None = None
    """Euclidean norm, in single precision or better and summed in double; NaN or infinite where an element is. None
    where it is not known: `note` says why."""
    largest: float | None = None
    """Largest absolute value; NaN where an element is."""
    zeros: int = 0
    """How many elements are exactly zero."""
    subnormals: int = 0
    """How many others are below the smallest normal number of the dtype: they have lost digits, or soon will."""
    nans: int = 0
    infinities: int = 0
    note: str = ""

    @property
    def rms(self) -> float | None:
        """Root mean square; 0 for a gradient without elements."""
        return None if self.norm is None else self.norm / math.sqrt(max(self.elements, 1))

    @property
    def is_zero(self) -> bool:
        """Whether there are elements, and every one is zero."""
        return self.norm is not None and 0 < self.elements == self.zeros

    @property
    def is_finite(self) -> bool:
        """Whether no element is known to be NaN or infinite."""
        return not (self.nans or self.infinities)


@dataclass(frozen=True)
class NodeSizes:
    """The gradients that flow into and out of one autograd node; None for one that is undefined or was not kept."""

    number: int
    inputs: tuple[GradientStatistics | None, ...] = ()
    """After all hooks."""
    outputs: tuple[GradientStatistics | None, ...] = ()
    """After all hooks; empty for a node that accumulates."""


@dataclass(frozen=True)
class LeafSizes:
    """The gradient of one leaf, before it is added to `.grad`."""

    leaf: int
    """Index into `CaptureRecord.leaves`."""
    gradient: GradientStatistics | None
    """None where this backward gave it none."""
    parameter_norm: float | None = None
    """Euclidean norm of the leaf itself when the backward began; None where it was not noted."""


@dataclass(frozen=True)
class GradientSizes:
    """The sizes of all gradients of a capture."""

    leaves: tuple[LeafSizes, ...]
    nodes: tuple[NodeSizes, ...] = ()
    """Of the autograd nodes whose gradients were kept, by number; empty with `gradients="leaves"`."""


def together(statistics: tuple[GradientStatistics | None, ...]) -> GradientStatistics | None:
    """Several gradients as one; the first of its shape and dtype. None where there is none.

    What is not known of one is not known of all.
    """
    present = [each for each in statistics if each is not None]
    if len(present) <= 1:
        return present[0] if present else None
    norms = [each.norm for each in present if each.norm is not None]
    sizes = [each.largest for each in present if each.largest is not None]
    is_known = len(norms) == len(present)
    return GradientStatistics(
        present[0].shape,
        present[0].dtype,
        sum(each.elements for each in present),
        math.hypot(*norms) if is_known else None,
        (math.nan if any(map(math.isnan, sizes)) else max(sizes)) if is_known else None,
        sum(each.zeros for each in present),
        sum(each.subnormals for each in present),
        sum(each.nans for each in present),
        sum(each.infinities for each in present),
        next((each.note for each in present if each.note), ""),
    )
