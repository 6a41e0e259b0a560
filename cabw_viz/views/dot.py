r"""A drawing as DOT text, the language of Graphviz.

Names come from other people's models. Labels are HTML-like, so what has a meaning there is escaped, and so is
the backslash, which Graphviz expands even inside them (`\N` is the node's name).
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from types import ModuleType

from cabw_viz.analysis.drawing import Arrow, Box, Cluster, Drawing
from cabw_viz.errors import CabwError
from cabw_viz.views.palette import ALARM, ALARM_TINT, EDGE, FAINT, FAINT_EDGE, LINE, LOOKS, MUTED, PAPER, TEXT, TOUCHED
from cabw_viz.views.text import SHORT, shorten, visible

FONT = "Helvetica,Arial,sans-serif"

TOOLTIP_BYTES = 15_000
"""Graphviz reads no quoted string of more than 16,384 bytes."""

SET_MINUS = "\N{SET MINUS}"
"""Looks like a backslash."""

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"

LEGEND_COLUMNS = 66
"""A legend longer than this many characters goes on in a second row."""

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
_STATES: dict[str, dict[str, str]] = {
    "": {},
    "failed": {"color": ALARM, "fillcolor": ALARM_TINT, "penwidth": "2"},
    "unreached": {"color": LINE, "fillcolor": PAPER, "fontcolor": FAINT, "style": "rounded,filled,dashed"},
}


def dot_source(drawing: Drawing) -> str:
    """The drawing as DOT: title, counts and legend above, then boxes, frames and arrows."""
    graph = _graphviz().Digraph("backward", graph_attr=_GRAPH, node_attr=_NODE, edge_attr=_EDGE)
    graph.attr(label=_heading(drawing))
    framed = _by_cluster(drawing.boxes)
    for box in framed.get(None, []):
        graph.node(box.id, **_box_attributes(box))
    for cluster in drawing.clusters:
        with graph.subgraph(name=cluster.id, graph_attr=_cluster_attributes(cluster)) as frame:
            for box in framed.get(cluster.id, []):
                frame.node(box.id, **_box_attributes(box))
    for arrow in drawing.arrows:
        graph.edge(arrow.source, arrow.target, **_arrow_attributes(arrow))
    return str(graph.source)


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
    shown = visible(text) if limit is None else shorten(visible(text), limit)
    return html.escape(shown).replace("\\", "\\\\").replace("]", "&#93;")  # "]" alone breaks Graphviz's parser


def _name_label(name: str) -> str:
    return text_label(name, SHORT) or "''"  # an empty label is a syntax error, and an empty box tells nothing


def tooltip_text(text: str) -> str:
    """A text as a tooltip.

    Releases of Graphviz differ in how often they expand backslashes in tooltips (2.43 does it twice), so a
    lookalike stands for it.
    """
    shown = _fitting(visible(text)).replace("\\", SET_MINUS).replace("&", "&amp;")
    quoted: str = _graphviz().nohtml(shown)
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


def _by_cluster(boxes: Iterable[Box]) -> dict[str | None, list[Box]]:
    found: dict[str | None, list[Box]] = {}
    for box in boxes:
        found.setdefault(box.cluster, []).append(box)
    return found


def _font(text: str, color: str, size: int | None = None) -> str:
    sized = "" if size is None else f' POINT-SIZE="{size}"'
    return f'<FONT COLOR="{color}"{sized}>{text}</FONT>'


def _box_attributes(box: Box) -> dict[str, str]:
    look = LOOKS[box.kind]
    attributes = {"label": f"<{_box_label(box)}>", "tooltip": tooltip_text(box.tooltip or box.title)}
    if box.kind == "gradient_sum":
        attributes |= _SUM
    elif box.kind == "hook":
        attributes |= {"style": "rounded,filled,dashed", "color": look.line}
    elif box.kind in {"accumulate_grad", "returned"}:
        attributes |= {"style": "filled", "fillcolor": look.tint, "color": look.line}
    else:
        attributes |= {"fillcolor": look.tint, "color": look.line}
    if box.touched:
        attributes |= {"color": TOUCHED.line, "penwidth": "2"}
        attributes["tooltip"] = tooltip_text(f"{box.tooltip or box.title}; touched: {box.touched}")
    return attributes | _STATES[box.state]


def _box_label(box: Box) -> str:
    badge = f" {_font(f'<B>{TOUCHED.mark}</B>', TOUCHED.color)}" if box.touched else ""
    if box.kind == "gradient_sum":
        return text_label(box.title) + badge
    look = LOOKS[box.kind]
    name = _name_label(box.title)
    stem = name.removesuffix("Backward0")  # on nearly every box, so it stands back
    if stem and stem != name:
        name = stem + _font("Backward0", FAINT)
    number = "" if box.number is None else "  " + _font(f"#{box.number}", FAINT, 9)
    lines = [f"{_font(look.mark, look.color)} {name}{number}{badge}"]
    color = ALARM if box.state == "failed" else MUTED
    # The blanks are in the larger type: without them the smaller lines would stick to the title.
    lines += [f" {_font(text_label(line, SHORT), color, 9)} " for line in box.details if line]
    return "<BR/>".join(lines)


def _cluster_attributes(cluster: Cluster) -> dict[str, str]:
    look = LOOKS[cluster.kind]
    words = f"{_name_label(cluster.title)}  #{cluster.number}"
    blanks = NO_BREAK_SPACE * (5 * len(words) // 3)  # widen the frame, so that the title is left of the arrows
    return {
        "label": f"<{_font(look.mark, look.color, 9)} {_font(words, MUTED, 9)}{blanks}>",
        "style": "rounded",
        "color": look.line,
        "bgcolor": look.tint,
        "margin": "9",
        "tooltip": tooltip_text(f"{cluster.title} #{cluster.number}, {cluster.kind}"),
    }


def _arrow_attributes(arrow: Arrow) -> dict[str, str]:
    attributes = {"tooltip": tooltip_text(arrow.tooltip)} if arrow.tooltip else {}
    if arrow.label:
        attributes["label"] = f"<{text_label(arrow.label)}>"
    if arrow.faint:
        attributes |= {"style": "dashed", "color": FAINT_EDGE}
    return attributes


def _heading(drawing: Drawing) -> str:
    """Title, counts, what went wrong, and the legend, as one HTML-like table."""
    rows = [f"<B>{_name_label(drawing.title)}</B>", _font(text_label(" · ".join(drawing.facts)), MUTED, 10)]
    if drawing.problem:
        rows.append(_font(text_label(drawing.problem, 2 * SHORT), ALARM, 10))
    for text, alarming in drawing.findings:
        rows.append(_font(text_label(text, 2 * SHORT), ALARM if alarming else MUTED, 10))
    rows += _legend_rows(drawing)
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
