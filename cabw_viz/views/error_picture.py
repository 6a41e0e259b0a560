"""Errors of gradients along the depth of a model, as an SVG picture.

From left to right stand the parameters, from the model's input to its loss; upwards the error, on a logarithmic scale,
with a rail at the bottom for gradients without any and one at the top for those that have no figure. Text and lines
take the colour of what is around them, the marks keep apart by shape as well as by colour; both suit light and dark.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from cabw_viz.analysis import parity
from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.record.kinds import SEVERITY, Verdict
from cabw_viz.views.depth_frame import (
    LEFT,
    NARROWEST,
    Scale,
    grid,
    line,
    names,
    places_of,
    scale_of,
    svg_of,
    text,
    width_of,
)
from cabw_viz.views.palette import VERDICT_LOOKS
from cabw_viz.views.tables import figure, marked

OWN_COLOR = "#87919b"
"""Of the errors of each side by itself."""


def error_picture(comparison: Comparison) -> str:
    """The picture as SVG text; the same comparison gives the same text."""
    rows = in_depth(comparison)
    scale = scale_of(error for row in rows for error in (row.max_rel_err, row.reference_err, row.candidate_err))
    plot, places = width_of(len(rows)), places_of(len(rows))
    title = f"Relative error of each gradient along the depth of the model. {parity.summary(comparison)}"
    parts = [
        *_legend(rows),
        *grid(scale, plot, "relative error"),
        *names([row.name for row in rows], places, plot),
        *(part for row, x in zip(rows, places, strict=True) for part in _marks(row, x, scale)),
    ]
    return svg_of("cabw-errors", title, len(rows), "".join(parts))


def in_depth(comparison: Comparison) -> list[GradientComparison]:
    """The rows from the model's input to its loss, as far as that is known; else in the comparison's order."""
    if any(row.depth is None for row in comparison.rows):
        return list(comparison.rows)
    return sorted(comparison.rows, key=lambda row: -(row.depth or 0))


# -------------------------------------------------------------------------------------------------------------- legend


def _legend(rows: Sequence[GradientComparison]) -> Iterator[str]:
    x = float(LEFT)
    verdicts = [verdict for verdict in SEVERITY if any(row.verdict == verdict for row in rows)]
    entries: list[tuple[str, Callable[[float, float], str]]]
    entries = [(marked(verdict), partial(_verdict_mark, verdict)) for verdict in verdicts]
    if any(row.reference_err is not None for row in rows):
        entries += [("reference, from float64", _reference_mark), ("candidate, from float64", _candidate_mark)]
    y = 16.0
    for words, mark in entries:
        length = 22 + 6.4 * len(words)
        if x + length > LEFT + NARROWEST + 60 and x > LEFT:
            x, y = float(LEFT), y + 18
        yield mark(x + 5, y)
        yield f'<text x="{x + 14:.1f}" y="{y + 4:.1f}">{html.escape(words)}</text>'
        x += length


# --------------------------------------------------------------------------------------------------------------- marks


def _marks(row: GradientComparison, x: float, scale: Scale) -> Iterator[str]:
    """All that stands over one parameter, with a tooltip."""
    tooltip = f"{row.name}: {row.verdict}, error {figure(row.max_rel_err)}"
    marks = []
    if row.reference_err is not None and row.candidate_err is not None:
        tooltip += f"; from float64: reference {figure(row.reference_err)}, candidate {figure(row.candidate_err)}"
        own, other = scale.y(row.reference_err), scale.y(row.candidate_err)
        marks = [line(x, own, x, other, 0.25), _reference_mark(x, own), _candidate_mark(x, other)]
    marks.append(_verdict_mark(row.verdict, x, scale.y(row.max_rel_err)))
    yield f"<g><title>{text(tooltip, 300)}</title>{''.join(marks)}</g>"


def _verdict_mark(verdict: Verdict, x: float, y: float) -> str:
    look = VERDICT_LOOKS[verdict]
    if look.shape == "diamond":
        return f'<path d="M{x:.1f} {y - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z" fill="{look.color}"/>'
    if look.shape == "cross":
        path = f"M{x - 3.5:.1f} {y - 3.5:.1f}l7 7m0 -7l-7 7"
        return f'<path d="{path}" stroke="{look.color}" stroke-width="2.4" fill="none"/>'
    if look.shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{look.color}"/>'
    return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" fill="{look.color}"/>'


def _reference_mark(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="none" stroke="{OWN_COLOR}" stroke-width="1.3"/>'


def _candidate_mark(x: float, y: float) -> str:
    ends = f'x1="{x - 3.5:.1f}" y1="{y:.1f}" x2="{x + 3.5:.1f}" y2="{y:.1f}"'
    return f'<line {ends} stroke="{OWN_COLOR}" stroke-width="2"/>'
