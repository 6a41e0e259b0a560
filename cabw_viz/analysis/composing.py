"""From a record and what a reader asks for to a drawing: cut, drawn, with borders, marks and colours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from cabw_viz.analysis.autograd_drawing import draw_autograd
from cabw_viz.analysis.borders import add_borders
from cabw_viz.analysis.coloring import Figures, colorize
from cabw_viz.analysis.cutting import HOPS, Cut, cut
from cabw_viz.analysis.drawing import Drawing
from cabw_viz.analysis.graph_drawing import as_lowered, draw_graph
from cabw_viz.analysis.module_drawing import FEW, draw_lines, draw_modules, has_lines, has_modules, readable_depth
from cabw_viz.analysis.touches import mark_touched
from cabw_viz.errors import CabwError
from cabw_viz.record.model import CaptureRecord, GraphNode
from cabw_viz.record.options import LEVELS
from cabw_viz.record.results import NO_RESULTS, Results
from cabw_viz.record.untraced import check_traced
from cabw_viz.record.wording import counted

NO_MODULES = "No module made any of these nodes: each has a box of its own"


@dataclass(frozen=True)
class Wanted:
    """What a reader asks for; see `Capture.graph`."""

    level: str = "module"
    depth: int | None = None
    expand: Sequence[str] = ()
    focus: str | None = None
    around: int | None = None
    hops: int = HOPS
    path_to: str | None = None
    color_by: str | Figures | None = None
    plumbing: bool = False


_ONLY_AT = {"depth": "module", "expand": "module", "plumbing": "fx"}
"""Options that mean something at one level alone."""


def draw(record: CaptureRecord, wanted: Wanted, results: Results = NO_RESULTS) -> Drawing:
    """Draw a capture as a reader asks for it.

    Raises:
        CabwError: Something asked for is not there, or does not go together.
    """
    _check(wanted)
    if wanted.level in ("fx", "aten"):
        check_traced(
            record, f"a captured graph, which level={wanted.level!r} draws; levels 'module' and 'autograd' need none"
        )
    part = cut(record, focus=wanted.focus, around=wanted.around, hops=wanted.hops, path_to=wanted.path_to)
    if wanted.level == "aten":
        part = _lowered(part, results.lowered)
    drawing = _drawn(part, wanted)
    drawing = replace(drawing, notes=(*part.notes, *drawing.notes))
    if wanted.focus is not None:
        drawing = add_borders(drawing, part)
    drawing = mark_touched(drawing, record, results)
    return colorize(drawing, record, "kind" if wanted.color_by is None else wanted.color_by, results)


def _check(wanted: Wanted) -> None:
    if wanted.level not in LEVELS:
        raise CabwError(f"level={wanted.level!r} is no level of the graph", expected=" or ".join(map(repr, LEVELS)))
    expand: object = wanted.expand
    if isinstance(expand, str) or not isinstance(expand, Iterable):
        raise CabwError(
            f"expand={expand!r} is " + ("one name" if isinstance(expand, str) else "no list"),
            expected="a list of names of modules",
            try_=f"expand={[expand]!r}" if isinstance(expand, str) else 'expand=[...], of names in cap.nodes["module"]',
        )
    defaults = {field.name: field.default for field in fields(Wanted)}
    for option, level in _ONLY_AT.items():
        value = getattr(wanted, option)
        if wanted.level != level and value != defaults[option] and value != []:
            raise CabwError(
                f"{option}={value!r} was given for level={wanted.level!r}, where it means nothing",
                try_=f"level={level!r} with it, or level={wanted.level!r} without it",
            )


def _lowered(part: Cut, lowered: tuple[GraphNode, ...]) -> Cut:
    """The part with the lowered graph in the place of the captured one."""
    whole = as_lowered(part.whole, lowered)
    return replace(part, whole=whole, record=whole if part.record is part.whole else as_lowered(part.record, lowered))


def _drawn(part: Cut, wanted: Wanted) -> Drawing:
    only = part.numbers if part.notes else None
    if wanted.level == "fx":
        return draw_graph(part.record, plumbing=wanted.plumbing, only=only)
    if wanted.level == "aten":
        return draw_graph(part.record, only=only, level="aten")
    if wanted.level == "autograd":
        return draw_autograd(part.record)
    if has_modules(part.record) or wanted.expand:
        base = wanted.focus.partition("@")[0].count(".") + 1 if wanted.focus else 0
        return draw_modules(part.record, depth=wanted.depth, expand=wanted.expand, base=base, few=only is not None)
    if wanted.depth is not None:
        seen = f"depth={wanted.depth!r} was given, and no module made any of these nodes"
        raise CabwError(seen, try_="it without depth=, or level='autograd'")
    if len(part.record.autograd_nodes) > FEW and has_lines(part.record):
        return draw_lines(part.record)
    return replace(draw_autograd(part.record), notes=(NO_MODULES,))


def smaller(record: CaptureRecord, drawing: Drawing) -> str:
    """What to ask for instead of a drawing that is too large, with what that comes to; empty if there is nothing."""
    nodes, whole = len(record.autograd_nodes), len(drawing.boxes)
    proposals = []
    if drawing.level in ("fx", "aten") and nodes < whole:
        proposals.append(f"level='autograd' ({counted(nodes, 'node')})")
    if has_modules(record):
        depth, boxes = readable_depth(record)
        if boxes < whole:
            level = "" if drawing.level == "module" else "level='module', "
            proposals.append(f"{level}depth={depth} ({counted(boxes, 'box', 'boxes')})")
        modules = Counter(node.module for node in record.autograd_nodes if node.module)
        for name in (path for node, _ in modules.most_common(1) for path in (node, node.rpartition(".")[0]) if path):
            inside = sum(f"{node.module}.".startswith(f"{name}.") for node in record.autograd_nodes)
            proposals.append(f"focus={name!r} ({counted(inside, 'autograd node')})")
    return ", or ".join(proposals)
