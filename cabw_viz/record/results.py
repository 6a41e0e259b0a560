"""What was computed of a capture, as plain data. The record is what was captured, and stays as it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from cabw_viz.record.comparison import Comparison
from cabw_viz.record.divergence import Divergence
from cabw_viz.record.gradients import GradientSizes
from cabw_viz.record.missing import MissingGradients
from cabw_viz.record.model import CaptureRecord, GraphNode, Touch
from cabw_viz.record.nonfinite import NonFiniteSearch


@dataclass(frozen=True)
class Results:
    """The latest result of each method that runs or lowers a captured graph."""

    comparison: Comparison | None = None
    """Of `cap.parity()`; None before."""
    divergence: Divergence | None = None
    """Of `cap.divergence()`; None before."""
    gradients: GradientSizes | None = None
    """Of `cap.gradients()`; None before."""
    nonfinite: NonFiniteSearch | None = None
    """Of `cap.nonfinite()`; None before."""
    missing: MissingGradients | None = None
    """Of `cap.missing()`; None before."""
    execution: tuple[Touch, ...] | None = None
    """The metadata reads of phase `execution` that `cap.audit()` saw; None before."""
    lowered: tuple[GraphNode, ...] = ()
    """The graph of aten operators that `cap.lower()` made; empty before."""
    node_seconds: tuple[float | None, ...] = field(default=(), compare=False)
    """How long each autograd node took in `cap.times()`, in the order of the record's `autograd_nodes`; empty before.
    None for a node of which the graph runs nothing."""


NO_RESULTS = Results()

CaptureData = tuple[CaptureRecord, Results]
"""All that is known of a capture."""
