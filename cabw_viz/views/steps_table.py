"""Whole steps compared, as pandas tables and as a heat map."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from cabw_viz.analysis import steps
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.kinds import GOOD
from cabw_viz.record.steps import StepMatrix, StepRun
from cabw_viz.views.steps_text import NONE, RAISES, column
from cabw_viz.views.tables import CELL, VERDICT_STYLES
from cabw_viz.views.text import in_line

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

DETAILS = {
    "run": "object",
    "call": "int64",
    "kind": "object",
    "parameter": "object",
    "verdict": "object",
    "max_abs_err": "float64",
    "max_rel_err": "float64",
    "noise": "float64",
    "elements": "int64",
    "mismatched": "int64",
    "first": "object",
    "reference": "object",
    "candidate": "object",
    "shape": "object",
    "dtype": "object",
    "note": "object",
}

HEATS = ((1e-3, 1), (1e-1, 2))
"""A relative error below this, and how hot it looks; what is above or has no error is hottest, 3."""

_STYLES: Any = [
    *VERDICT_STYLES,
    {"selector": ".cabw-heat1", "props": "background-color: rgba(214, 80, 30, 0.22); font-weight: 600"},
    {"selector": ".cabw-heat2", "props": "background-color: rgba(214, 80, 30, 0.36); font-weight: 600"},
    {"selector": ".cabw-heat3", "props": "background-color: rgba(214, 80, 30, 0.5); font-weight: 600"},
    {"selector": "td", "props": "font-variant-numeric: tabular-nums; white-space: nowrap"},
    {"selector": "td, th.col_heading", "props": "text-align: left; padding: 2px 10px"},
]


def matrix_frame(matrix: StepMatrix) -> pd.DataFrame:
    """Parameters by runs: the worst verdict of all calls, `raises`, or `none` where neither side has the value."""
    import pandas as pd

    names = steps.labels(matrix)
    index = pd.Index(names, dtype="object", name="parameter")
    columns = {run.name: _verdicts(run, names) for run in matrix.runs}
    return pd.DataFrame(columns, index=index, dtype="object")


def _verdicts(run: StepRun, names: list[str]) -> list[str]:
    if steps.raised(run):
        return [RAISES] * len(names)
    cells = steps.cells(run)
    return [cells[name].worst.verdict if name in cells else NONE for name in names]


def details_frame(matrix: StepMatrix) -> pd.DataFrame:
    """A row for each value of each call of each run."""
    import pandas as pd

    rows = [(run.name, call.index, *_details(row)) for run in matrix.runs for call in run.calls for row in call.rows]
    frame = pd.DataFrame(rows, columns=pd.Index(DETAILS), dtype="object")
    return frame.astype({name: dtype for name, dtype in DETAILS.items() if dtype != "object"})


def _details(row: GradientComparison) -> tuple[Any, ...]:
    first = (None, None, None) if row.first is None else (row.first.index, row.first.reference, row.first.candidate)
    errors = (row.max_abs_err, row.max_rel_err, row.noise)
    counts = (row.elements, row.mismatched)
    return row.kind, row.name, row.verdict, *errors, *counts, *first, row.shape, row.dtype, row.note


def matrix_styler(matrix: StepMatrix) -> Styler:
    """The heat map: a coloured cell with its text for each value and run; all text is escaped."""
    import pandas as pd

    names, runs = steps.labels(matrix), matrix.runs
    # Columns by number, and their headings set apart: a run may be called as another is, or as anything at all.
    cells = pd.DataFrame(index=range(len(names)), columns=range(len(runs) + 1), dtype="object")
    classes = pd.DataFrame("", index=cells.index, columns=cells.columns)
    cells[0] = names
    for place, run in enumerate(runs, 1):
        cells[place], classes[place] = column(run, names), _looks(run, names)
    styler = cells.style.set_uuid("cabw_steps").hide(axis="index").set_table_styles(_STYLES)
    styler = styler.set_table_attributes('class="tex2jax_ignore mathjax_ignore"')  # a name with $ is no formula
    headings = ["parameter", *(_escaped(run.name) for run in runs)]
    return styler.set_td_classes(classes).format(_escaped).relabel_index(headings, axis="columns")


def _escaped(text: object) -> str:
    return html.escape(in_line(str(text), CELL))


def _looks(run: StepRun, names: list[str]) -> list[str]:
    if steps.raised(run):
        return ["cabw-heat3"] * len(names)
    cells = steps.cells(run)
    return [_look(cells[name].worst) if name in cells else "" for name in names]


def _look(row: GradientComparison) -> str:
    """The class of a cell: the verdict where it is good, else how far it is off."""
    if row.verdict in GOOD:
        return f"cabw-{row.verdict}"
    error = row.max_rel_err
    heat = next((heat for limit, heat in HEATS if error is not None and error < limit), 3)
    return f"cabw-heat{heat}"
