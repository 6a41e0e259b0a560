"""What is said of a capture without a graph, which was watched under `trace=False`."""

from __future__ import annotations

from cabw_viz.errors import CabwError
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.wording import counted

NOT_TRACED = "this backward was watched without a trace (trace=False), so there is no captured graph"
HOW_TO_TRACE = "cabw_viz.capture(model), without trace=False, around another run of this backward"


def check_traced(record: CaptureRecord, wanted: str = "a captured graph, which replays and lowering run") -> None:
    """Raise a CabwError where a capture has no graph, since nothing was traced.

    Args:
        record: the capture.
        wanted: what needs the graph.
    """
    if not record.is_traced:
        raise CabwError(NOT_TRACED, expected=wanted, try_=HOW_TO_TRACE)


def graph_words(record: CaptureRecord) -> str:
    """How many nodes the captured graph has, or that there is none."""
    return counted(len(record.graph_nodes), "graph node") if record.is_traced else "not traced"
