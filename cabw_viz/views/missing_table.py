"""What a backward gave no gradient, as a pandas DataFrame, as a table for a notebook, and as text."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from cabw_viz.analysis import missing as analysis
from cabw_viz.analysis.drawing import file_and_line
from cabw_viz.record.missing import MissingGradient, MissingGradients
from cabw_viz.views.tables import CELL_STYLES
from cabw_viz.views.text import SENTENCE, in_line

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

COLUMNS = {
    "parameter": "object",
    "reason": "object",
    "module": "object",
    "operator": "object",
    "line": "object",
    "autograd_node": "Int64",
    "text": "object",
}
SHOWN = ("parameter", "reason", "module", "operator", "line")
"""The columns of the table in a notebook; the frame has all."""
ROWS = 100
"""How many rows that table has at most."""


def missing_frame(missing: MissingGradients) -> pd.DataFrame:
    """A row for each parameter without a gradient, then those whose gradient is zero everywhere.

    `reason` is one of `MissingReason`, `module` the one that owns the parameter; `operator` and `line` are where its
    way to the loss ends, or what made its gradient zero, there with the number of the `autograd_node`; `text` says it
    in a sentence. None and NA where there is none.
    """
    import pandas as pd

    rows = [_cells(row) for row in missing.rows]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    return pd.DataFrame(
        {
            name: pd.Series(list(values), dtype=dtype)
            for (name, dtype), values in zip(COLUMNS.items(), columns, strict=True)
        }
    )


def _cells(row: MissingGradient) -> tuple[Any, ...]:
    line = None if row.line is None else str(row.line)
    place = row.module or None, row.operator or None, line, row.autograd_node
    return row.label, row.reason, *place, analysis.sentence(row)


def missing_styler(missing: MissingGradients) -> Styler:
    """The first rows as a table; texts are escaped."""
    frame = missing_frame(missing).loc[: ROWS - 1, list(SHOWN)]
    frame["line"] = [None if line is None else file_and_line(line) for line in frame["line"]]
    styles: Any = [*CELL_STYLES, {"selector": "td, th.col_heading", "props": "text-align: left"}]
    styler = frame.style.set_uuid("cabw_missing").hide(axis="index").format(_escaped)
    styler = styler.set_table_styles(styles)
    return styler.set_table_attributes('class="tex2jax_ignore mathjax_ignore"')  # a name with $ is no formula


def _escaped(text: object) -> str:
    return html.escape(in_line(text, 120)) if isinstance(text, str) else ""


def missing_text(missing: MissingGradients) -> str:
    """The outcome, a sentence for each reason, and what was not looked at."""
    lines = [analysis.summary(missing), *(f"  {text}" for text in analysis.sentences(missing))]
    lines += [f"note: {note}" for note in missing.notes]
    return "\n".join(in_line(line, SENTENCE) for line in lines)
