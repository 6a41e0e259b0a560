"""Packs a search for the first divergence: how the gradients at each node compare, and which steps are at fault."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cabw_viz.analysis import divergence as analysis
from cabw_viz.record.divergence import Difference, Divergence, DivergenceRow
from cabw_viz.record.kinds import GOOD, SEVERITY
from cabw_viz.record.model import CaptureRecord
from cabw_viz.views.inspector.packing import (
    Column,
    Differences,
    Table,
    errors,
    growing,
    joined,
    one_based,
    places_of,
    smallest,
)


def pack_divergence(record: CaptureRecord, divergence: Divergence | None, capture: int = 0) -> bytes:
    """What flows into and out of every autograd node, held against a reference; no bytes where that was not looked for.

    A sum of gradients and hooks are steps of their own, at the node that they stand at.

    Args:
        record: the capture.
        divergence: what the search came to.
        capture: its place in the session.
    """
    if divergence is None:
        return b""
    steps: dict[int, list[DivergenceRow]] = {}
    for row in divergence.rows:
        steps.setdefault(row.number, []).append(row)
    at_node = [steps.get(node.number, []) for node in record.autograd_nodes]
    culprits = [divergence.rows[index] for index in divergence.culprits]
    own = [row.own or Difference("mismatch") for row in culprits]
    places, kinds, names, notes = places_of(record), Table(), Table(), Table()
    columns: dict[str, Column | Differences] = {
        "node_into": errors(_worst([row.into for row in rows]) for rows in at_node),
        "node_out": errors(_worst([row.out for row in rows]) for rows in at_node),
        "node_verdict": smallest([_verdict([d for row in rows for d in (row.into, row.out)]) for rows in at_node]),
        "culprit_node": growing([one_based(places, row.number) for row in culprits]),
        "culprit_kind": kinds.of(row.kind for row in culprits),
        "culprit_name": names.of(row.name for row in culprits),
        "culprit_verdict": smallest([SEVERITY.index(difference.verdict) for difference in own]),
        "culprit_rel": errors(difference.max_rel_err for difference in own),
        "culprit_abs": errors(difference.max_abs_err for difference in own),
        "culprit_note": notes.optional(difference.note for difference in own),
    }
    facts = {
        "capture": capture,
        "ok": analysis.ok(divergence),
        "drifts": analysis.drifts(divergence),
        "first": None if divergence.first is None else divergence.first.number,
        "summary": analysis.summary(divergence),
        "reference": divergence.reference,
        "candidate": divergence.candidate,
        "compared": divergence.compared,
        "nonfinite": [
            [divergence.rows[each.row].number, analysis.nonfinite_text(divergence, each)]
            for each in divergence.nonfinite
        ],
        "notes": (*([divergence.coverage] if divergence.coverage else []), *divergence.notes),
    }
    tables: dict[str, Sequence[object]] = {
        "verdicts": SEVERITY,
        "culprit_kinds": kinds.values,
        "culprit_names": names.values,
        "culprit_notes": notes.values,
    }
    return joined(facts, tables, columns)


def _worst(differences: Sequence[Difference | None]) -> float | None:
    """The largest relative error; endless where something is missing, not finite or of another kind."""
    known = [difference for difference in differences if difference is not None]
    return max(map(_error, known)) if known else None


def _error(difference: Difference) -> float:
    if difference.max_rel_err is not None:
        return difference.max_rel_err
    return 0.0 if difference.verdict in GOOD else math.inf


def _verdict(differences: Sequence[Difference | None]) -> int:
    """The worst verdict, counted from 1; 0 where nothing was compared."""
    return max((SEVERITY.index(each.verdict) + 1 for each in differences if each is not None), default=0)
