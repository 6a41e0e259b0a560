"""Colours a drawing by a figure of its autograd nodes, in five steps from the least to the most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Protocol

from cabw_viz.analysis.drawing import Box, Drawing, Shade
from cabw_viz.analysis.families import FAMILIES, family_of_group
from cabw_viz.analysis.memory import stored
from cabw_viz.analysis.parity import badness
from cabw_viz.analysis.touches import all_touches, watched_phases
from cabw_viz.errors import CabwError
from cabw_viz.record.divergence import Difference
from cabw_viz.record.kinds import GOOD, Verdict
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.options import COLORS
from cabw_viz.record.results import Results
from cabw_viz.record.untraced import check_traced


class Figures(Protocol):
    """Figures of the reader's own: by number of an autograd node, a dict or a column of `cap.nodes`."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Number and figure, in pairs."""


STEPS = 5

FAMILY = "family"
"""The measure of a drawing that is coloured by families."""

NOTHING, UNKNOWN, WORSE = 0, -1, STEPS + 1
"""Steps beside those of figures; see `Shade`."""

WIDE = 20
"""Where the largest figure is so many times the smallest, the steps grow by a factor instead of by a sum."""


@dataclass(frozen=True)
class _Scale:
    """A figure of several autograd nodes together."""

    words: str
    of: Callable[[Sequence[int]], float | None]
    """None where nothing is known of any of them, infinity where it is worse than any figure."""
    text: Callable[[float], str]
    nothing: str
    unknown: str = "not known"
    worse: str = ""


def colorize(drawing: Drawing, record: CaptureRecord, by: str | Figures, results: Results) -> Drawing:
    """The drawing with a colour and a figure on each box that stands for autograd nodes.

    Args:
        drawing: The drawing.
        record: Its capture.
        by: What to colour by: one of `COLORS`, or a figure of at least 0 for each autograd node; NaN or None for those
            that have none. Those of a box are added up.
        results: What was computed of the capture.

    Raises:
        CabwError: There is no such thing to colour by, or it has not been measured; says which call does that.
    """
    if isinstance(by, str) and by == "kind":
        return drawing
    if isinstance(by, str) and by == "family":
        return _by_family(drawing, record)
    scale = _scale(record, by, results)
    figures = [scale.of(box.nodes) if box.nodes else None for box in drawing.boxes]
    step_of = _steps([figure for figure in figures if figure is not None and 0 < figure < math.inf])
    steps = [_step(figure, step_of) if box.nodes else None for box, figure in zip(drawing.boxes, figures, strict=True)]
    used = sorted({step for step in steps if step is not None}, key=_rank)
    shades = [Shade(step, _words(scale, step, figures, steps)) for step in used]
    place = {step: index for index, step in enumerate(used)}
    boxes = tuple(
        box if step is None else _shaded(box, scale, figure, place[step])
        for box, figure, step in zip(drawing.boxes, figures, steps, strict=True)
    )
    return replace(drawing, boxes=boxes, measure=scale.words, shades=tuple(shades))


def _by_family(drawing: Drawing, record: CaptureRecord) -> Drawing:
    """The drawing with the family of its nodes on each box; the steps are places in `FAMILIES`."""
    families = [
        family_of_group(map(record.by_number.__getitem__, box.nodes)) if box.nodes else None for box in drawing.boxes
    ]
    used = [family for family in FAMILIES if family in families]
    boxes = tuple(
        box
        if family is None
        else replace(box, shade=used.index(family), tooltip=f"{box.tooltip or box.title}; {FAMILY}: {family}")
        for box, family in zip(drawing.boxes, families, strict=True)
    )
    shades = tuple(Shade(FAMILIES.index(family), family) for family in used)
    return replace(drawing, boxes=boxes, measure=FAMILY, shades=shades)


def _scale(record: CaptureRecord, by: str | Figures, results: Results) -> _Scale:
    if isinstance(by, str) and by in _OF_THE_GRAPH:
        check_traced(record, f"a captured graph, which color_by={by!r} needs; {_OTHERS} do without")
    if isinstance(by, str) and by in _SCALES:
        return _SCALES[by](record, results)
    if not isinstance(by, str) and callable(getattr(by, "items", None)):
        return _own(record, by)
    raise CabwError(
        f"color_by={by!r} is nothing to colour by",
        expected=f"{' or '.join(map(repr, COLORS))}, or a figure for each autograd node",
        try_='color_by="bytes", or color_by=cap.nodes["graph_nodes"]',
    )


def _shaded(box: Box, scale: _Scale, figure: float | None, shade: int) -> Box:
    value = "" if not figure else scale.worse if figure == math.inf else scale.text(figure)
    text = scale.unknown if figure is None else value or scale.nothing
    return replace(box, shade=shade, value=value, tooltip=f"{box.tooltip or box.title}; {scale.words}: {text}")


# --------------------------------------------------------------------------------------------------------------- steps


def _steps(figures: Sequence[float]) -> Callable[[float], int]:
    """The step of each figure: equal steps between the least and the most, in size or, if that is wide, in factor."""
    if not figures:
        return lambda _: STEPS
    turned: Callable[[float], float] = math.log if max(figures) > WIDE * min(figures) else float
    least, most = turned(min(figures)), turned(max(figures))
    if least == most:
        return lambda _: STEPS
    return lambda figure: min(STEPS, 1 + int(STEPS * (turned(figure) - least) / (most - least)))


def _step(figure: float | None, step_of: Callable[[float], int]) -> int:
    if figure is None:
        return UNKNOWN
    if figure == 0:
        return NOTHING
    return WORSE if figure == math.inf else step_of(figure)


def _rank(step: int) -> tuple[bool, int]:
    """The order of the legend: what is not known stands last."""
    return step == UNKNOWN, step


def _words(scale: _Scale, step: int, figures: Iterable[float | None], steps: Iterable[int | None]) -> str:
    """What a colour stands for: the figures that have it."""
    if step == UNKNOWN:
        return scale.unknown
    if step == NOTHING:
        return scale.nothing
    if step == WORSE:
        return scale.worse
    members = [figure for figure, other in zip(figures, steps, strict=True) if other == step and figure is not None]
    low, high = scale.text(min(members)), scale.text(max(members))
    return low if low == high else f"{low} to {high}"


# -------------------------------------------------------------------------------------------------------------- scales


def _touches(record: CaptureRecord, results: Results) -> _Scale:
    watched = watched_phases(record, results)
    if not watched:
        raise _missing(
            "touches", "metadata reads were not watched", "cabw_viz.capture(..., tripwire=True), or cap.audit()"
        )
    counts: dict[int, int] = {}
    for touch in all_touches(record, results):
        if touch.autograd_node is not None:
            counts[touch.autograd_node] = counts.get(touch.autograd_node, 0) + touch.count
    phases = ", ".join(phase.replace("_", " ") for phase in watched)
    return _Scale(
        f"metadata reads ({phases})", lambda nodes: sum(counts.get(n, 0) for n in nodes), lambda n: f"{n:,.0f}", "none"
    )


def _bytes(record: CaptureRecord, _: Results) -> _Scale:
    if not any(node.saved for node in record.autograd_nodes):
        seen = f"no saved tensors are known of this backward, captured on torch {record.torch_version}"
        raise _missing("bytes", seen, "another capture, on torch 2.9 or newer, of a backward that saves tensors")

    def total(numbers: Sequence[int]) -> float:
        tensors = [tensor for number in numbers for tensor in stored(record.by_number[number])]
        return sum({storage: size for storage, size, of in tensors if not (of.names or of.view_of)}.values())

    return _Scale("bytes kept for the backward, beside parameters", total, bytes_text, "none")


def _time(record: CaptureRecord, results: Results) -> _Scale:
    if not results.node_seconds:
        raise _missing("time", "the autograd nodes have not been timed", "cap.times() first")
    nodes = zip(record.autograd_nodes, results.node_seconds, strict=True)
    seconds = {node.number: taken for node, taken in nodes if taken is not None}

    def spent(numbers: Sequence[int]) -> float | None:
        known = [seconds[number] for number in numbers if number in seconds]
        return sum(known) if known else None

    return _Scale("time", spent, seconds_text, "none", "not timed")


def _parity(record: CaptureRecord, results: Results) -> _Scale:
    if results.comparison is None and results.divergence is None:
        raise _missing("parity", "the gradients have not been compared", "cap.parity() first, or cap.divergence()")
    errors = _errors(record, results)

    def worst(numbers: Sequence[int]) -> float | None:
        return max((errors[number] for number in numbers if number in errors), default=None)

    return _Scale(
        "relative error of gradients",
        worst,
        lambda error: f"{error:.1e}",
        "the same to the last bit",
        "not compared",
        "missing, not finite, or not comparable",
    )


def _own(record: CaptureRecord, by_node: Figures) -> _Scale:
    """Figures that the reader brings."""
    figures: dict[int, float] = {}
    for number, figure in by_node.items():
        if number not in record.by_number:
            raise CabwError(
                f"color_by has a figure for {number!r}, which is no autograd node of this backward",
                expected="the numbers of autograd nodes, as in cap.nodes",
            )
        if figure is None or (isinstance(figure, Real) and math.isnan(figure)):
            continue
        if isinstance(figure, bool) or not isinstance(figure, Real) or figure < 0:
            raise CabwError(f"color_by has {figure!r} for #{number}", expected="a number of at least 0, NaN or None")
        figures[number] = float(figure)

    def added(numbers: Sequence[int]) -> float | None:
        known = [figures[number] for number in numbers if number in figures]
        return sum(known) if known else None

    return _Scale(
        str(getattr(by_node, "name", None) or "figures of your own"),
        added,
        "{:,.4g}".format,
        "0",
        "none given",
        "infinite",
    )


def _errors(record: CaptureRecord, results: Results) -> dict[int, float]:
    """The relative error at each autograd node; infinity where there is none to speak of."""
    errors: dict[int, float] = {}
    if results.divergence is not None:
        for row in results.divergence.rows:
            if row.out is not None and row.kind not in {"hook", "gradient_sum"}:
                errors[row.number] = _error(row.out)
    if results.comparison is not None:
        nodes = {name: leaf.autograd_node for leaf in record.leaves for name in (*leaf.names, leaf.label)}
        for parameter in sorted(results.comparison.rows, key=badness):
            number = nodes.get(parameter.name)
            if number is not None:
                errors[number] = max(errors.get(number, 0.0), _figure(parameter.verdict, parameter.max_rel_err))
    return errors


def _error(difference: Difference) -> float:
    return _figure(difference.verdict, difference.max_rel_err)


def _figure(verdict: Verdict, error: float | None) -> float:
    if error is not None and math.isfinite(error):
        return error
    return 0.0 if verdict in GOOD else math.inf


def _missing(by: str, seen: str, try_: str) -> CabwError:
    return CabwError(f"color_by={by!r}: {seen}", try_=try_)


_OF_THE_GRAPH = ("touches", "parity", "time")
"""What only a captured graph tells."""

_OTHERS = ", ".join(repr(each) for each in COLORS if each not in _OF_THE_GRAPH)

_SCALES: Mapping[str, Callable[[CaptureRecord, Results], _Scale]] = {
    "touches": _touches,
    "parity": _parity,
    "bytes": _bytes,
    "time": _time,
}


def bytes_text(size: float) -> str:
    """A number of bytes as people read it: `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def seconds_text(seconds: float) -> str:
    """A time as people read it: `340 µs`."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"
