"""A search for the first divergence as a pandas DataFrame, as a coloured table, and as text."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from cabw_viz.analysis import divergence as analysis
from cabw_viz.analysis.drawing import file_and_line
from cabw_viz.record.divergence import Difference, Divergence, DivergenceRow
from cabw_viz.record.kinds import GOOD, Verdict
from cabw_viz.views.palette import VERDICT_LOOKS
from cabw_viz.views.tables import CELL_STYLES, RED_BOLD, figure, marked
from cabw_viz.views.text import aligned, in_line

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

COLUMNS = {
    "number": "int64",
    "name": "object",
    "kind": "object",
    "module": "object",
    "visit": "int64",
    "line": "object",
    "verdict_in": "object",
    "verdict_out": "object",
    "verdict_own": "object",
    "max_rel_err_in": "float64",
    "max_rel_err_out": "float64",
    "max_rel_err_own": "float64",
    "max_abs_err_own": "float64",
    "note": "object",
}
VERDICT_COLUMNS = ("verdict_in", "verdict_out", "verdict_own")
SHOWN = {
    "number": "#",
    "name": "step",
    "module": "module",
    "line": "line",
    "verdict_in": "in",
    "verdict_out": "out",
    "verdict_own": "own",
    "max_rel_err_own": "own rel err",
    "note": "note",
}
"""The columns of the coloured table, and their headings there; the frame has all."""
HEADINGS = ("", "#", "step", "module", "line", "in", "out", "own", "own rel err")

_TEXTS = [column for column, dtype in COLUMNS.items() if dtype == "object"]
_STYLES: Any = [
    {"selector": ".cabw-good", "props": f"background-color: {VERDICT_LOOKS['bitwise'].cell}"},
    {"selector": ".cabw-bad", "props": RED_BOLD},
    {"selector": ".cabw-off", "props": "background-color: rgba(214, 80, 30, 0.12)"},
    *CELL_STYLES,
    {"selector": "td.cabw-first", "props": "font-weight: 600; border-left: 3px solid rgba(214, 80, 30, 0.9)"},
    {
        "selector": ", ".join(f"th.col{i}" for i, column in enumerate(SHOWN) if column in _TEXTS),
        "props": "text-align: left",
    },
]


def divergence_frame(divergence: Divergence) -> pd.DataFrame:
    """A row for each step, in the order in which the graph runs.

    `number` is the autograd node's; a sum of gradients and hooks have rows of their own, with the number of the node
    that they stand at. `verdict_in` and `verdict_out` say how what flows in and out compares with eager, `verdict_own`
    how it does if the same flows in on both sides. Verdicts are None where nothing was seen, errors NaN.
    """
    import pandas as pd

    rows = [_cells(row) for row in divergence.rows]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    return pd.DataFrame(
        {
            name: pd.Series(list(values), dtype=dtype)
            for (name, dtype), values in zip(COLUMNS.items(), columns, strict=True)
        }
    )


def _cells(row: DivergenceRow) -> tuple[Any, ...]:
    three = row.into, row.out, row.own
    verdicts = [None if each is None else each.verdict for each in three]
    relative = [None if each is None else each.max_rel_err for each in three]
    absolute = None if row.own is None else row.own.max_abs_err
    line = None if row.line is None else str(row.line)
    place = row.number, row.name, row.kind, row.module or None, row.visit, line
    return *place, *verdicts, *relative, absolute, row.note


def divergence_styler(divergence: Divergence) -> Styler:
    """The rows that matter, coloured; texts are escaped."""
    import pandas as pd

    picked = analysis.shown_rows(divergence)
    frame = divergence_frame(divergence).iloc[picked][list(SHOWN)]
    classes = pd.DataFrame("", index=frame.index, columns=frame.columns)
    for column in set(SHOWN) & set(_TEXTS):
        classes[column] = "cabw-text"
    for column in VERDICT_COLUMNS:
        bad = "cabw-bad" if column == "verdict_own" else "cabw-off"
        classes[column] = ["cabw-text " + _class(verdict, bad) for verdict in frame[column]]
    for index in divergence.culprits:
        if index in picked:
            classes.loc[index, "number"] = "cabw-first"
    formats: Any = dict.fromkeys(SHOWN, _escaped) | dict.fromkeys(VERDICT_COLUMNS, _marked)
    formats |= {"number": "#{:d}".format, "line": _line_text, "max_rel_err_own": figure}
    styler = frame.rename(columns=SHOWN).style.set_uuid("cabw_divergence").hide(axis="index")
    styler = styler.set_table_styles(_STYLES).set_td_classes(classes.rename(columns=SHOWN))
    styler = styler.set_table_attributes('class="tex2jax_ignore mathjax_ignore"')  # a name with $ is no formula
    return styler.format({SHOWN[column]: how for column, how in formats.items()})


def _class(verdict: Verdict | None, bad: str) -> str:
    return "" if verdict is None else "cabw-good" if verdict in GOOD else bad


def _line_text(line: str | None) -> str:
    return _escaped(None if line is None else file_and_line(line))


def _escaped(text: str | None) -> str:
    return html.escape(in_line(text or "", 120))


def _marked(verdict: Verdict | None) -> str:
    return "" if verdict is None else marked(verdict)


def facts(divergence: Divergence) -> list[str]:
    """What was compared with what, how, and what a reader must know."""
    lines = [f"candidate: {divergence.candidate}", f"reference: {divergence.reference}"]
    lines += [f"tolerance: {dtype} rtol={rtol:g} atol={atol:g}" for dtype, rtol, atol in divergence.tolerances]
    return lines + [f"note: {note}" for note in divergence.notes]


def findings(divergence: Divergence) -> list[str]:
    """The outcome, and where NaN and infinity begin, a sentence for each."""
    return [
        analysis.summary(divergence),
        *([divergence.coverage] if divergence.coverage else []),
        *(analysis.nonfinite_text(divergence, each) for each in divergence.nonfinite),
    ]


def divergence_text(divergence: Divergence) -> str:
    """The outcome as plain text: the facts, the rows that matter, the findings."""
    picked = analysis.shown_rows(divergence)
    table = [HEADINGS, *(_line(divergence, index) for index in picked)] if picked else []
    left = len(divergence.rows) - len(picked)
    more = [f"… {left:,} more rows: .frame", ""] if left and picked else [""] if picked else []
    head = [in_line(fact, 500) for fact in facts(divergence)]
    return "\n".join([*head, "", *aligned(table), *more, *(in_line(line, 1000) for line in findings(divergence))])


def _line(divergence: Divergence, index: int) -> tuple[str, ...]:
    row = divergence.rows[index]
    mark = "→" if divergence.culprits[:1] == (index,) else "✗" if index in divergence.culprits else ""
    verdicts = [_verdict(each) for each in (row.into, row.out, row.own)]
    line = "" if row.line is None else file_and_line(str(row.line))
    error = "" if row.own is None else figure(row.own.max_rel_err)
    return mark, str(row.number), in_line(row.name, 60), in_line(row.module, 40), in_line(line, 40), *verdicts, error


def _verdict(difference: Difference | None) -> str:
    return "" if difference is None else _marked(difference.verdict)
