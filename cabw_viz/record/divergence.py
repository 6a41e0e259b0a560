"""Where the gradients of two runs part, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cabw_viz.record.kinds import AutogradKind, Verdict
from cabw_viz.record.model import SourceLine

StepKind = AutogradKind | Literal["gradient_sum", "hook", "in_place_write"]
"""What makes gradients of gradients: an autograd node; the sum of those that meet at an input of one; hooks; somebody
who writes to a gradient while it waits for the node that it goes to."""

BETWEEN: frozenset[StepKind] = frozenset({"gradient_sum", "hook", "in_place_write"})
"""The kinds of steps that are no autograd node, but stand before or after one."""


@dataclass(frozen=True)
class Range:
    """The smallest and the largest element of what flows in or out; NaN where there is one."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.4g} to {self.high:.4g}"


@dataclass(frozen=True)
class Difference:
    """How gradients differ between two runs, the worst of all that flow in, or out."""

    verdict: Verdict
    max_abs_err: float | None = None
    """Largest absolute difference; None where the two cannot be subtracted."""
    max_rel_err: float | None = None
    """Largest absolute difference divided by the largest absolute value of the reference; None as above."""
    note: str = ""


@dataclass(frozen=True)
class DivergenceRow:
    """One step of a backward: an autograd node, or what stands between them."""

    number: int
    """NodeCall number; of what stands between nodes, that of the node that it stands at."""
    kind: StepKind
    name: str
    """`TanhBackward0`, `AccumulateGrad weight`; `sum into TanhBackward0, input 0`, `hook double of TanhBackward0`,
    `write in place to what TanhBackward0 takes, input 0`."""
    module: str = ""
    visit: int = 0
    line: SourceLine | None = None
    into: Difference | None = None
    """What flows in; None where nothing was seen."""
    out: Difference | None = None
    """What flows out; for an accumulation, what it adds to `.grad`."""
    own: Difference | None = None
    """What flows out if the same flows in on both sides: the step's own difference. None where that is not known."""
    note: str = ""


@dataclass(frozen=True)
class NonFinite:
    """The first step of a run that makes a NaN or an infinity of finite gradients."""

    side: str
    """`reference`, `candidate`, or `both`."""
    row: int
    """Index into the rows."""
    into: tuple[Range, ...]
    """Of each gradient that flows in."""
    out: Range
    """Of the first gradient that is not finite."""


@dataclass(frozen=True)
class Divergence:
    """The gradients into and out of every autograd node, seen from a reference and from a candidate."""

    reference: str
    """What the reference is, in words."""
    candidate: str
    """What is held against it, in words."""
    rows: tuple[DivergenceRow, ...]
    """In the order in which the graph runs."""
    culprits: tuple[int, ...] = ()
    """Indices of the rows that make a difference of what agrees, in order; the first is the first divergence."""
    nonfinite: tuple[NonFinite, ...] = ()
    """At most one for each side."""
    tolerances: tuple[tuple[str, float, float], ...] = ()
    """(dtype, rtol, atol) in use, one for each dtype met."""
    compared: int = 0
    """How many gradients were compared."""
    notes: tuple[str, ...] = ()
    """What a reader must know beside the rows."""

    @property
    def first(self) -> DivergenceRow | None:
        """The first step whose inputs agree and whose outputs differ; None where there is none."""
        return self.rows[self.culprits[0]] if self.culprits else None
