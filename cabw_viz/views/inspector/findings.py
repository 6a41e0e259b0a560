"""Packs what was found of a capture, and what became of its session's backward calls, each as a part of its own.

Findings come after the graph and may be replaced, so that the graph is not sent again. See `packing` for the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import numpy as np

from cabw_viz.analysis import nonfinite, parity
from cabw_viz.analysis.drawing import call_title, file_and_line
from cabw_viz.analysis.touches import all_touches, watched_phases
from cabw_viz.record.comparison import Comparison
from cabw_viz.record.kinds import SEVERITY, Outcome, Phase, Toucher
from cabw_viz.record.model import CaptureRecord, Event
from cabw_viz.record.nonfinite import NonFiniteSearch
from cabw_viz.record.results import NO_RESULTS, Results
from cabw_viz.views.inspector.diverging import pack_divergence
from cabw_viz.views.inspector.packing import (
    Column,
    Differences,
    Table,
    errors,
    growing,
    joined,
    one_based,
    places_of,
    short,
    smallest,
)

OUTCOMES, PHASES, TOUCHERS = get_args(Outcome), get_args(Phase), get_args(Toucher)


def pack_session(records: Sequence[CaptureRecord], events: Iterable[Event]) -> bytes:
    """What the inspector shows of a session beside the capture that is open: its captures by title, its events."""
    events = list(events)
    functions, places, reasons = Table(), Table(), Table()
    columns: dict[str, Column | Differences] = {
        "event_call": growing([0 if e.call.index is None else e.call.index + 1 for e in events]),
        "event_function": functions.of(e.call.function for e in events),
        "event_place": places.of(file_and_line(e.call.where) for e in events),
        "event_outcome": smallest([OUTCOMES.index(e.outcome) for e in events]),
        "event_reason": reasons.optional(e.reason for e in events),
        "event_capture": growing([0 if e.capture is None else e.capture + 1 for e in events]),
        "event_seconds": np.asarray([e.seconds for e in events], "<f4"),
    }
    captures = [
        {
            "title": call_title(record),
            "nodes": len(record.autograd_nodes),
            "graph_nodes": len(record.graph_nodes),
            "failed": record.failure is not None,
        }
        for record in records
    ]
    tables = {
        "outcomes": OUTCOMES,
        "functions": functions.values,
        "places": places.values,
        "reasons": reasons.values,
    }
    return joined({"captures": captures}, tables, columns)


def pack_results(record: CaptureRecord, results: Results, capture: int = 0) -> dict[str, bytes]:
    """The parts of a capture that may change while it is shown, by the name of the part."""
    return {
        "touches": pack_touches(record, results, capture),
        "parity": pack_parity(record, results.comparison, capture),
        "divergence": pack_divergence(record, results.divergence, capture),
        "times": pack_times(results, capture),
        "nonfinite": pack_nonfinite(results.nonfinite, capture),
    }


def pack_touches(record: CaptureRecord, results: Results = NO_RESULTS, capture: int = 0) -> bytes:
    """The metadata reads: in which phase, by what, and where."""
    places, attributes, wheres, at = places_of(record), Table(), Table(), Table()
    graph_nodes, touches = record.graph_nodes, all_touches(record, results)
    columns: dict[str, Column | Differences] = {
        "touch_phase": smallest([PHASES.index(touch.phase) for touch in touches]),
        "touch_node": growing([one_based(places, touch.autograd_node) for touch in touches]),
        "touch_attribute": attributes.of(touch.attribute for touch in touches),
        "touch_by": smallest([TOUCHERS.index(touch.by) for touch in touches]),
        "touch_place": wheres.of(touch.where for touch in touches),
        "touch_count": smallest([min(touch.count, 2**32 - 1) for touch in touches]),
        "touch_at": at.optional(None if t.node is None else graph_nodes[t.node].name for t in touches),
    }
    tables = {
        "phases": PHASES,
        "touchers": TOUCHERS,
        "attributes": attributes.values,
        "touch_places": wheres.values,
        "touched_nodes": at.values,
    }
    return joined({"capture": capture, "watched": watched_phases(record, results)}, tables, columns)


def pack_parity(record: CaptureRecord, comparison: Comparison | None, capture: int = 0) -> bytes:
    """Gradients held against a reference, each with its leaf's node; no bytes where nothing was compared.

    Args:
        record: the capture.
        comparison: what its gradients came to.
        capture: its place in the session.
    """
    if comparison is None:
        return b""
    rows, places = comparison.rows, places_of(record)
    node_of = {leaf.label: leaf.autograd_node for leaf in record.leaves}
    names, shapes, dtypes, notes = Table(), Table(), Table(), Table()
    columns: dict[str, Column | Differences] = {
        "row_name": names.of(row.name for row in rows),
        "row_node": growing([one_based(places, node_of.get(row.name)) for row in rows]),
        "row_verdict": smallest([SEVERITY.index(row.verdict) for row in rows]),
        "row_abs": errors(row.max_abs_err for row in rows),
        "row_rel": errors(row.max_rel_err for row in rows),
        "row_shape": shapes.of(row.shape for row in rows),
        "row_dtype": dtypes.of(short(row.dtype) for row in rows),
        "row_elements": np.asarray([row.elements for row in rows], "<f8"),
        "row_mismatched": np.asarray([row.mismatched for row in rows], "<f8"),
        "row_note": notes.optional(row.note for row in rows),
    }
    facts = {
        "capture": capture,
        "summary": parity.summary(comparison),
        "ok": parity.ok(comparison),
        "missed": len(comparison.missed),
        "reference": comparison.reference,
        "candidate": comparison.candidate,
        "tolerances": comparison.tolerances,
        "notes": comparison.notes,
    }
    tables: dict[str, Sequence[object]] = {
        "verdicts": SEVERITY,
        "row_names": names.values,
        "row_shapes": shapes.values,
        "row_dtypes": dtypes.values,
        "row_notes": notes.values,
    }
    return joined(facts, tables, columns)


def pack_times(results: Results, capture: int = 0) -> bytes:
    """Seconds that each autograd node took; no bytes where nothing was timed."""
    if not results.node_seconds:
        return b""
    return joined({"capture": capture}, {}, {"seconds": errors(results.node_seconds)})


def pack_nonfinite(search: NonFiniteSearch | None, capture: int = 0) -> bytes:
    """Where NaN and infinity begin, each place with its node; no bytes where that was not looked for."""
    if search is None:
        return b""
    facts = {
        "capture": capture,
        "ok": nonfinite.ok(search),
        "summary": nonfinite.summary(search),
        "origins": [[each.number, nonfinite.place_of(each), nonfinite.origin_text(each)] for each in search.origins],
    }
    return joined(facts, {}, {})
