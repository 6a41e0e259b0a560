"""Comparisons of gradients as a DataFrame, as a coloured table and as plain text."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cabw_viz.analysis import parity
from cabw_viz.record.comparison import Comparison, Element, GradientComparison
from cabw_viz.record.kinds import GOOD, Verdict
from cabw_viz.views.tables import CELL, CELL_STYLES, RED_BOLD, VERDICT_STYLES, figure, frame_of, marked, shape_text
from cabw_viz.views.text import aligned, in_line

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

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
    "reference_err": "float64",
    "candidate_err": "float64",
    "first": "object",
    "reference": "object",
    "candidate": "object",
}
"""Of the frame; measures that were asked for follow."""

_STYLES: list[dict[str, str]] = [
    *VERDICT_STYLES,
    {"selector": ".cabw-bad", "props": RED_BOLD},
    *CELL_STYLES,
]


def parity_frame(comparison: Comparison) -> pd.DataFrame:
    """A row for each gradient, in the comparison's order; a figure that does not exist is NaN.

    `first` is the index of the first element outside the tolerance (or that is not finite; or, where all are within it,
    that differs at all), `reference` and `candidate` its two values; None where there is none.
    """
    names = measures(comparison)
    rows = [_row(row, names) for row in comparison.rows]
    return frame_of(rows, PARITY_COLUMNS | dict.fromkeys(names, "float64"))


def _row(row: GradientComparison, names: tuple[str, ...]) -> tuple[Any, ...]:
    first = (None, None, None) if row.first is None else (row.first.index, row.first.reference, row.first.candidate)
    extra = (dict(row.measures).get(name) for name in names)
    cells = row.name, row.verdict, row.max_abs_err, row.max_rel_err, row.shape, row.dtype, row.elements, row.mismatched
    return *cells, row.note, row.reference_err, row.candidate_err, *first, *extra


def measures(comparison: Comparison) -> tuple[str, ...]:
    """Names of the further measures that the rows have, in order."""
    return tuple(dict.fromkeys(name for row in comparison.rows for name, _ in row.measures))


# -------------------------------------------------------------------------------------------------------- to be shown


@dataclass(frozen=True)
class _Column:
    """A column as people see it."""

    heading: str
    text: Callable[[GradientComparison], str]
    number: bool = False
    """Numbers stand to the right."""


def _columns(comparison: Comparison) -> Iterator[_Column]:
    """The columns that have something to show."""
    rows = comparison.rows
    yield _Column("parameter", lambda row: row.name)
    yield _Column("verdict", lambda row: marked(row.verdict))
    yield _Column("max abs err", lambda row: figure(row.max_abs_err), number=True)
    yield _Column("max rel err", lambda row: figure(row.max_rel_err), number=True)
    if any(row.reference_err is not None for row in rows):
        yield _Column("reference err", lambda row: figure(row.reference_err), number=True)
        yield _Column("candidate err", lambda row: figure(row.candidate_err), number=True)
    for name in measures(comparison):
        yield _Column(name, partial(_measure, name), number=True)
    if any(row.mismatched for row in rows):
        yield _Column("outside", _outside, number=True)
    if any(row.first is not None for row in rows):
        yield _Column("first difference", lambda row: first_difference(row.first))
    yield _Column("shape", lambda row: shape_text(row.shape))
    yield _Column("dtype", lambda row: row.dtype.removeprefix("torch."))
    yield _Column("note", lambda row: row.note)


def _measure(name: str, row: GradientComparison) -> str:
    value = dict(row.measures).get(name)
    return "-" if value is None or math.isnan(value) else f"{value:.6g}"


def _outside(row: GradientComparison) -> str:
    return f"{row.mismatched:,} of {row.elements:,}" if row.mismatched else ""


def first_difference(first: Element | None) -> str:
    """`[3, 1]: 0.25 | 0.26`, the reference's value first; a single number has no index.

    There are as many digits as tell the two apart.
    """
    if first is None:
        return ""
    place = f"{list(first.index)}: " if first.index else ""
    texts = next((pair for digits in DIGITS if (pair := _in_digits(first, digits))[0] != pair[1]), _in_digits(first, 6))
    return f"{place}{texts[0]} | {texts[1]}"


DIGITS = (6, 9, 12, 17)


def _in_digits(first: Element, digits: int) -> tuple[str, str]:
    return f"{first.reference:.{digits}g}", f"{first.candidate:.{digits}g}"


def parity_styler(comparison: Comparison) -> Styler:
    """The comparison coloured by verdict; its text is escaped and stays readable in dark themes."""
    import pandas as pd

    columns = list(_columns(comparison))
    index = range(len(comparison.rows))
    cells = pd.DataFrame(
        {c.heading: pd.Series([c.text(row) for row in comparison.rows], index=index, dtype="object") for c in columns}
    )
    classes = pd.DataFrame("", index=cells.index, columns=cells.columns)
    for column in columns:
        classes[column.heading] = "" if column.number else "cabw-text"
    classes["verdict"] = ["cabw-text " + _verdict_class(row.verdict) for row in comparison.rows]
    left = ", ".join(f"th.col{place}" for place, column in enumerate(columns) if not column.number)
    # !important: notebooks set the headings of all tables to the right.
    styles: Any = [*_STYLES, {"selector": left, "props": "text-align: left !important"}]
    # A fixed uuid: the styles go by class, so two tables of one page may share it, and the bytes stay the same.
    styler = cells.style.set_uuid("cabw_parity").hide(axis="index").set_table_styles(styles)
    styler = styler.set_table_attributes('class="tex2jax_ignore mathjax_ignore"')  # a name with $ is no formula
    return styler.set_td_classes(classes).format(_cell)


def _cell(text: object) -> str:
    return html.escape(in_line(str(text), CELL))


def _verdict_class(verdict: Verdict) -> str:
    return f"cabw-{verdict}" if verdict in GOOD else "cabw-bad"


def parity_text(comparison: Comparison) -> str:
    """The comparison as plain text: what is compared with what, how, a line for each gradient, the outcome."""
    head = [f"candidate: {in_line(comparison.candidate, 300)}", f"reference: {in_line(comparison.reference, 300)}"]
    head += [f"tolerance: {dtype} rtol={rtol:g} atol={atol:g}" for dtype, rtol, atol in comparison.tolerances]
    head += [f"note: {in_line(note, 500)}" for note in comparison.notes]
    return "\n".join([*head, "", *_lines(comparison), parity.summary(comparison)])


def _lines(comparison: Comparison) -> list[str]:
    """The rows under their headings, each column as wide as its widest cell; then an empty line."""
    if not comparison.rows:
        return []
    columns = list(_columns(comparison))
    limits = [200 if column.heading == "note" else 60 for column in columns]
    table = [[column.heading for column in columns]]
    table += [
        [in_line(column.text(row), limit) for column, limit in zip(columns, limits, strict=True)]
        for row in comparison.rows
    ]
    return [*aligned(table, [column.number for column in columns]), ""]
