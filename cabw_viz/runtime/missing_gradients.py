"""What a backward gave no gradient, from its record and from what the capture has kept."""

from __future__ import annotations

from dataclasses import replace

from cabw_viz.record.missing import MissingGradient, MissingGradients
from cabw_viz.record.model import CaptureRecord
from cabw_viz.runtime.capture_state import CaptureState
from cabw_viz.runtime.zero_gradients import EmptyGradients, cleared_rows


def missing_gradients(record: CaptureRecord, state: CaptureState | None) -> MissingGradients:
    """All that is missing.

    Args:
        record: of the capture.
        state: what it has kept; None where there is a record alone.
    """
    given = _given_inside(record)
    later = frozenset[str]() if state is None else state.given_later
    rows = [_given_later(row, later) for row in record.missing if row.label not in given]
    known = {name for row in rows for name in row.names}
    empty: list[MissingGradient] = []
    if state is not None and not state.released:
        rows += [row for row in cleared_rows(record, state) if known.isdisjoint(row.names)]
        empty = [row for row in EmptyGradients(record, state).rows() if row.label not in given]
    undefined = [row for row in empty if row.reason == "undefined" and known.isdisjoint(row.names)]
    zero = [row for row in empty if row.reason == "zero"]
    gradients = sum(leaf.autograd_node is not None for leaf in record.leaves) - len(undefined)
    return MissingGradients(record.parameters, gradients, (*rows, *undefined, *zero), tuple(_notes(record, state)))


def _given_inside(record: CaptureRecord) -> frozenset[str]:
    """Labels of what got its gradient in the run otherwise: in a backward inside of it, or from a hook."""
    inner = (label for each in record.inner_backwards for label in each.leaves)
    return frozenset((*inner, *record.other_gradients))


def _given_later(row: MissingGradient, later: frozenset[str] | set[str]) -> MissingGradient:
    return replace(row, reason="only") if row.label in later and row.reason == "not_in_loss" else row


def _notes(record: CaptureRecord, state: CaptureState | None) -> list[str]:
    notes = []
    if record.parameters is None:
        notes.append(
            "capture() got no subject, so it is not known which parameters should have a gradient: "
            "cabw_viz.capture(model) says so"
        )
    if state is None or state.released:
        notes.append("the session is closed: zero gradients, and those set to None later, were not looked for")
    elif not state.has_reference:
        notes.append(
            "no gradients of your own run were kept: zero gradients, and those set to None later, were not looked for"
        )
    elif state.node_gradients is None:
        notes.append('what made a gradient zero is known with capture(gradients="nodes") alone')
    return notes
