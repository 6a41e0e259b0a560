"""Whole steps held against the uncompiled one, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from cabw_viz.record.comparison import GradientComparison


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
    """Several calls of a step in a row, in one manner."""

    name: str
    words: str
    """What was run."""
    reference: str
    """What it is held against, in words."""
    calls: tuple[StepCall, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepMatrix:
    """All runs of a comparison of whole steps."""

    runs: tuple[StepRun, ...]
    repeats: int
    """How many calls each run made."""
    tolerances: tuple[tuple[str, float, float], ...] = ()
    """(dtype, rtol, atol) in use, one for each dtype met."""
    notes: tuple[str, ...] = ()
