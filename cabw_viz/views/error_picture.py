"""Errors of gradients along the depth of a model, as an SVG picture.

From left to right stand the parameters, from the model's input to its loss; upwards the error, on a logarithmic scale,
with a rail at the bottom for gradients without any and one at the top for those that have no figure. Text and lines
take the colour of what is around them, the marks keep apart by shape as well as by colour; both suit light and dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from cabw_viz.analysis import parity
from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.record.kinds import SEVERITY, Verdict
from cabw_viz.views.palette import VERDICT_LOOKS
from cabw_viz.views.tables import figure, marked
from cabw_viz.views.text import in_line, shorten

LEFT, RIGHT, TOP, PLOT, RAIL, LABELS = 84, 20, 58, 220, 30, 88
"""Margins and heights, in pixels: the legend's, the scale's, of a rail above and below it, of the labels'."""
NARROWEST, WIDEST, STEP_LEAST, STEP_MOST = 480, 900, 5.0, 34.0
"""Width of the plot as far as the number of parameters lets it be, and of a parameter in it."""
DECADES_LEAST = 3
GAP = 3
"""Between the scale and the rails."""
LABEL = 18
"""Longer names are cut under the plot; the tooltip has them in full."""
GROUPS_MOST = 28
LABELS_APART = 12.0
"""In pixels, at least."""

OWN_COLOR = "#87919b"
"""Of the errors of each side by itself."""


@dataclass(frozen=True)
class _Scale:
    """Where errors stand."""

    low: int
    high: int
    """Powers of ten."""

    def y(self, error: float | None) -> float:
        """The place of an error; NaN, infinity and None have theirs on the upper rail, zero on the lower."""
        if error is None or not math.isfinite(error):
            return TOP + RAIL / 2 - GAP
        if error <= 0:
            return TOP + RAIL + PLOT + RAIL / 2 + GAP
        part = (math.log10(error) - self.low) / (self.high - self.low)
        return TOP + RAIL + PLOT * (1 - min(max(part, 0.0), 1.0))

    @property
    def ticks(self) -> range:
        """The powers of ten that have a line, about eight."""
        return range(self.low, self.high + 1, max(1, math.ceil((self.high - self.low) / 8)))


def error_picture(comparison: Comparison) -> str:
    """The picture as SVG text; the same comparison gives the same text."""
    rows = in_depth(comparison)
    step = min(max(WIDEST / max(len(rows), 1), STEP_LEAST), STEP_MOST)
    plot = max(step * len(rows), NARROWEST)
    scale = _scale(rows)
    places = [LEFT + plot * (index + 0.5) / max(len(rows), 1) for index in range(len(rows))]
    wide, high = LEFT + plot + RIGHT, TOP + RAIL + PLOT + RAIL + LABELS
    title = f"Relative error of each gradient along the depth of the model. {parity.summary(comparison)}"
    parts = [
        *_legend(rows),
        *_grid(scale, plot),
        *_names(rows, places, plot),
        *(part for row, x in zip(rows, places, strict=True) for part in _marks(row, x, scale)),
    ]
    body = "".join(parts)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="cabw-errors" role="img" '
        f'width="{wide:.0f}" height="{high:.0f}" '
        f'viewBox="0 0 {wide:.0f} {high:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="11" '
        f'fill="currentColor"><title>{_text(title, 500)}</title>{body}</svg>'
    )


def standalone(svg: str) -> str:
    """A picture for a file of its own: with a background, and for a reader in the dark with a dark one."""
    style = (
        "<style>svg{color:#1b2026;background:#ffffff}"
        "@media (prefers-color-scheme: dark){svg{color:#e3e7eb;background:#16191d}}</style>"
    )
    head, bracket, rest = svg.partition(">")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}{bracket}{style}{rest}\n'


def in_depth(comparison: Comparison) -> list[GradientComparison]:
    """The rows from the model's input to its loss, as far as that is known; else in the comparison's order."""
    if any(row.depth is None for row in comparison.rows):
        return list(comparison.rows)
    return sorted(comparison.rows, key=lambda row: -(row.depth or 0))


def _scale(rows: Sequence[GradientComparison]) -> _Scale:
    errors = [error for row in rows for error in (row.max_rel_err, row.reference_err, row.candidate_err)]
    powers = [math.log10(error) for error in errors if error is not None and 0 < error < math.inf]
    if not powers:
        return _Scale(-8, 0)
    low, high = math.floor(min(powers)), math.ceil(max(powers))
    low = min(low, high - DECADES_LEAST)
    return _Scale(low, high)


def _text(text: str, limit: int = 200) -> str:
    return html.escape(in_line(text, limit))


# --------------------------------------------------------------------------------------------------------------- frame


def _grid(scale: _Scale, plot: float) -> Iterator[str]:
    right = LEFT + plot
    for power in scale.ticks:
        y = scale.y(10.0**power)
        yield _line(LEFT, y, right, y, 0.16)
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_power(power)}</text>'
    for y, label in ((scale.y(None), "no figure"), (scale.y(0.0), "0")):
        size = f'width="{plot:.1f}" height="{RAIL - 2 * GAP}"'
        yield f'<rect x="{LEFT}" y="{y - RAIL / 2 + GAP:.1f}" {size} opacity="0.05"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    middle = TOP + RAIL + PLOT / 2
    turned = f'x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})"'
    yield f"<text {turned}>relative error</text>"


def _power(power: int) -> str:
    return {0: "1", 1: "10", -1: "0.1", -2: "0.01"}.get(power, f"1e{power}")


def _line(x1: float, y1: float, x2: float, y2: float, opacity: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity}"/>'
    )


def _names(rows: Sequence[GradientComparison], places: Sequence[float], plot: float) -> Iterator[str]:
    """Under the plot the parameters, or the modules that they belong to where those are too many."""
    if not rows:
        return
    step = plot / len(rows)
    bottom, last_label = TOP + 2 * RAIL + PLOT, -LABELS_APART
    for number, (label, first, last) in enumerate(groups(rows)):
        left, right = places[first] - step / 2, places[last] + step / 2
        if number % 2 == 0:
            size = f'width="{right - left:.1f}" height="{PLOT + 2 * RAIL}"'
            yield f'<rect x="{left:.1f}" y="{TOP}" {size} opacity="0.035"/>'
        x, y = (left + right) / 2, bottom + 14
        if x - last_label < LABELS_APART:
            continue  # it would lie on the one before; the tooltip has it
        last_label = x
        yield (
            f'<text x="{x:.1f}" y="{y}" text-anchor="end" transform="rotate(-38 {x:.1f} {y})">'
            f"<title>{_text(label)}</title>{_text(_from_the_end(label), LABEL)}</text>"
        )


def _from_the_end(label: str) -> str:
    """A long name by its end, which tells it from its neighbours."""
    return label if len(label) <= LABEL else "…" + shorten(label[-(LABEL - 1) :], LABEL)


def groups(rows: Sequence[GradientComparison]) -> list[tuple[str, int, int]]:
    """(name, first, last) of neighbours that lie in one module, as deep as leaves room for all names.

    What all names begin with is left out: `transformer.` of every parameter of a GPT-2.
    """
    paths = [row.name.split(" = ")[0].split(".") for row in rows]
    alike = (len(set(parts)) == 1 for parts in zip(*(path[:-1] for path in paths), strict=False))
    shared = sum(takewhile(bool, alike))
    paths = [path[shared:] for path in paths]
    deepest = max(len(path) for path in paths)
    groups: list[tuple[str, int, int]] = []
    for depth in range(deepest, 0, -1):
        groups = []
        for place, path in enumerate(paths):
            name = ".".join(path[:depth])
            if groups and groups[-1][0] == name:
                groups[-1] = (name, groups[-1][1], place)
            else:
                groups.append((name, place, place))
        if len(groups) <= GROUPS_MOST:
            return groups
    every = math.ceil(len(groups) / GROUPS_MOST)
    spans = (groups[n : n + every] for n in range(0, len(groups), every))
    return [(span[0][0], span[0][1], span[-1][2]) for span in spans]


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


def _marks(row: GradientComparison, x: float, scale: _Scale) -> Iterator[str]:
    """All that stands over one parameter, with a tooltip."""
    tooltip = f"{row.name}: {row.verdict}, error {figure(row.max_rel_err)}"
    marks = []
    if row.reference_err is not None and row.candidate_err is not None:
        tooltip += f"; from float64: reference {figure(row.reference_err)}, candidate {figure(row.candidate_err)}"
        own, other = scale.y(row.reference_err), scale.y(row.candidate_err)
        marks = [_line(x, own, x, other, 0.25), _reference_mark(x, own), _candidate_mark(x, other)]
    marks.append(_verdict_mark(row.verdict, x, scale.y(row.max_rel_err)))
    yield f"<g><title>{_text(tooltip, 300)}</title>{''.join(marks)}</g>"


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
