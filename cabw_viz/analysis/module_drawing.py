"""The drawing in which a box is a module: its autograd nodes together, or those of many modules that are built alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from cabw_viz.analysis.autograd_drawing import autograd_box
from cabw_viz.analysis.drawing import (
    Arrow,
    Box,
    BoxKind,
    Cluster,
    Drawing,
    call_title,
    counted,
    file_and_line,
    local_name,
    problem_of,
)
from cabw_viz.analysis.flow import reached, returned_leaves
from cabw_viz.analysis.folding import Structure
from cabw_viz.analysis.module_plan import Item, plan
from cabw_viz.analysis.module_tree import Part, grown, module_tree, strong_components
from cabw_viz.record.kinds import AutogradKind
from cabw_viz.record.model import AutogradNode, CaptureRecord, SourceLine

FEW = 40
"""A backward without modules is drawn by autograd nodes up to this many, and by lines of code beyond."""

NAMED_NODES = 3
"""So many kinds of nodes are named in a box of several; the tooltip has more."""

TOLD = 8
"""So many lines has a tooltip's list; of the rest the number is given."""

_WORDS: dict[AutogradKind, str] = {
    "custom_function": "custom Function",
    "cpp_function": "C++ Function",
    "copy_slices": "in-place write to a view",
    "aot_backward": "compiled region",
}
_PLURALS = {"in-place write to a view": "in-place writes to views"}


def draw_modules(
    record: CaptureRecord,
    *,
    depth: int | None = None,
    expand: Iterable[str] = (),
    base: int = 0,
    few: bool = False,
) -> Drawing:
    """Draw the modules of a backward; see `cabw_viz.analysis.module_plan.plan` for the arguments.

    Raises:
        CabwError: `depth` is below 1, or there is no module of a name in `expand`.
    """
    structure, tree = Structure(record), module_tree(record)
    root, chosen = plan(structure, tree, depth=depth, expand=expand, base=base, few=few)
    return _Sketch(record, structure, base).drawn(root, f"modules to depth {chosen}")


def has_modules(record: CaptureRecord) -> bool:
    """Whether any autograd node was made in a module that has a name."""
    return any(node.module for node in record.autograd_nodes)


def has_lines(record: CaptureRecord) -> bool:
    """Whether the lines of the forward were noted."""
    return any(node.line is not None for node in record.autograd_nodes)


def draw_lines(record: CaptureRecord) -> Drawing:
    """Draw a backward by the lines of code that ran its forward, a box for each."""
    where: dict[int, tuple[str, ...]] = {}
    for node in record.autograd_nodes:  # what has no line of its own (an accumulation) goes with what feeds it last
        if node.line is not None:
            where[node.number] = (str(node.line),)
        for edge in node.edges:
            target = record.by_number.get(edge.target)
            if target is not None and target.line is None and node.number in where:
                where[edge.target] = where[node.number]
    paths = {node.number: where.get(node.number, ()) for node in record.autograd_nodes}
    structure, tree = Structure(record), grown(record, paths, cut=False)
    root, _ = plan(structure, tree, depth=1, expand=())
    drawing = _Sketch(record, structure, lines=True).drawn(root, "lines of code")
    note = "No module made any of these nodes: a box is what one line of your code made"
    return replace(drawing, notes=(note,))


@dataclass
class _Sketch:
    """A drawing in the making."""

    record: CaptureRecord
    structure: Structure
    base: int = 0
    lines: bool = False
    boxes: list[Box] = field(default_factory=list)
    clusters: list[Cluster] = field(default_factory=list)
    at: dict[int, int] = field(default_factory=dict)
    """Place in `boxes` of the box in which each autograd node is."""
    folds: dict[str, int] = field(default_factory=dict)
    """By frame: how many modules are folded in it."""

    def drawn(self, root: Item, depth: str) -> Drawing:
        for item in root.items:
            self._item(item, None, ())
        arrows = self._arrows()
        total = len(self.record.autograd_nodes)
        edges = sum(arrow.count for arrow in arrows)
        facts = (
            f"{counted(total, 'autograd node')} in {len(self.boxes):,} {'box' if len(self.boxes) == 1 else 'boxes'}",
            depth,
            f"{counted(edges, 'gradient')} between boxes, {sum(box.inside for box in self.boxes):,} inside",
        )
        return Drawing(
            "module",
            call_title(self.record),
            facts,
            tuple(self.boxes),
            tuple(arrows),
            tuple(self.clusters),
            problem_of(self.record),
        )

    # -- frames and boxes ------------------------------------------------------------------------------------

    def _item(self, item: Item, frame: Cluster | None, around: tuple[str, ...]) -> None:
        """Draw an item in a frame, whose modules' path is `around`."""
        if not item.items:
            self._box(item, frame, around)
            return
        only = item.items[0] if len(item.items) == 1 else None
        if only is not None and (only.items or only.number is None or not item.parts[0].children):
            self._item(self._with_note(only, item), frame, around)  # a frame around one thing tells nothing
            return
        head = item.parts[0]
        name = f"cluster_m{self._first(item.parts)}_{len(head.path)}"
        parent = None if frame is None else frame.id
        opened = Cluster(name, "group", self._title(item, frame, around), None, parent, self._module_tooltip(item))
        self.clusters.append(opened)
        self.folds[name] = len(item.parts)
        for inner in item.items:
            self._item(inner, opened, head.path)

    def _with_note(self, only: Item, item: Item) -> Item:
        return replace(only, note=only.note or item.note)

    def _first(self, parts: Sequence[Part]) -> int:
        return min(part.nodes[0] for part in parts)

    def _title(self, item: Item, frame: Cluster | None, around: tuple[str, ...]) -> str:
        """Name in the frame, which part or call, and how many are folded: `layers.0 … layers.47 ×48`."""
        names = list(dict.fromkeys(".".join(part.path[len(around) :]) for part in item.parts))
        head = item.parts[0]
        text = names[0] if len(names) == 1 else f"{names[-1]} … {names[0]}"
        if self.lines:
            text = file_and_line(text)
        if head.parts > 1:
            text += f" (call {head.calls[0] + 1})" if len(head.calls) == 1 else f" ({head.part} of {head.parts})"
        return text + self._times(item, frame)

    def _times(self, item: Item, frame: Cluster | None) -> str:
        times = len(item.parts) // self._folded_in(frame)
        return f" ×{times}" if times > 1 else ""

    def _folded_in(self, frame: Cluster | None) -> int:
        return 1 if frame is None else self.folds[frame.id]

    def _box(self, item: Item, frame: Cluster | None, around: tuple[str, ...]) -> None:
        numbers = self._numbers(item)
        nodes = [self.record.by_number[number] for number in numbers]
        box = self._node_box(item, nodes, frame, around) if self._is_node(item) else None
        if box is None:
            box = self._group_box(item, nodes, frame, around)
        state = self._state(nodes)
        self.at.update(dict.fromkeys(numbers, len(self.boxes)))
        self.boxes.append(
            replace(
                box,
                cluster=None if frame is None else frame.id,
                nodes=numbers,
                times=len(item.parts),
                hooks=sum(len(node.hooks) for node in nodes),
                line=_common_line(nodes),
                state=state,
            )
        )

    def _is_node(self, item: Item) -> bool:
        return item.number is not None

    def _numbers(self, item: Item) -> tuple[int, ...]:
        if item.number is None:
            return tuple(sorted(number for part in item.parts for number in part.nodes))
        return tuple(sorted(self.structure.order(part)[item.number] for part in item.parts))

    def _state(self, nodes: Sequence[AutogradNode]) -> str:
        failure = self.record.failure
        if failure is not None and any(node.number == failure.autograd_node for node in nodes):
            return "failed"
        return "" if any(reached(self.record, node) for node in nodes) else "unreached"
