"""Whole steps compared with the uncompiled one, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.kinds import Compared


@dataclass(frozen=True)
class StepCall:
    """One call of a step, against the same call of its reference."""

    index: int
    rows: tuple[GradientComparison, ...]
    """Gradients, loss, further results and buffers; empty where one of the two raised."""
    raised: str = ""
    """What the call raised, `RuntimeError: …`; empty where it ran."""
    reference_raised: str = ""
    """What the reference's call raised."""


@dataclass(frozen=True)
class StepRun:
    """Several calls of a step in a row, in one mode."""

    name: str
    description: str
    """What was run."""
    reference: str
    """The name of the run that it is compared with: `eager`, `as_is`, `cuda/eager`."""
    calls: tuple[StepCall, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepMatrix:
    """All runs of a comparison of whole steps."""

    runs: tuple[StepRun, ...]
    reference: str
    """A description of `eager`, the reference of every run that names no other."""
    repeats: int
    """How many calls each run made."""
    values: tuple[tuple[Compared, str], ...] = ()
    """Kind and name of each value that the reference left."""
    raised: tuple[str, ...] = ()
    """What the reference raised in each call; empty texts where it ran."""
    tolerances: tuple[tuple[str, float, float], ...] = ()
    """(dtype, rtol, atol) in use, one for each dtype met."""
    notes: tuple[str, ...] = ()
