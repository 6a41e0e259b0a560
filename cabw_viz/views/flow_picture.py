"""The size of gradients along the depth of a model, as an SVG picture.

Over each call of a module stand two marks, one for the gradients that flow into it and one for those of its own
leaves. Calls of modules that differ in an index alone (`h.0.mlp`, `h.1.mlp`) are joined by a line. Where gradients fall
or rise by more than the factor, the background says so, and a diamond stands where they change most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cabw_viz.analysis.gradient_flow import sentence, sentences
from cabw_viz.record.gradient_flow import Flow, FlowChange, FlowPoint
from cabw_viz.views.depth_frame import (
    LEFT,
    PLOT,
    RAIL,
    TOP,
    Scale,
    grid,
    names,
    places_of,
    scale_of,
    svg_of,
    text,
    width_of,
)
from cabw_viz.views.tables import figure

FLOW_COLOR, LEAF_COLOR, CHANGE_COLOR = "#2584c9", "#16996f", "#dc5a1e"
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")


def flow_picture(flow: Flow) -> str:
    """The picture as SVG text; the same flow gives the same text."""
    points = flow.points
    scale = scale_of(rms for point in points for rms in (point.rms, point.leaf_rms))
    plot, places = width_of(len(points)), places_of(len(points))
    words = sentences(flow) or [f"nothing falls or rises by more than {flow.factor:g}"]
    title = f"Root mean square of gradients along the depth of the model: {'; '.join(words)}"
    parts = [
        *_legend(flow),
        *grid(scale, plot, "root mean square"),
        *(part for change in flow.changes for part in _change(change, points, places)),
        *names([point.module or "outside of any module" for point in points], places, plot),
        *_lines(points, places, scale),
        *(part for point, x in zip(points, places, strict=True) for part in _marks(point, x, scale)),
    ]
    return svg_of("cabw-flow", title, len(points), "".join(parts))


def _legend(flow: Flow) -> Iterator[str]:
    x = float(LEFT)
    entries = [("gradient into the module", _circle), ("of its leaves", _square)]
    for words, mark in entries + ([(f"changes by more than {flow.factor:g}", _diamond)] if flow.changes else []):
        yield mark(x + 5, 16.0)
        yield f'<text x="{x + 14:.1f}" y="20">{text(words)}</text>'
        x += 24 + 6.4 * len(words)


def _change(change: FlowChange, points: Sequence[FlowPoint], places: Sequence[float]) -> Iterator[str]:
    if not points:
        return
    step = width_of(len(points)) / len(points)
    start, end = _place(change.first, points), _place(change.last, points)
    left, right = places[end] - step / 2, places[start] + step / 2
    title = f"<title>{text(sentence(change), 400)}</title>"
    size = f'width="{right - left:.1f}" height="{PLOT + 2 * RAIL}"'
    yield f'<g>{title}<rect x="{left:.1f}" y="{TOP}" {size} fill="{CHANGE_COLOR}" opacity="0.12"/>'
    yield f"{_diamond(places[_place(change.steepest, points)], TOP - 8.0)}</g>"


def _place(number: int, points: Sequence[FlowPoint]) -> int:
    """The call of a module to which an autograd node belongs, or that runs last before it."""
    before = [place for place, point in enumerate(points) if point.number <= number]
    return before[0] if before else len(points) - 1


def _lines(points: Sequence[FlowPoint], places: Sequence[float], scale: Scale) -> Iterator[str]:
    """A line for each kind of block, over its index."""
    series: dict[str, list[int]] = {}
    for place, point in enumerate(points):
        if _INDEX.search(point.module) and point.rms is not None:
            series.setdefault(_INDEX.sub("*", point.module), []).append(place)
    for members in series.values():
        if len(members) > 1:
            path = " ".join(f"{places[place]:.1f},{scale.y(points[place].rms):.1f}" for place in members)
            yield f'<polyline points="{path}" fill="none" stroke="{FLOW_COLOR}" stroke-opacity="0.45"/>'


def _marks(point: FlowPoint, x: float, scale: Scale) -> Iterator[str]:
    name = point.module or "outside of any module"
    words = [f"{name} (#{point.number})"]
    words += [f"into it {figure(point.rms)}"] if point.rms is not None else []
    words += [f"its leaves {figure(point.leaf_rms)}"] if point.leaf_rms is not None else []
    marks = [_square(x, scale.y(point.leaf_rms))] if point.leaf_rms is not None else []
    marks += [_circle(x, scale.y(point.rms))] if point.rms is not None else []
    yield f"<g><title>{text(': '.join([words[0], ', '.join(words[1:])]), 300)}</title>{''.join(marks)}</g>"


def _circle(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{FLOW_COLOR}"/>'


def _square(x: float, y: float) -> str:
    return f'<rect x="{x - 2.8:.1f}" y="{y - 2.8:.1f}" width="5.6" height="5.6" fill="none" stroke="{LEAF_COLOR}"/>'


def _diamond(x: float, y: float) -> str:
    return f'<path d="M{x:.1f} {y - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z" fill="{CHANGE_COLOR}"/>'
