"""What lies around a module that was cut out: where its gradients come from, and where they go."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from cabw_viz.analysis.cutting import Cut
from cabw_viz.analysis.drawing import Arrow, Box, Drawing
from cabw_viz.analysis.graph_drawing import border_values
from cabw_viz.record.wording import counted


def add_borders(drawing: Drawing, cut: Cut) -> Drawing:
    """The drawing of a cut with a box for each module beyond its borders, and the gradients that cross them.

    A neighbour has a box above if gradients come from it, and one below if gradients go to it.
    """
    crossings = _crossings(drawing, cut)
    ways = Counter((_name(cut, outside), entering, box) for box, outside, entering in crossings)
    stubs: dict[tuple[str, bool], Box] = {}
    arrows = []
    for (name, entering, box), count in ways.items():
        stub = stubs.setdefault((name, entering), _stub(name, len(stubs), entering=entering))
        source, target = (stub.id, box) if entering else (box, stub.id)
        tooltip = f"{counted(count, 'gradient')} {'from' if entering else 'to'} {name}"
        arrows.append(Arrow(source, target, f"×{count:,}" if count > 1 else "", tooltip, faint=True, count=count))
    above = [stub for (_, entering), stub in stubs.items() if entering]
    below = [stub for (_, entering), stub in stubs.items() if not entering]
    facts = (*drawing.facts, f"{counted(len(crossings), 'gradient')} across the border") if crossings else drawing.facts
    return replace(drawing, boxes=(*above, *drawing.boxes, *below), arrows=(*drawing.arrows, *arrows), facts=facts)


def _crossings(drawing: Drawing, cut: Cut) -> list[tuple[str, int, bool]]:
    """(box in the part, number of the autograd node beyond, whether it flows in) of each gradient across a border."""
    if drawing.level in ("fx", "aten"):
        return border_values(cut.whole, drawing)
    ends = _ends(drawing)
    crossings = (crossing for crossing in cut.crossings() if crossing.inside in ends)
    return [(ends[each.inside][not each.entering], each.outside, each.entering) for each in crossings]


def _ends(drawing: Drawing) -> dict[int, tuple[str, str]]:
    """By number of an autograd node: the box that its gradients enter, and the one that they leave."""
    known = {box.id for box in drawing.boxes}
    ends: dict[int, tuple[str, str]] = {}
    for box in drawing.boxes:
        for number in box.nodes:
            first = ends.get(number, (box.id, box.id))[0]  # in the captured graph a node may have several boxes
            ends[number] = (first, box.id)
    for number, (first, last) in ends.items():  # an in-place write to a view is drawn in three parts
        parts = (f"{first}_prologue", f"{last}_epilogue")
        ends[number] = (parts[0] if parts[0] in known else first, parts[1] if parts[1] in known else last)
    return ends


def _name(cut: Cut, outside: int) -> str:
    """What to call the node beyond: the outermost module that it does not share with the focus."""
    node = cut.whole.by_number[outside]
    path = node.module.split(".") if node.module else []
    inner = cut.focus.partition("@")[0].split(".")
    shared = 0
    while shared < min(len(path), len(inner)) and path[shared] == inner[shared]:
        shared += 1
    return ".".join(path[: shared + 1]) if len(path) > shared else f"{cut.whole.label(node)} #{node.number}"


def _stub(name: str, number: int, *, entering: bool) -> Box:
    where = "from" if entering else "to"
    return Box(f"{where}_{number}", "outside", f"{where} {name}", tooltip=f"beyond the part that is drawn: {name}")
