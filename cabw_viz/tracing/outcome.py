"""How the trace of one backward call ended: one of four values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cabw_viz.record.model import CaptureRecord, Failure


@dataclass(frozen=True)
class NewCapture:
    """The call is a capture: compiled autograd traced it to its end, or it is watched without a trace."""

    index: int
    """Index of the capture that the call became."""
    record: CaptureRecord


@dataclass(frozen=True)
class CacheHit:
    """Compiled autograd had the graph of an earlier capture in its cache, and traced nothing."""

    index: int
    """Index of the earlier capture."""


@dataclass(frozen=True)
class TraceFailed:
    """The trace ended without a graph."""

    index: int
    """Index of the capture that has what the trace came to before it failed."""
    record: CaptureRecord
    failure: Failure


@dataclass(frozen=True)
class RanForeignGraph:
    """The engine ran a call that was to be traced only. The call must not be made again."""

    result: Any
    """What the call returned."""


TraceOutcome = NewCapture | CacheHit | TraceFailed | RanForeignGraph
