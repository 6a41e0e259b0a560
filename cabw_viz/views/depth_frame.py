"""The frame of a picture of figures along the depth of a model: a logarithmic scale, rails, and names below.

From left to right stand the rows, from the model's input to its loss; upwards the figure, with a rail at the bottom for
zero and one at the top for what has no figure.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

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


@dataclass(frozen=True)
class Scale:
    """Where figures stand."""

    low: int
    high: int
    """Powers of ten."""

    def y(self, figure: float | None) -> float:
        """The place of a figure; NaN, infinity and None have theirs on the upper rail, zero on the lower."""
        if figure is None or not math.isfinite(figure):
            return TOP + RAIL / 2 - GAP
        if figure <= 0:
            return TOP + RAIL + PLOT + RAIL / 2 + GAP
        part = (math.log10(figure) - self.low) / (self.high - self.low)
        return TOP + RAIL + PLOT * (1 - min(max(part, 0.0), 1.0))

    @property
    def ticks(self) -> range:
        """The powers of ten that have a line, about eight."""
        return range(self.low, self.high + 1, max(1, math.ceil((self.high - self.low) / 8)))


def scale_of(figures: Iterable[float | None]) -> Scale:
    """The scale on which all these stand."""
    powers = [math.log10(figure) for figure in figures if figure is not None and 0 < figure < math.inf]
    if not powers:
        return Scale(-8, 0)
    low, high = math.floor(min(powers)), math.ceil(max(powers))
    return Scale(min(low, high - DECADES_LEAST), high)


def width_of(rows: int) -> float:
    """The width of the plot for so many rows."""
    return max(min(max(WIDEST / max(rows, 1), STEP_LEAST), STEP_MOST) * rows, NARROWEST)


def places_of(rows: int) -> list[float]:
    """Where each row stands, from left to right."""
    return [LEFT + width_of(rows) * (index + 0.5) / max(rows, 1) for index in range(rows)]


def svg_of(css: str, title: str, rows: int, body: str) -> str:
    """The picture as SVG text; its text and lines take the colour of the page that it stands in."""
    wide, high = LEFT + width_of(rows) + RIGHT, TOP + RAIL + PLOT + RAIL + LABELS
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{css}" role="img" '
        f'width="{wide:.0f}" height="{high:.0f}" '
        f'viewBox="0 0 {wide:.0f} {high:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="11" '
        f'fill="currentColor"><title>{text(title, 500)}</title>{body}</svg>'
    )


def standalone(svg: str) -> str:
    """A picture for a file of its own: with a background, and for a reader in the dark with a dark one."""
    style = (
        "<style>svg{color:#1b2026;background:#ffffff}"
        "@media (prefers-color-scheme: dark){svg{color:#e3e7eb;background:#16191d}}</style>"
    )
    head, bracket, rest = svg.partition(">")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}{bracket}{style}{rest}\n'


def text(words: str, limit: int = 200) -> str:
    """Words as markup, in one line."""
    return html.escape(in_line(words, limit))


def grid(scale: Scale, plot: float, label: str) -> Iterator[str]:
    """The lines of the scale with their numbers, the rails, and what the scale is of."""
    right = LEFT + plot
    for power in scale.ticks:
        y = scale.y(10.0**power)
        yield line(LEFT, y, right, y, 0.16)
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_power(power)}</text>'
    for y, name in ((scale.y(None), "no figure"), (scale.y(0.0), "0")):
        size = f'width="{plot:.1f}" height="{RAIL - 2 * GAP}"'
        yield f'<rect x="{LEFT}" y="{y - RAIL / 2 + GAP:.1f}" {size} opacity="0.05"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{name}</text>'
    middle = TOP + RAIL + PLOT / 2
    turned = f'x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})"'
    yield f"<text {turned}>{label}</text>"


def _power(power: int) -> str:
    return {0: "1", 1: "10", -1: "0.1", -2: "0.01"}.get(power, f"1e{power}")


def line(x1: float, y1: float, x2: float, y2: float, opacity: float) -> str:
    """A line in the colour of the text."""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity}"/>'
    )


def names(labels: Sequence[str], places: Sequence[float], plot: float) -> Iterator[str]:
    """Under the plot the parameters, or the modules that they belong to where those are too many."""
    if not labels:
        return
    step = plot / len(labels)
    bottom, last_label = TOP + 2 * RAIL + PLOT, -LABELS_APART
    for number, (label, first, last) in enumerate(groups(labels)):
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
            f"<title>{text(label)}</title>{text(_from_the_end(label), LABEL)}</text>"
        )


def _from_the_end(label: str) -> str:
    """A long name by its end, which tells it from its neighbours."""
    return label if len(label) <= LABEL else "…" + shorten(label[-(LABEL - 1) :], LABEL)


def groups(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """(name, first, last) of neighbours that lie in one module, as deep as leaves room for all names.

    What all names begin with is left out: `transformer.` of every parameter of a GPT-2.
    """
    paths = [label.split(" = ")[0].split(".") for label in labels]
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
