"""Records as pandas DataFrames, and comparisons as coloured and as plain tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cabw_viz.analysis import memory, recapture
from cabw_viz.analysis.touches import all_touches
from cabw_viz.record.kinds import Verdict
from cabw_viz.record.model import AutogradNode, CaptureRecord, Event, Touch
from cabw_viz.record.results import NO_RESULTS, Results
from cabw_viz.views.palette import ALARM_CELL, VERDICT_LOOKS

if TYPE_CHECKING:
    import pandas as pd

# Text stands in object columns: a name may hold what no string type of pandas stores, such as a lone surrogate.
NODE_COLUMNS = {
    "name": "object",
    "kind": "object",
    "inputs": "int64",
    "outputs": "int64",
    "parameter": "object",
    "hooks": "object",
    "graph_nodes": "int64",
    "to": "object",
    "lifted": "object",
    "baked": "object",
    "module": "object",
    "line": "object",
    "backward_of": "object",
    "saved_bytes": "int64",
}
MEMORY_COLUMNS = {
    "module": "object",
    "bytes": "int64",
    "shared": "int64",
    "shared_with": "object",
    "named": "int64",
    "packed": "int64",
}
TIME_COLUMNS = {
    "name": "object",
    "module": "object",
    "line": "object",
    "seconds": "float64",
    "share": "float64",
}
EVENT_COLUMNS = {
    "call": "Int64",
    "function": "object",
    "where": "object",
    "outcome": "object",
    "reason": "object",
    "capture": "Int64",
    "seconds": "float64",
}
TOUCH_COLUMNS = {
    "phase": "object",
    "attribute": "object",
    "autograd_node": "Int64",
    "name": "object",
    "node": "object",
    "by": "object",
    "where": "object",
    "count": "int64",
}


RED_BOLD = f"background-color: {ALARM_CELL}; font-weight: 600"
VERDICT_STYLES: tuple[dict[str, str], ...] = tuple(
    {"selector": f".cabw-{verdict}", "props": f"background-color: {look.cell}"}
    for verdict, look in VERDICT_LOOKS.items()
    if look.cell
)
CELL_STYLES: tuple[dict[str, str], ...] = (
    {"selector": "td", "props": "font-variant-numeric: tabular-nums; white-space: nowrap"},
    {"selector": "td, th.col_heading", "props": "text-align: right; padding: 2px 10px"},
    {"selector": "td.cabw-text", "props": "text-align: left"},
)

CELL = 120
"""Longer texts are cut in the coloured table; the frame has them in full."""


def node_frame(record: CaptureRecord) -> pd.DataFrame:
    """A row for each autograd node, by its NodeCall number.

    `to` lists the numbers of the nodes that its gradients go to; `graph_nodes` counts the nodes of the captured
    graph that were made for it; `parameter` is None but for accumulations. `lifted` says which symbolic inputs the
    node uses, `baked` which constants stand in its part of the graph: a change of those makes PyTorch capture again.
    `module` is where it was made, the subject itself by its class in brackets, and `line` the line of code that made
    it; both are None where that is not known. `backward_of` names the autograd node whose backward, in a
    call with `create_graph=True`, made it. `saved_bytes` counts the storages that its saved tensors lie in.
    """
    rows = [_node_row(record, node) for node in record.autograd_nodes]
    return _frame(rows, NODE_COLUMNS, [node.number for node in record.autograd_nodes], "number")


def _node_row(record: CaptureRecord, node: AutogradNode) -> tuple[Any, ...]:
    leaf = None if node.leaf is None else record.leaves[node.leaf].label
    hooks = ", ".join(f"{hook.kind} {hook.name}" for hook in node.hooks)
    targets = tuple(dict.fromkeys(edge.target for edge in node.edges if edge.target in record.by_number))
    metadata = recapture.lifted_text(node), recapture.baked_text(node)
    line = None if node.line is None else str(node.line)
    origin = memory.module_text(node) or None, line, node.backward_of or None, memory.saved_bytes(node)
    flow = node.name, node.kind, node.inputs, node.outputs, leaf, hooks, len(node.graph_nodes), targets
    return *flow, *metadata, *origin


def memory_frame(record: CaptureRecord, depth: int | None = None) -> pd.DataFrame:
    """A row for each module whose nodes keep tensors until their backward has run, the most first.

    `bytes` counts each storage once in its module; `shared` says how many of these bytes the modules in `shared_with`
    keep too, `named` how many are parameters, buffers and leaves, `packed` how many tensors hooks have packed.
    """
    rows = [
        (r.module or None, r.bytes, r.shared, r.shared_with, r.named, r.packed)
        for r in memory.held_by_module(record, depth)
    ]
    return _frame(rows, MEMORY_COLUMNS, list(range(len(rows))), None)


def time_frame(record: CaptureRecord, results: Results) -> pd.DataFrame:
    """A row for each autograd node, the slowest first; empty where the graph was not timed.

    `share` is the part of the sum of all nodes. Both are NaN for nodes of which the graph runs nothing.
    """
    timed = list(zip(record.autograd_nodes, results.node_seconds, strict=False))
    total = sum(seconds or 0.0 for _, seconds in timed)
    timed.sort(key=lambda pair: -1.0 if pair[1] is None else pair[1], reverse=True)
    rows = [
        (
            record.label(node),
            memory.module_text(node) or None,
            None if node.line is None else str(node.line),
            math.nan if seconds is None else seconds,
            math.nan if seconds is None or not total else seconds / total,
        )
        for node, seconds in timed
    ]
    return _frame(rows, TIME_COLUMNS, [node.number for node, _ in timed], "number")


def event_frame(events: Iterable[Event]) -> pd.DataFrame:
    """A row for each backward call of a session, in order: what became of it, and why.

    `call` is the number by which `only=` picks it; missing for a call that was never up for capture.
    """
    rows = [(e.call.index, e.call.function, e.call.where, e.outcome, e.reason, e.capture, e.seconds) for e in events]
    return _frame(rows, EVENT_COLUMNS, list(range(len(rows))), None)


def touch_frame(record: CaptureRecord, results: Results = NO_RESULTS) -> pd.DataFrame:
    """A row for each piece of metadata that was read, or op that was run, by one line of code.

    `name` is the autograd node's, `node` the graph node's; both are None where that is not known.
    """
    touches = all_touches(record, results)
    rows = [(t.phase, t.attribute, t.autograd_node, *_names(record, t), t.by, t.where, t.count) for t in touches]
    return _frame(rows, TOUCH_COLUMNS, list(range(len(rows))), None)


def _names(record: CaptureRecord, touch: Touch) -> tuple[str | None, str | None]:
    """The names of a touch's autograd node and graph node."""
    node = None if touch.autograd_node is None else record.by_number.get(touch.autograd_node)
    graph_node = None if touch.node is None else record.graph_nodes[touch.node].name
    return None if node is None else node.name, graph_node


def frame_of(rows: Sequence[tuple[Any, ...]], columns: Mapping[str, str]) -> pd.DataFrame:
    """A DataFrame of these rows, numbered from 0, with these columns and types even where there are none."""
    return _frame(rows, columns, list(range(len(rows))), None)


def _frame(
    rows: Sequence[tuple[Any, ...]], columns: Mapping[str, str], index: list[int], index_name: str | None
) -> pd.DataFrame:
    """A DataFrame with these columns and types even where it has no rows."""
    import pandas as pd

    numbers = pd.Index(index, dtype="int64", name=index_name)
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    return pd.DataFrame(
        {
            column: pd.Series(list(values), index=numbers, dtype=dtype)
            for (column, dtype), values in zip(columns.items(), cells, strict=True)
        },
        index=numbers,
    )


def marked(verdict: Verdict) -> str:
    """A verdict with its mark: `✗ mismatch`."""
    return f"{VERDICT_LOOKS[verdict].mark} {verdict}"


def figure(error: float | None) -> str:
    """An error in three figures; `0` where there is none, a dash where it does not exist."""
    if error is None or math.isnan(error):
        return "-"
    return "0" if error == 0 else f"{error:.2e}"


def shape_text(shape: Iterable[int]) -> str:
    """A shape as torch users write it: `(8, 4)`."""
    return str(tuple(shape))
