r"""A drawing as DOT text, the language of Graphviz.

Names come from other people's models. Labels are HTML-like, so what has a meaning there is escaped, and so is
the backslash, which Graphviz expands even inside them (`\N` is the node's name).
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

from cabw_viz.analysis.coloring import FAMILY
from cabw_viz.analysis.drawing import Arrow, Box, BoxKind, Cluster, Drawing, Shade
from cabw_viz.analysis.families import FAMILIES
from cabw_viz.errors import CabwError
from cabw_viz.views.links import link
from cabw_viz.views.palette import (
    ALARM,
    ALARM_TINT,
    AMOUNT,
    EDGE,
    ERROR,
    FAINT,
    FAINT_EDGE,
    FAMILY_TONES,
    FRAME_LINE,
    FRAME_TINT,
    LINE,
    LOOKS,
    MUTED,
    PAPER,
    TEXT,
    TOUCHED,
    UNKNOWN_TONE,
    WORSE_TONE,
    Tone,
)
from cabw_viz.views.text import SHORT, shorten, visible

Framed = dict[str | None, list[tuple[str, dict[str, str]]]]
"""By the frame in which it stands: name and attributes of each thing there, in order."""

FONT = "Helvetica,Arial,sans-serif"

TOOLTIP_BYTES = 15_000
"""Graphviz reads no quoted string of more than 16,384 bytes."""

SET_MINUS = "\N{SET MINUS}"
"""Looks like a backslash."""

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"

LEGEND_COLUMNS = 66
"""A legend longer than this many characters goes on in a second row."""

_LEFT = '<BR ALIGN="LEFT"/>'

LEGEND_GAP = 4 * NO_BREAK_SPACE

_ESCAPED_BYTES = {"&": len("&amp;"), '"': 2, "\\": len(SET_MINUS.encode())}

_GRAPH = {
    "bgcolor": PAPER,  # not transparent: the text is dark, and the page may be too
    "fontname": FONT,
    "fontsize": "11",
    "fontcolor": TEXT,
    "labelloc": "t",
    "labeljust": "l",
    "nodesep": "0.22",
    "ranksep": "0.3",
    "pad": "0.15",
    "newrank": "true",  # the older ranking packs chains of CopySlices into a heap, with arrows upwards
    "tooltip": " ",  # else the browser shows the graph's name wherever the pointer rests
}
_NODE = {
    "shape": "box",
    "style": "rounded,filled",
    "fontname": FONT,
    "fontsize": "11",
    "fontcolor": TEXT,
    "color": LINE,
    "fillcolor": PAPER,
    "height": "0.32",
    "width": "1.4",
    "margin": "0.11,0.05",
}
_EDGE = {"color": EDGE, "arrowsize": "0.55", "fontname": FONT, "fontsize": "9", "fontcolor": MUTED}
_SUM = {"shape": "circle", "style": "filled", "width": "0.2", "height": "0.2", "margin": "0", "color": TEXT}
_UNFILLED: frozenset[BoxKind] = frozenset({"hook", "outside"})
_STATES: dict[str, dict[str, str]] = {
    "": {},
    "failed": {"color": ALARM, "fillcolor": ALARM_TINT, "penwidth": "2"},
    "unreached": {"color": LINE, "fillcolor": PAPER, "fontcolor": FAINT, "style": "rounded,filled,dashed"},
}


def dot_source(drawing: Drawing, links: str | None = None) -> str:
    """The drawing as DOT: title, counts and legend above, then boxes, frames and arrows.

    Args:
        drawing: What to write.
        links: Where a box leads, a text with `{file}` and `{line}` in it; None for nowhere.
    """
    graph = _graphviz().Digraph("backward", graph_attr=_GRAPH, node_attr=_NODE, edge_attr=_EDGE)
    graph.attr(label=_heading(drawing))
    tones = [tone_of(drawing, shade) for shade in drawing.shades]
    nodes = [(box.cluster, (box.id, _box_attributes(box, tones, links))) for box in drawing.boxes]
    frames = _framed((cluster.parent, (cluster.id, _cluster_attributes(cluster))) for cluster in drawing.clusters)
    _write(graph, None, _framed(nodes), frames)
    for arrow in drawing.arrows:
        graph.edge(arrow.source, arrow.target, **_arrow_attributes(arrow))
    return str(graph.source)


def tone_of(drawing: Drawing, shade: Shade) -> Tone:
    """The look of one step of the drawing's scale."""
    if drawing.measure == FAMILY:
        return FAMILY_TONES[FAMILIES[shade.step]]
    if shade.step < 0:
        return UNKNOWN_TONE
    tones = ERROR if "error" in drawing.measure else AMOUNT
    return tones.get(shade.step, WORSE_TONE)


def _write(graph: Any, frame: str | None, nodes: Framed, frames: Framed) -> None:
    """Write the boxes that stand in a frame, or in none, and the frames in it."""
    for name, attributes in nodes.get(frame, ()):
        graph.node(name, **attributes)
    for name, attributes in frames.get(frame, ()):
        with graph.subgraph(name=name, graph_attr=attributes) as inner:
            _write(inner, name, nodes, frames)


def _graphviz() -> ModuleType:
    """The Python package, without which a training node can capture, replay and tabulate all the same."""
    try:
        import graphviz
    except ImportError:
        raise CabwError(
            "the Python package graphviz, which writes the DOT text, is not installed",
            expected="graphviz 0.20 or newer",
            try_="pip install graphviz; outline, tables and parity work without it",
        ) from None
    package: ModuleType = graphviz
    return package


def text_label(text: str, limit: int | None = None) -> str:
    """A text as part of an HTML-like label, cut to `limit` characters."""
    line = visible(text) if limit is None else shorten(visible(text), limit)
    return html.escape(line).replace("\\", "\\\\").replace("]", "&#93;")  # "]" alone breaks Graphviz's parser


def _name_label(name: str) -> str:
    return text_label(name, SHORT) or "''"  # an empty label is a syntax error, and an empty box tells nothing


def tooltip_text(text: str) -> str:
    """A text as a tooltip.

    Releases of Graphviz differ in how often they expand backslashes in tooltips (2.43 does it twice), so a
    lookalike stands for it.
    """
    line = _fitting(visible(text)).replace("\\", SET_MINUS).replace("&", "&amp;")
    quoted: str = _graphviz().nohtml(line)
    return quoted


def _fitting(text: str) -> str:
    """As much of a text as a tooltip can hold once it is escaped."""
    if 5 * len(text) <= TOOLTIP_BYTES:
        return text
    used = 0
    for place, char in enumerate(text):
        used += _ESCAPED_BYTES.get(char) or len(char.encode())
        if used > TOOLTIP_BYTES:
            return text[:place] + "…"
    return text


def _framed(things: Iterable[tuple[str | None, tuple[str, dict[str, str]]]]) -> Framed:
    by_frame: Framed = {}
    for frame, thing in things:
        by_frame.setdefault(frame, []).append(thing)
    return by_frame


def _font(text: str, color: str, size: int | None = None) -> str:
    sized = "" if size is None else f' POINT-SIZE="{size}"'
    return f'<FONT COLOR="{color}"{sized}>{text}</FONT>'


def _box_attributes(box: Box, tones: Sequence[Tone], links: str | None) -> dict[str, str]:
    look = LOOKS[box.kind]
    tone = None if box.shade is None else tones[box.shade]
    attributes = {"label": f"<{_box_label(box, tone)}>", "tooltip": tooltip_text(box.tooltip or box.title)}
    attributes |= _shape(box.kind) | {"color": look.line}
    if box.kind not in _UNFILLED:
        attributes["fillcolor"] = look.tint
    if box.touched:
        attributes |= {"color": TOUCHED.line, "penwidth": "2"}
        attributes["tooltip"] = tooltip_text(f"{box.tooltip or box.title}; touched: {box.touched}")
    if tone is not None and not box.state:
        attributes["fillcolor"] = tone.fill
    address = link(links, box.line)
    if address:
        attributes |= {"URL": address, "target": "_blank"}
    return attributes | _STATES[box.state]


def _shape(kind: BoxKind) -> dict[str, str]:
    if kind == "gradient_sum":
        return _SUM
    if kind in {"accumulate_grad", "returned"}:
        return {"style": "filled"}
    return {"style": "rounded,filled,dashed"} if kind in _UNFILLED else {}


def _box_label(box: Box, tone: Tone | None) -> str:
    """The words in a box; on a dark tone all of them are light."""
    ink = None if tone is None or tone.ink == TEXT or box.state else tone.ink
    badge = f" {_font(f'<B>{TOUCHED.mark}</B>', ink or TOUCHED.color)}" if box.touched else ""
    if box.hooks:
        hook = LOOKS["hook"]
        badge += f" {_font(hook.mark + (f'{box.hooks:,}' if box.hooks > 1 else ''), ink or hook.color)}"
    if box.kind == "gradient_sum":
        return text_label(box.title) + badge
    look = LOOKS[box.kind]
    name = _name_label(box.title)
    stem = name.removesuffix("Backward0")  # on nearly every box, so it stands back
    suffix = _font("Backward0", ink or FAINT) if stem and stem != name else ""
    title = _inked(stem if suffix else name, ink) + suffix
    aside = text_label(box.value) or ("" if box.number is None else f"#{box.number}")
    number = "  " + _font(aside, ink or (TEXT if box.value else FAINT), 9) if aside else ""
    lines = [f"{_font(look.mark, ink or look.color)} {title}{number}{badge}"]
    color = ALARM if box.state == "failed" else ink or (MUTED if tone is None else TEXT)
    # The blanks are in the larger type: without them the smaller lines would stick to the title.
    lines += [f" {_font(text_label(line, SHORT), color, 9)} " for line in box.details if line]
    return "<BR/>".join(lines)


def _inked(text: str, ink: str | None) -> str:
    return text if ink is None else _font(text, ink)


def _cluster_attributes(cluster: Cluster) -> dict[str, str]:
    look = LOOKS[cluster.kind]
    of_modules = cluster.kind == "group"
    number = "" if cluster.number is None else f"  #{cluster.number}"
    words = f"{_name_label(cluster.title)}{number}"
    blanks = NO_BREAK_SPACE * (5 * len(words) // 3)  # widen the frame, so that the title is left of the arrows
    title = f"{_font(look.mark, look.color, 9)} {_font(words, TEXT if of_modules else MUTED, 10 if of_modules else 9)}"
    lines = [title + blanks, *(_font(text_label(line, 2 * SHORT), MUTED, 9) for line in cluster.details)]
    return {
        "label": f"<{_LEFT.join([*lines, '']) if cluster.details else lines[0]}>",
        "style": "rounded",
        "color": FRAME_LINE if of_modules else look.line,
        "bgcolor": FRAME_TINT if of_modules else look.tint,
        "margin": "9",
        "tooltip": tooltip_text(cluster.tooltip or f"{cluster.title}{number}, {cluster.kind}"),
    }


def _arrow_attributes(arrow: Arrow) -> dict[str, str]:
    attributes = {"tooltip": tooltip_text(arrow.tooltip)} if arrow.tooltip else {}
    if arrow.label:
        attributes["label"] = f"<{NO_BREAK_SPACE}{text_label(arrow.label)}{NO_BREAK_SPACE}>"
    if arrow.faint:
        attributes |= {"style": "dashed", "color": FAINT_EDGE}
    if arrow.back:
        attributes |= {"style": "dashed", "constraint": "false", "tailport": "e", "headport": "e"}
    return attributes


def _heading(drawing: Drawing) -> str:
    """Title, counts, what went wrong, and the legend, as one HTML-like table."""
    rows = [f"<B>{_name_label(drawing.title)}</B>", _font(text_label(" · ".join(drawing.facts)), MUTED, 10)]
    if drawing.problem:
        rows.append(_font(text_label(drawing.problem, 2 * SHORT), ALARM, 10))
    for text, alarming in drawing.findings:
        rows.append(_font(text_label(text, 2 * SHORT), ALARM if alarming else MUTED, 10))
    rows += [_font(text_label(note, 2 * SHORT), MUTED, 10) for note in drawing.notes]
    rows += _legend_rows(drawing)
    if drawing.shades:
        rows += _scale_rows(drawing)
    cells = "".join(f'<TR><TD ALIGN="LEFT">{row}</TD></TR>' for row in rows)
    return f'<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="2">{cells}</TABLE>>'


def _legend_rows(drawing: Drawing) -> Iterator[str]:
    """The kinds that occur, each with its mark and its name."""
    row: list[str] = []
    columns = 0
    looks = [LOOKS[kind] for kind in drawing.kinds]
    if any(box.touched for box in drawing.boxes):
        looks.append(TOUCHED)
    for look in looks:
        if row and columns + len(look.words) > LEGEND_COLUMNS:
            yield LEGEND_GAP.join(row)
            row, columns = [], 0
        row.append(f"{_font(look.mark, look.color, 10)} {_font(look.words, MUTED, 10)}")
        columns += len(look.words) + 5
    if row:
        yield LEGEND_GAP.join(row)


def _scale_rows(drawing: Drawing) -> Iterator[str]:
    """The colours of a scale, each with the figures that have it."""
    folded = ", of folded modules together" if any(box.times > 1 for box in drawing.boxes) else ""
    yield _font(text_label(f"coloured by {drawing.measure}", 2 * SHORT) + folded, MUTED, 10)
    cells = []
    for shade in drawing.shades:
        tone = tone_of(drawing, shade)
        words = " ".join(filter(None, (tone.bars, text_label(shade.text))))
        cells.append(f'<TD BGCOLOR="{tone.fill}" BORDER="1" COLOR="{LINE}">{_font(words, tone.ink, 9)}</TD>')
    yield f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="3" CELLPADDING="3"><TR>{"".join(cells)}</TR></TABLE>'
