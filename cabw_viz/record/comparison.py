"""The outcome of comparing gradients, as plain data; every comparison of the package ends in these two."""

from __future__ import annotations

from dataclasses import dataclass

from cabw_viz.record.kinds import Compared, Verdict


@dataclass(frozen=True)
class Element:
    """One element of a gradient, on both sides."""

    index: tuple[int, ...]
    reference: complex
    candidate: complex


@dataclass(frozen=True)
class GradientComparison:
    """One gradient, seen from a reference and from a candidate."""

    name: str
    verdict: Verdict
    max_abs_err: float | None
    """Largest absolute difference; None where the two cannot be subtracted."""
    max_rel_err: float | None
    """Largest absolute difference divided by the largest absolute value of the reference; None as above."""
    shape: tuple[int, ...]
    dtype: str
    elements: int = 0
    mismatched: int = 0
    """How many elements lie outside the tolerance."""
    note: str = ""
    """What else there is to say: which metadata differ, on which side the values are not finite."""
    first: Element | None = None
    """The first element outside the tolerance, or that is not finite; where there is none, the first that differs."""
    kind: Compared = "gradient"
    noise: float | None = None
    """How far eager is from itself, in units of `max_abs_err`; None where that was not measured."""
    norm_err: float | None = None
    """Norm of the difference by norm of the reference; of a value of a whole step that is outside the tolerance."""
    reference_err: float | None = None
    """How far the reference is from a float64 run of the same graph: the largest absolute difference divided by the
    largest absolute value of the float64 gradient; None where there was no such run."""
    candidate_err: float | None = None
    """The same of the candidate."""
    measures: tuple[tuple[str, float], ...] = ()
    """Further measures that were asked for, by name."""
    nonfinite: int = 0
    """How many elements are NaN or infinite in the same way on both sides. The verdict is that of the others."""
    depth: int | None = None
    """Number of the first autograd node that the gradient comes from: the larger, the nearer to the model's input."""


@dataclass(frozen=True)
class Comparison:
    """Gradients of one backward, compared one by one."""

    reference: str
    """A description of the reference: `your own eager run, on cpu in float32`."""
    candidate: str
    """A description of the other side."""
    rows: tuple[GradientComparison, ...]
    tolerances: tuple[tuple[str, float, float], ...] = ()
    """(dtype, rtol, atol) in use, one for each dtype met."""
    notes: tuple[str, ...] = ()
    """What a reader must know beside the rows: hooks that ran again, hooks left out, where both were compared."""
    missed: tuple[str, ...] = ()
    """Names of the gradients that the backward made and that are not among the rows."""
    coverage: str = ""
    """What was not compared, and why, in whole sentences; empty where all was."""
