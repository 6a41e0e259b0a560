"""Records as pandas DataFrames, and comparisons as coloured and as plain tables."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cabw_viz.analysis import memory, parity, recapture
from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.record.kinds import GOOD, Verdict
from cabw_viz.record.model import AutogradNode, CaptureRecord, Event, Touch
from cabw_viz.views.text import in_line, pad, width

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

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
    "saved_bytes": "int64",
}
HELD_COLUMNS = {
    "module": "object",
    "bytes": "int64",
    "shared": "int64",
    "shared_with": "object",
    "named": "int64",
    "packed": "int64",
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
PARITY_COLUMNS = {
    "parameter": "object",
    "verdict": "object",
    "max_abs_err": "float64",
    "max_rel_err": "float64",
    "shape": "object",
    "dtype": "object",
    "elements": "int64",
    "mismatched": "int64",
    "note": "object",
}


MARKS: dict[Verdict, str] = {
    "bitwise": "✓",
    "within_tolerance": "≈",
    "within_noise": "~",
    "metadata": "!",
    "unexpected": "+",
    "mismatch": "✗",
    "missing": "∅",
    "nonfinite": "∞",
}
"""A mark for each verdict, so that none is told by its colour alone."""

CELL = 120
"""Longer texts are cut in the coloured table; the frame has them in full."""

TEXT_COLUMNS = ("parameter", "verdict", "max abs err", "max rel err", "shape", "dtype", "note")
_NUMBERS = {"max abs err", "max rel err"}

TEXTS = ("parameter", "verdict", "shape", "dtype", "note")
"""The columns of the frame that are set as text, to the left."""

# The colours are translucent, on whatever the theme's background is, and the text keeps the theme's colour.
_STYLES: Any = [
    {"selector": ".cabw-bitwise", "props": "background-color: rgba(0, 128, 95, 0.18)"},
    {"selector": ".cabw-within_tolerance", "props": "background-color: rgba(10, 108, 179, 0.18)"},
    {"selector": ".cabw-within_noise", "props": "background-color: rgba(128, 110, 190, 0.18)"},
    {"selector": ".cabw-bad", "props": "background-color: rgba(214, 80, 30, 0.3); font-weight: 600"},
    {"selector": "td", "props": "font-variant-numeric: tabular-nums; white-space: nowrap"},
    {"selector": "td, th.col_heading", "props": "text-align: right; padding: 2px 10px"},
    {"selector": "td.cabw-text", "props": "text-align: left"},
    {"selector": ", ".join(f"th.col{list(PARITY_COLUMNS).index(c)}" for c in TEXTS), "props": "text-align: left"},
]


def node_frame(record: CaptureRecord) -> pd.DataFrame:
    """A row for each autograd node, by its NodeCall number.

    `to` lists the numbers of the nodes that its gradients go to; `graph_nodes` counts the nodes of the captured
    graph that were made for it; `parameter` is None but for accumulations. `lifted` says which symbolic inputs the
    node uses, `baked` which constants stand in its part of the graph: a change of those makes PyTorch capture again.
    `module` is where it was made, the subject itself by its class in brackets, and `line` the line of code that made
    it; both are None where that is not known. `saved_bytes` counts the storages that its saved tensors lie in.
    """
    rows = [_node_row(record, node) for node in record.autograd_nodes]
    return _frame(rows, NODE_COLUMNS, [node.number for node in record.autograd_nodes], "number")


def _node_row(record: CaptureRecord, node: AutogradNode) -> tuple[Any, ...]:
    leaf = None if node.leaf is None else record.leaves[node.leaf].label
    hooks = ", ".join(f"{hook.kind} {hook.name}" for hook in node.hooks)
    targets = tuple(dict.fromkeys(edge.target for edge in node.edges if edge.target in record.by_number))
    metadata = recapture.lifted_text(node), recapture.baked_text(node)
    origin = memory.module_text(node) or None, None if node.line is None else str(node.line), memory.saved_bytes(node)
    flow = node.name, node.kind, node.inputs, node.outputs, leaf, hooks, len(node.graph_nodes), targets
    return *flow, *metadata, *origin


def held_frame(record: CaptureRecord, depth: int | None = None) -> pd.DataFrame:
    """A row for each module whose nodes keep tensors until their backward has run, the most first.

    `bytes` counts each storage once in its module; `shared` says how many of these bytes the modules in `shared_with`
    keep too, `named` how many are parameters, buffers and leaves, `packed` how many tensors hooks have packed.
    """
    rows = [
        (r.module or None, r.bytes, r.shared, r.shared_with, r.named, r.packed)
        for r in memory.held_by_module(record, depth)
    ]
    return _frame(rows, HELD_COLUMNS, list(range(len(rows))), None)


def event_frame(events: Iterable[Event]) -> pd.DataFrame:
    """A row for each backward call of a session, in order: what became of it, and why.

    `call` is the number by which `only=` picks it; missing for a call that was never up for capture.
    """
    rows = [(e.call.index, e.call.function, e.call.where, e.outcome, e.reason, e.capture, e.seconds) for e in events]
    return _frame(rows, EVENT_COLUMNS, list(range(len(rows))), None)


def touch_frame(record: CaptureRecord) -> pd.DataFrame:
    """A row for each piece of metadata that was read, or op that was run, by one line of code.

    `name` is the autograd node's, `node` the graph node's; both are None where that is not known.
    """
    rows = [(t.phase, t.attribute, t.autograd_node, *_names(record, t), t.by, t.where, t.count) for t in record.touches]
    return _frame(rows, TOUCH_COLUMNS, list(range(len(rows))), None)


def _names(record: CaptureRecord, touch: Touch) -> tuple[str | None, str | None]:
    """The names of a touch's autograd node and graph node."""
    node = None if touch.autograd_node is None else record.by_number.get(touch.autograd_node)
    graph_node = None if touch.node is None else record.graph_nodes[touch.node].name
    return None if node is None else node.name, graph_node


def parity_frame(comparison: Comparison) -> pd.DataFrame:
    """A row for each gradient, in the comparison's order; an error that does not exist is NaN."""
    rows = [
        (r.name, r.verdict, r.max_abs_err, r.max_rel_err, r.shape, r.dtype, r.elements, r.mismatched, r.note)
        for r in comparison.rows
    ]
    return _frame(rows, PARITY_COLUMNS, list(range(len(rows))), None)


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


def parity_styler(frame: pd.DataFrame) -> Styler:
    """A frame of `parity_frame` coloured by verdict; its text is escaped and stays readable in dark themes."""
    import pandas as pd

    classes = pd.DataFrame("", index=frame.index, columns=frame.columns)
    for column in TEXTS:
        classes[column] = "cabw-text"
    classes["verdict"] = ["cabw-text " + _verdict_class(verdict) for verdict in frame["verdict"]]
    # A fixed uuid: the styles go by class, so two tables of one page may share it, and the bytes stay the same.
    styler = frame.style.set_uuid("cabw_parity").hide(axis="index").set_table_styles(_STYLES)
    styler = styler.set_table_attributes('class="tex2jax_ignore mathjax_ignore"')  # a name with $ is no formula
    shown: Any = {
        "parameter": _cell,
        "verdict": marked,
        "max_abs_err": figure,
        "max_rel_err": figure,
        "shape": shape_text,
        "dtype": _cell,
        "note": _cell,
    }
    return styler.set_td_classes(classes).format(shown)


def _cell(text: str) -> str:
    return html.escape(in_line(text, CELL))


def _verdict_class(verdict: Verdict) -> str:
    return f"cabw-{verdict}" if verdict in GOOD else "cabw-bad"


def marked(verdict: Verdict) -> str:
    """A verdict with its mark: `✗ mismatch`."""
    return f"{MARKS[verdict]} {verdict}"


def figure(error: float | None) -> str:
    """An error in three figures; `0` where there is none, a dash where it does not exist."""
    if error is None or math.isnan(error):
        return "-"
    return "0" if error == 0 else f"{error:.2e}"


def shape_text(shape: Iterable[int]) -> str:
    """A shape as torch users write it: `(8, 4)`."""
    return str(tuple(shape))


def parity_text(comparison: Comparison) -> str:
    """The comparison as plain text: what is compared with what, how, a line for each gradient, the outcome."""
    head = [f"candidate: {in_line(comparison.candidate, 200)}", f"reference: {in_line(comparison.reference, 200)}"]
    head += [f"tolerance: {dtype} rtol={rtol:g} atol={atol:g}" for dtype, rtol, atol in comparison.tolerances]
    head += [f"note: {in_line(note, 500)}" for note in comparison.notes]
    rows = [_cells(row) for row in comparison.rows]
    return "\n".join([*head, "", *_columns(rows), parity.summary(comparison)])


def _cells(row: GradientComparison) -> tuple[str, ...]:
    return (
        in_line(row.name),
        marked(row.verdict),
        figure(row.max_abs_err),
        figure(row.max_rel_err),
        shape_text(row.shape),
        row.dtype.removeprefix("torch."),
        in_line(row.note, 200),
    )


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    """The rows under their headings, each column as wide as its widest cell; then an empty line."""
    if not rows:
        return []
    table = [TEXT_COLUMNS, *rows]
    widths = [max(width(row[place]) for row in table) for place in range(len(TEXT_COLUMNS))]
    sides = [heading in _NUMBERS for heading in TEXT_COLUMNS]
    lines = [
        "  ".join(pad(cell, columns, right=right) for cell, columns, right in zip(row, widths, sides, strict=True))
        for row in table
    ]
    return [*(line.rstrip() for line in lines), ""]
