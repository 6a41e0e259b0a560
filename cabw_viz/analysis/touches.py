"""Which autograd nodes were touched, and what to say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cabw_viz.analysis.drawing import Drawing
from cabw_viz.record.kinds import HookKind, Phase
from cabw_viz.record.model import CaptureRecord, Touch
from cabw_viz.record.results import NO_RESULTS, Results
from cabw_viz.record.wording import counted

BROKEN: tuple[Phase, ...] = ("initial_trace", "graph_pass")
"""The phases in which PyTorch promises that nobody reads metadata; a read while the graph runs breaks no promise."""

PHASES: dict[Phase, str] = {
    "initial_trace": "initial trace",
    "graph_pass": "graph passes",
    "execution": "execution",
}

NAMED = 3
"""So many touched nodes are named in a summary; of the others the number is given."""

_HOOKS: dict[HookKind, str] = {
    "tensor_pre_hook": "tensor hook",
    "cpp_tensor_pre_hook": "hook of retain_grad()",
    "pre_hook": "pre-hook",
    "post_hook": "post-hook",
    "post_acc_grad_hook": "post-accumulate hook",
}


@dataclass(frozen=True)
class Mark:
    """That an autograd node was touched: what was read, by whom."""

    number: int
    attributes: tuple[str, ...]
    """Metadata first, then ops, each in order of first reading."""
    by: tuple[str, ...]
    """Who read it, and with the tracer, for which hook."""

    def __str__(self) -> str:
        return f"{', '.join(self.attributes)}; {', '.join(self.by)}"


def all_touches(record: CaptureRecord, results: Results) -> tuple[Touch, ...]:
    """The touches of the capture, then those of the last audit."""
    return record.touches + (results.execution or ())


def watched_phases(record: CaptureRecord, results: Results) -> tuple[Phase, ...]:
    """The phases in which reads were watched: that there is no touch means something only there."""
    return record.watched if results.execution is None else (*record.watched, "execution")


def marks(record: CaptureRecord) -> dict[int, Mark]:
    """The autograd nodes that were touched before the graph ran, by number, ascending."""
    return _marks(record, record.touches)


def _marks(record: CaptureRecord, touches: Sequence[Touch]) -> dict[int, Mark]:
    by_node: dict[int, list[Touch]] = {}
    for touch in touches:
        if touch.autograd_node is not None:
            by_node.setdefault(touch.autograd_node, []).append(touch)
    return {number: _mark(record, number, by_node[number]) for number in sorted(by_node)}


def _mark(record: CaptureRecord, number: int, touches: list[Touch]) -> Mark:
    read = dict.fromkeys(touch.attribute.removesuffix(".default") for touch in touches)
    attributes = [a for a in read if "." not in a] + [a for a in read if "." in a]
    by: list[str] = list(dict.fromkeys(touch.by for touch in touches))
    node = record.by_number.get(number)
    if "tracer" in by and node is not None:
        by += dict.fromkeys(_HOOKS[hook.kind] for hook in node.hooks if hook.kind in _HOOKS)
    return Mark(number, tuple(attributes), tuple(by))


class TouchSummary(NamedTuple):
    """A sentence about one phase."""

    text: str
    alarming: bool
    """Whether a promise was broken: somebody read metadata before the graph ran."""


def summary(record: CaptureRecord, results: Results = NO_RESULTS) -> tuple[TouchSummary, ...]:
    """A summary of each phase that was watched, the clean ones too: `initial trace: 746 nodes, 0 touches`."""
    watched, touches = watched_phases(record, results), all_touches(record, results)
    return tuple(
        _phase_summary(record, phase, [touch for touch in touches if touch.phase == phase])
        for phase in PHASES
        if phase in watched
    )


def _phase_summary(record: CaptureRecord, phase: Phase, touches: Sequence[Touch]) -> TouchSummary:
    total = counted(len(record.autograd_nodes), "node")
    if not touches:
        return TouchSummary(f"{PHASES[phase]}: {total}, 0 touches", alarming=False)
    marked = _marks(record, touches)
    reads = _counted_touches(sum(touch.count for touch in touches))
    head = f"{PHASES[phase]}: {len(marked):,} of {total} touched, {reads}"
    if phase not in BROKEN:  # every node reads something when it runs: names would say nothing
        return TouchSummary(head, alarming=False)
    known = [mark for mark in marked.values() if mark.number in record.by_number]
    named = [f"{record.label(record.by_number[mark.number])} #{mark.number} ({mark})" for mark in known[:NAMED]]
    named += [f"and {len(known) - NAMED:,} more"] if len(known) > NAMED else []
    return TouchSummary(": ".join([head, *(["; ".join(named)] if named else [])]), alarming=True)


def _counted_touches(count: int) -> str:
    return "1 touch" if count == 1 else f"{count:,} touches"


# -- in a drawing --------------------------------------------------------------------------------------------


def mark_touched(drawing: Drawing, record: CaptureRecord, results: Results) -> Drawing:
    """The drawing with a mark on each box that was touched.

    At levels `module` and `autograd` that is the box of the node in whose call it happened; at level `fx` that of the
    graph node whose output was read, or, where it is folded away or not known, all of the node's backward calls.
    """
    by_box = _by_graph_node(record, drawing) if drawing.level == "fx" else _by_autograd_node(record, drawing)
    boxes = tuple(replace(box, touched=by_box[box.id]) if box.id in by_box else box for box in drawing.boxes)
    return replace(drawing, boxes=boxes, findings=summary(record, results))


def _by_autograd_node(record: CaptureRecord, drawing: Drawing) -> dict[str, str]:
    texts = {number: str(mark) for number, mark in marks(record).items()}
    by_box = {}
    for box in drawing.boxes if texts else ():
        touched = [number for number in box.nodes if number in texts]
        if len(box.nodes) == 1 and touched:
            by_box[box.id] = texts[touched[0]]
        elif touched:
            lines = [f"#{number} {texts[number]}" for number in touched[:NAMED]]
            by_box[box.id] = "; ".join([*lines, *(["…"] if len(touched) > NAMED else [])])
    return by_box


def _by_graph_node(record: CaptureRecord, drawing: Drawing) -> dict[str, str]:
    """By the box that stands for the graph node read, through folded ones to the box that the value comes from."""
    boxes = {box.id for box in drawing.boxes}
    texts = marks(record)
    by_box = {}
    for touch in record.touches:
        if touch.autograd_node in texts:
            box = _shown_box(record, boxes, touch.node)
            if box is not None:
                by_box[box] = str(texts[touch.autograd_node])
    return by_box


def _shown_box(record: CaptureRecord, boxes: set[str], ordinal: int | None) -> str | None:
    while ordinal is not None and f"g{ordinal}" not in boxes:
        node = record.graph_nodes[ordinal]
        ordinal = node.inputs[0] if node.kind == "getitem" and node.inputs else None
    return None if ordinal is None else f"g{ordinal}"
