"""Puts the marks of touched nodes into a drawing."""

from __future__ import annotations

from dataclasses import replace

from cabw_viz.analysis.drawing import Drawing
from cabw_viz.analysis.touches import BROKEN, NAMED, marks, summary
from cabw_viz.record.model import CaptureRecord


def marked(drawing: Drawing, record: CaptureRecord) -> Drawing:
    """The drawing with a mark on each box that was touched.

    At levels `module` and `autograd` that is the box of the node in whose call it happened; at level `fx` that of the
    graph node whose output was read, or, where it is folded away or not known, all of the node's backward calls.
    """
    by_box = _by_graph_node(record, drawing) if drawing.level == "fx" else _by_autograd_node(record, drawing)
    boxes = tuple(replace(box, touched=by_box[box.id]) if box.id in by_box else box for box in drawing.boxes)
    return replace(drawing, boxes=boxes, findings=summary(record))


def _by_autograd_node(record: CaptureRecord, drawing: Drawing) -> dict[str, str]:
    texts = {number: str(mark) for number, mark in marks(record).items()}
    found = {}
    for box in drawing.boxes if texts else ():
        touched = [number for number in box.nodes if number in texts]
        if len(box.nodes) == 1 and touched:
            found[box.id] = texts[touched[0]]
        elif touched:
            shown = [f"#{number} {texts[number]}" for number in touched[:NAMED]]
            found[box.id] = "; ".join([*shown, *(["…"] if len(touched) > NAMED else [])])
    return found


def _by_graph_node(record: CaptureRecord, drawing: Drawing) -> dict[str, str]:
    """By the box that stands for the graph node read, through folded ones to the box that the value comes from."""
    shown = {box.id for box in drawing.boxes}
    texts = marks(record)
    found = {}
    for touch in record.touches:
        if touch.phase in BROKEN and touch.autograd_node in texts:
            box = _shown_box(record, shown, touch.node)
            if box is not None:
                found[box] = str(texts[touch.autograd_node])
    return found


def _shown_box(record: CaptureRecord, shown: set[str], ordinal: int | None) -> str | None:
    while ordinal is not None and f"g{ordinal}" not in shown:
        node = record.graph_nodes[ordinal]
        ordinal = node.inputs[0] if node.kind == "getitem" and node.inputs else None
    return None if ordinal is None else f"g{ordinal}"
