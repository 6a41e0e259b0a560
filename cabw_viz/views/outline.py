"""Records as plain text: what a terminal or a log shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from cabw_viz.analysis.autograd_drawing import inner_function, region_words
from cabw_viz.analysis.drawing import call_title, file_and_line, local_name, problem_of
from cabw_viz.analysis.flow import AFTER, BEFORE, Entering, hooks_of, incoming, reached, returned_leaves, summed
from cabw_viz.analysis.memory import module_text
from cabw_viz.analysis.touches import Mark, marks, summary
from cabw_viz.record.coverage import coverage_text
from cabw_viz.record.kinds import PLUMBING, AutogradKind, Outcome
from cabw_viz.record.model import AutogradNode, CaptureRecord, Event, Leaf
from cabw_viz.record.results import NO_RESULTS, Results
from cabw_viz.record.untraced import graph_words
from cabw_viz.record.wording import counted, run_words
from cabw_viz.views.palette import LOOKS, TOUCHED
from cabw_viz.views.text import SENTENCE, in_line, name_in_line, pad, visible, width

FIRST, LAST, AROUND = 60, 20, 5
"""How many nodes a shortened outline shows at its beginning, at its end, and on either side of a failure."""

NAME_COLUMNS = 44
"""Where a name is longer, what follows it is moved to the right."""

MODULE_COLUMNS, LINE_COLUMNS = 30, 28
"""Where a path is longer, its beginning is left out; where a line is, what follows it is moved to the right."""


def outline(record: CaptureRecord, results: Results = NO_RESULTS, *, full: bool = False) -> str:
    """A capture as text: its counts, then a line for each autograd node in the order of the NodeCalls.

    Args:
        record: The capture.
        results: What was computed of it.
        full: Show every node; otherwise a long backward is shortened in the middle.
    """
    nodes, entering, returned = record.autograd_nodes, incoming(record), returned_leaves(record)
    margin = len(str(max((node.number for node in nodes), default=0))) + 1
    columns = min(NAME_COLUMNS, max((width(_name(record, node)) for node in nodes), default=0))
    touched, places = marks(record), _origins(record)
    lines, last = [*_header(record, results, entering), ""], -1
    for place in range(len(nodes)) if full else _visible_places(record):
        if place > last + 1:
            lines.append(f"{' ' * (margin + 1)}… {place - last - 1:,} more")
        last = place
        head = f"{pad(_name(record, nodes[place]), columns)}  {places.get(nodes[place].number, '')}"
        lines.append(_node_line(record, nodes[place], entering.get(nodes[place].number, {}), margin, head))
        lines += [f"{' ' * (margin + 3)}{line}" for line in _remarks(record, nodes[place], returned)]
        lines += [f"{' ' * (margin + 3)}{line}" for line in _touched(touched.get(nodes[place].number))]
    return "\n".join(line.rstrip() for line in lines)


def _visible_places(record: CaptureRecord) -> list[int]:
    """The places of the nodes that a shortened outline shows; never a gap of a single node."""
    total = len(record.autograd_nodes)
    spans = [range(FIRST), range(total - LAST, total)]
    failure = record.failure
    if failure is not None:
        places = [place for place, node in enumerate(record.autograd_nodes) if node.number == failure.autograd_node]
        spans += [range(place - AROUND, place + AROUND + 1) for place in places]
    visible = {place for span in spans for place in span if 0 <= place < total}
    return sorted(visible | {place for place in range(total) if {place - 1, place + 1} <= visible})


def _header(record: CaptureRecord, results: Results, flow: dict[int, Entering]) -> Iterator[str]:
    yield f"{in_line(call_title(record), 200)}, {run_words(record.run).ran}, torch {record.torch_version}"
    sums = sum(len(summed(entering)) for entering in flow.values())
    counts = [counted(len(record.autograd_nodes), "autograd node")]
    if record.is_traced:
        plumbing = sum(node.kind in PLUMBING for node in record.graph_nodes)
        counts.append(f"{graph_words(record)} ({plumbing:,} of them plumbing)")
        counts.append(counted(len(record.inputs), "lifted input"))
        counts.append(counted(len(record.sizes), "lifted size"))
    counts.append(counted(sum(len(node.hooks) for node in record.autograd_nodes), "hook"))
    counts.append(counted(sums, "gradient sum"))
    yield ", ".join(counts)
    if not record.is_traced:
        yield "watched without a trace (trace=False): no captured graph, and no reads of metadata were looked for"
    yield from (in_line(finding.text, 500) for finding in summary(record, results))
    coverage = coverage_text(record, "no part of this graph")
    if coverage:
        yield f"inner backwards: {in_line(coverage, 500)}" if record.inner_backwards else in_line(coverage, 500)
    if record.lines_off:
        yield f"no forward lines: {in_line(record.lines_off, 200)}"
    if record.failure is not None and record.failure.autograd_node not in record.by_number:
        yield f"✗ {in_line(problem_of(record), SENTENCE)}"
    kinds = Counter(node.kind for node in record.autograd_nodes)
    yield "  ".join(f"{LOOKS[kind].mark} {LOOKS[kind].words}" for kind in get_args(AutogradKind) if kinds[kind])


def _name(record: CaptureRecord, node: AutogradNode) -> str:
    if node.leaf is None:
        return name_in_line(node.name)
    return f"{name_in_line(node.name)} {name_in_line(record.leaves[node.leaf].label)}"


def _node_line(record: CaptureRecord, node: AutogradNode, entering: Entering, margin: int, head: str) -> str:
    """Number, mark, name and origin; where its gradients go; what is summed before it."""
    targets = dict.fromkeys(edge.target for edge in node.edges if edge.target in record.by_number)
    parts = [f"→ {', '.join(f'#{target}' for target in targets)}"] if targets else []
    for index, count in summed(entering).items():
        where = f" of input {index}" if len(entering) > 1 else ""
        parts.append(f"⊕ sums {count} gradients{where}")
    if not reached(record, node):
        parts.append("(not reached)")
    number = f"#{node.number}".rjust(margin)
    return f"{number} {LOOKS[node.kind].mark} {head}{'  '.join(parts)}"


def _remarks(record: CaptureRecord, node: AutogradNode, returned: dict[int, list[Leaf]]) -> Iterator[str]:
    """What stands under a node: what is inside it, what is returned, its hooks, and what stopped the trace there."""
    if node.kind == "copy_slices":
        yield f"prologue, {in_line(inner_function(record, node))}, epilogue"
    if node.kind == "aot_backward":
        yield region_words(record, node)
    for kinds in (BEFORE, ("unpack_hook",), AFTER):
        for _, hook in hooks_of(node, kinds):
            at = f" at {in_line(file_and_line(hook.where))}" if hook.where else ""
            yield f"{LOOKS['hook'].mark} {hook.kind} {name_in_line(local_name(hook.name))}{at}"
    for leaf in returned.get(node.number, []):
        name = "" if node.leaf is not None else f"the gradient of {name_in_line(leaf.label)}, "
        yield f"{LOOKS['returned'].mark} {name}returned as result {leaf.output}"
    if record.failure is not None and record.failure.autograd_node == node.number:
        yield f"✗ {in_line(problem_of(record), SENTENCE)}"


def _touched(mark: Mark | None) -> Iterator[str]:
    if mark is not None:
        yield f"{TOUCHED.mark} touched: {in_line(str(mark), 500)}"


def _origins(record: CaptureRecord) -> dict[int, str]:
    """Module and line of each autograd node by number, as columns of equal width; empty where none is known.

    A leaf's own module stands in its name already, and is left out here.
    """
    cells = {node.number: (_module_cell(node), _line_cell(node)) for node in record.autograd_nodes}
    columns = [max((width(cell[place]) for cell in cells.values()), default=0) for place in range(2)]
    limits = [min(column, most) for column, most in zip(columns, (MODULE_COLUMNS, LINE_COLUMNS), strict=True)]
    return {
        number: "".join(f"{pad(cell, limit)}  " for cell, limit in zip(row, limits, strict=True) if limit)
        for number, row in cells.items()
        if any(limits)
    }


def _module_cell(node: AutogradNode) -> str:
    if node.leaf is not None or node.kind == "accumulate_grad":
        return ""
    text = visible(module_text(node))
    if node.visit:
        text += f", call {node.visit + 1}"
    if node.backward_of:
        text += ", in its backward" if text else "in a backward"
    return in_line(text if len(text) <= MODULE_COLUMNS else f"…{text[1 - MODULE_COLUMNS :]}")


def _line_cell(node: AutogradNode) -> str:
    return "" if node.line is None else in_line(file_and_line(str(node.line)))


def outline_session(events: Iterable[Event], records: Sequence[CaptureRecord]) -> str:
    """A session as text: a line for each backward call, and what was captured of it."""
    events = list(events)
    outcomes = Counter(event.outcome for event in events)
    counts = ", ".join(f"{outcomes[outcome]:,} {outcome}" for outcome in get_args(Outcome) if outcomes[outcome])
    lines = [f"{counted(len(events), 'backward call')}: {counts or 'no backward ran in this block'}"]
    lines += [f"  {_event_line(event, records)}" for event in events]
    return "\n".join(lines)


def _event_line(event: Event, records: Sequence[CaptureRecord]) -> str:
    number = "-" if event.call.index is None else f"{event.call.index}"
    line = f"{number}  {event.call.function} at {in_line(file_and_line(event.call.where))}  {event.outcome}"
    if event.outcome == "cache_hit":
        line += f" of capture {event.capture}"
    elif event.capture is not None and event.capture < len(records):
        record = records[event.capture]
        nodes = counted(len(record.autograd_nodes), "autograd node")
        line += f"  capture {event.capture}: {nodes}, {graph_words(record)}"
    return f"{line}  {in_line(event.reason, SENTENCE)}" if event.reason else line
