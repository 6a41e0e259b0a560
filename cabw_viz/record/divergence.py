"""The gradients of two runs at every step of a backward, compared, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cabw_viz.record.kinds import AutogradKind, Verdict
from cabw_viz.record.source_line import SourceLine

StepKind = AutogradKind | Literal["gradient_sum", "hook", "in_place_write"]
"""A step of the backward: an autograd node, a sum of gradients at one of its inputs, a hook, or an in-place write to a
pending gradient."""

BETWEEN: frozenset[StepKind] = frozenset({"gradient_sum", "hook", "in_place_write"})
"""The kinds of steps that are no autograd node, but come before or after one."""


@dataclass(frozen=True)
class Range:
    """The smallest and the largest element of what flows in or out; NaN where there is one."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.4g} to {self.high:.4g}"


@dataclass(frozen=True)
class Difference:
    """How gradients differ between two runs: the worst of a step's inputs, or of its outputs."""

    verdict: Verdict
    max_abs_err: float | None = None
    """Largest absolute difference; None where the two cannot be subtracted."""
    max_rel_err: float | None = None
    """Largest absolute difference divided by the largest absolute value of the reference; None as above."""
    note: str = ""


@dataclass(frozen=True)
class DivergenceRow:
    """One step of a backward: an autograd node, or a step between autograd nodes."""

    number: int
    """NodeCall number; of a step between nodes, the number of the node before or after it."""
    kind: StepKind
    name: str
    """`TanhBackward0`, `AccumulateGrad weight`; `sum into TanhBackward0, input 0`, `hook double of TanhBackward0`,
    `write in place to what TanhBackward0 takes, input 0`."""
    module: str = ""
    visit: int = 0
    line: SourceLine | None = None
    into: Difference | None = None
    """Of the inputs; None where none was seen."""
    out: Difference | None = None
    """Of the outputs; for an accumulation, of what it adds to `.grad`."""
    own: Difference | None = None
    """Of the outputs for the same inputs on both sides: the step's own difference. None where that is not known."""
    note: str = ""


@dataclass(frozen=True)
class NonFinite:
    """The first step of a run that makes a NaN or an infinity of finite gradients."""

    side: str
    """`reference`, `candidate`, or `both`."""
    row: int
    """Index into the rows."""
    into: tuple[Range, ...]
    """Of each input."""
    out: Range
    """Of the first output that is not finite."""


@dataclass(frozen=True)
class Divergence:
    """The gradients into and out of every autograd node, seen from a reference and from a candidate."""

    reference: str
    """A description of the reference."""
    candidate: str
    """A description of the other side."""
    rows: tuple[DivergenceRow, ...]
    """In the order in which the graph runs."""
    culprits: tuple[int, ...] = ()
    """Indices of the rows whose inputs match and whose outputs differ, in order; the first is the first divergence."""
    nonfinite: tuple[NonFinite, ...] = ()
    """At most one for each side."""
    tolerances: tuple[tuple[str, float, float], ...] = ()
    """(dtype, rtol, atol) in use, one for each dtype met."""
    compared: int = 0
    """How many gradients were compared."""
    notes: tuple[str, ...] = ()
    """What a reader must know beside the rows."""
    coverage: str = ""
    """Which gradients were not compared, and why, in whole sentences; empty where all were."""

    @property
    def first(self) -> DivergenceRow | None:
        """The first step whose inputs agree and whose outputs differ; None where there is none."""
        return self.rows[self.culprits[0]] if self.culprits else None
