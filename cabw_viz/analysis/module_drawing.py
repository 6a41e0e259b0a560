"""The drawing in which a box is a module, or many modules that are built alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from cabw_viz.analysis.autograd_drawing import autograd_box, route
from cabw_viz.analysis.drawing import (
    Arrow,
    Box,
    BoxKind,
    Cluster,
    Drawing,
    call_title,
    file_and_line,
    local_name,
    problem_of,
)
from cabw_viz.analysis.flow import reached, returned_leaves
from cabw_viz.analysis.folding import Structure
from cabw_viz.analysis.module_plan import Item, plan
from cabw_viz.analysis.module_tree import Group, ModuleTree, Path, module_paths, module_tree, strong_components
from cabw_viz.record.kinds import AutogradKind
from cabw_viz.record.model import AutogradNode, CaptureRecord, Leaf
from cabw_viz.record.source_line import SourceLine
from cabw_viz.record.wording import counted

FEW = 40
"""A backward without modules is drawn by autograd nodes up to this many, and by lines of code beyond."""

NAMED_NODES = 3
"""So many kinds of nodes are named in a box of several; the tooltip has more."""

TOLD = 8
"""So many lines has a tooltip's list; of the rest the number is given."""

_WORDS: dict[AutogradKind, tuple[str, ...]] = {
    "custom_function": ("custom Function",),
    "cpp_function": ("C++ Function",),
    "copy_slices": ("in-place write to a view", "in-place writes to views"),
    "aot_backward": ("compiled region",),
}


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
    structure = Structure(module_tree(record))
    root, chosen = plan(structure, depth=depth, expand=expand, base=base, few=few)
    depth_text = "one by one" if chosen is None else f"modules to depth {chosen}"
    return ModuleDrawing(record, structure).draw(root, depth_text)


def readable_depth(record: CaptureRecord) -> tuple[int, int]:
    """The depth that is drawn unless another is asked for, and how many boxes that makes."""
    root, chosen = plan(Structure(module_tree(record)), depth=None, expand=())
    return chosen or 1, sum(1 for _ in root.boxes())


def has_modules(record: CaptureRecord) -> bool:
    """Whether any autograd node was made in a module that has a name."""
    return any(module_paths(record).values())


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
    structure = Structure(ModuleTree(record, paths, cut=False))
    root, _ = plan(structure, depth=1, expand=())
    drawing = ModuleDrawing(record, structure, lines=True).draw(root, "lines of code")
    note = "No module made any of these nodes: a box is what one line of your code made"
    return replace(drawing, notes=(note,))


@dataclass
class ModuleDrawing:
    """A drawing in the making."""

    record: CaptureRecord
    structure: Structure
    lines: bool = False
    """Whether it is drawn by lines of code, which stand in the place of the modules."""
    boxes: list[Box] = field(default_factory=list)
    clusters: dict[str, Cluster] = field(default_factory=dict)
    times: dict[str | None, int] = field(default_factory=lambda: {None: 1})
    """By frame: how many modules are folded in it."""
    returned: dict[int, list[Leaf]] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    """Place in `boxes` of the box in which each autograd node is."""

    def draw(self, root: Item, depth: str) -> Drawing:
        """Draw all items, and the gradients between their boxes; `depth` says in words how deep that is."""
        self.returned = returned_leaves(self.record)
        for item in root.items:
            self._item(item, None, ())
        arrows = self._arrows()
        boxes = counted(len(self.boxes), "box", "boxes")
        between, inside = sum(arrow.count for arrow in arrows), sum(box.inside for box in self.boxes)
        facts = (
            f"{counted(len(self.record.autograd_nodes), 'autograd node')} in {boxes}, {depth}",
            f"{counted(between, 'gradient')} between boxes, {inside:,} inside",
        )
        clusters = tuple(self.clusters.values())
        title, problem = call_title(self.record), problem_of(self.record)
        return Drawing("module", title, facts, tuple(self.boxes), tuple(arrows), clusters, problem)

    # -- frames ----------------------------------------------------------------------------------------------

    def _item(self, item: Item, frame: str | None, around: Path, module: Item | None = None) -> None:
        """Draw an item in a frame that is around the modules below a path; `module` if it has none of its own."""
        if not item.items:
            self._box(item, frame, around, module)
        elif len(item.items) == 1:  # a frame around one thing tells nothing
            only = item.items[0]
            self._item(replace(only, note=only.note or item.note), frame, around, item)
        else:
            head = item.groups[0]
            name = f"cluster_m{min(group.nodes[0] for group in item.groups)}_{len(head.path)}"
            details = [*self._note(item), *self.structure.differences(item.groups)]
            tooltip = "; ".join([*self._names(item), *details])
            title = self._title(item, frame, around)
            self.clusters[name] = Cluster(name, "group", title, None, frame, tuple(details), tooltip)
            self.times[name] = len(item.groups)
            for inner in item.items:
                self._item(inner, name, head.path)

    def _title(self, item: Item, frame: str | None, around: Path) -> str:
        """Name below the frame's, which call of it, and how many are folded: `layers.0 … layers.47 ×48`."""
        head = item.groups[0]
        names = list(dict.fromkeys(".".join(group.path[len(around) :]) for group in item.groups))
        above = {group.path[len(around) - 1] for group in item.groups} if around else set[str]()
        if len(above) == 1 and names[0].partition(".")[0].isdecimal():  # a number alone tells nothing
            names = [f"{around[-1]}.{name}" for name in names]
        text = names[0] if len(names) == 1 else f"{names[-1]} … {names[0]}"
        if self.lines:
            text = file_and_line(text)
        if head.parts > 1 and not head.own:
            text += f" (call {head.calls[0] + 1})" if len(head.calls) == 1 else f" ({head.part} of {head.parts})"
        return text + self._times(item, frame)

    def _note(self, item: Item) -> list[str]:
        return [item.note] if item.note else []

    def _times(self, item: Item, frame: str | None) -> str:
        times = len(item.groups) // self.times[frame]
        return f" ×{times:,}" if times > 1 else ""

    def _names(self, item: Item) -> list[str]:
        """The modules' whole names, and their class."""
        names = list(dict.fromkeys(group.name for group in item.groups if group.name))[::-1]
        text = ", ".join([*names[:TOLD], *([f"and {len(names) - TOLD:,} more"] if len(names) > TOLD else [])])
        return [part for part in (text, item.groups[0].cls) if part]

    # -- boxes -----------------------------------------------------------------------------------------------

    def _box(self, item: Item, frame: str | None, around: Path, module: Item | None) -> None:
        numbers = self._numbers(item)
        nodes = [self.record.by_number[number] for number in numbers]
        draw = self._group_box if item.number is None else self._node_box
        box = draw(item, nodes, frame, around)
        if module is not None and item.number is not None:
            box = replace(box, details=(self._title(module, frame, around), *box.details))
        box = replace(box, details=(*box.details, *self._note(item)))
        self.at.update(dict.fromkeys(numbers, len(self.boxes)))
        box = replace(box, cluster=frame, nodes=numbers, times=len(item.groups), line=_line(nodes))
        self.boxes.append(replace(box, hooks=sum(len(node.hooks) for node in nodes), state=self._state(nodes)))

    def _numbers(self, item: Item) -> tuple[int, ...]:
        if item.number is None:
            return tuple(sorted(number for group in item.groups for number in group.nodes))
        return tuple(sorted(self.structure.order(group)[item.number] for group in item.groups))

    def _node_box(self, item: Item, nodes: Sequence[AutogradNode], frame: str | None, around: Path) -> Box:
        """The box of a single autograd node, or of one in each of several folded modules."""
        box = autograd_box(self.record, nodes[0], self.returned.get(nodes[0].number, []))
        if len(nodes) == 1:  # the frame says already of which module a parameter is
            below = ".".join((*around, ""))
            return (
                box if nodes[0].leaf is None or "=" in box.title else replace(box, title=box.title.removeprefix(below))
            )
        title = (box.title if nodes[0].leaf is None else self._parameter(item, nodes)) + self._times(item, frame)
        tooltip = f"{nodes[0].name} {_numbered(nodes)}; {'; '.join(self._names(item))}"
        return replace(box, id=f"m{nodes[0].number}", title=title, number=None, tooltip=tooltip)

    def _parameter(self, item: Item, nodes: Sequence[AutogradNode]) -> str:
        """What the leaves of folded modules are called in all of them: `weight`."""
        names = {self.record.leaves[node.leaf].names[0].rpartition(".")[2] for node in nodes if node.leaf is not None}
        return names.pop() if len(names) == 1 else counted(len(item.groups), "leaf", "leaves")

    def _group_box(self, item: Item, nodes: Sequence[AutogradNode], frame: str | None, around: Path) -> Box:
        """The box of a module, or of what was made in a module outside of the modules inside it."""
        head, each = item.groups[0], len(nodes) // len(item.groups)
        amount = counted(each, "node") + (" each" if self._times(item, frame) else "")
        if head.own:
            title, kind, first = _stems(nodes) + self._times(item, frame), _commonest(nodes), amount
        else:
            title, kind = self._title(item, frame, around), "line" if self.lines else "group"
            first = " · ".join([*([head.cls] if head.cls else []), amount])
        details = [first] if not self.lines or head.own else [_source(nodes), first]
        if head.parts == 1 and len(head.calls) > 1 and not head.own:
            details.append(counted(len(head.calls), "call"))
        details += self._special(nodes, head) + self.structure.differences(item.groups)
        return Box(f"m{nodes[0].number}", kind, title, tuple(details), tooltip=self._tooltip(item, nodes))

    def _special(self, nodes: Sequence[AutogradNode], head: Group) -> list[str]:
        """Lines on what a reader would want to know is in a box."""
        kinds = Counter(node.kind for node in nodes)
        counts = [(_WORDS[kind], count) for kind, count in kinds.items() if kind in _WORDS and not head.own]
        lines = [counted(count, *words) for words, count in counts]
        leaves = sum(len(self.returned.get(node.number, ())) for node in nodes)
        lines += [counted(leaves, "gradient") + " returned"] if leaves else []
        failure = self.record.failure
        if failure is not None and any(node.number == failure.autograd_node for node in nodes):
            lines.append(f"stopped here: {failure.type} at {failure.name} #{failure.autograd_node}")
        return lines

    def _tooltip(self, item: Item, nodes: Sequence[AutogradNode]) -> str:
        """What is in a box: its modules, its nodes by name, its hooks, and what differs between folded blocks."""
        parameters = sum(node.leaf is not None for node in nodes)
        names = Counter(node.name for node in nodes if node.leaf is None).most_common()
        parts = [*self._names(item), f"{counted(len(nodes), 'autograd node')}, {_numbered(nodes)}"]
        parts += [counted(parameters, "parameter")] if parameters else []
        parts += [", ".join(f"{count} {name}" for name, count in names[:TOLD]) + (", …" if len(names) > TOLD else "")]
        hooks = Counter(f"{hook.kind} {local_name(hook.name)}" for node in nodes for hook in node.hooks)
        parts += [f"{count} × {hook}" for hook, count in list(hooks.items())[:TOLD]]
        return "; ".join([*parts, *self.structure.differences(item.groups), *self._note(item)])

    def _state(self, nodes: Sequence[AutogradNode]) -> Literal["", "failed", "unreached"]:
        failure = self.record.failure
        if failure is not None and any(node.number == failure.autograd_node for node in nodes):
            return "failed"
        return "" if any(reached(self.record, node) for node in nodes) else "unreached"

    # -- arrows ----------------------------------------------------------------------------------------------

    def _arrows(self) -> list[Arrow]:
        """An arrow from box to box for all gradients that go this way; those that stay in a box are counted in it."""
        ways: dict[tuple[int, int], list[str]] = defaultdict(list)
        inside = Counter[int]()
        for node in self.record.autograd_nodes:
            for edge in node.edges:
                target = self.record.by_number.get(edge.target)
                if target is None:
                    continue
                way = self.at[node.number], self.at[edge.target]
                if way[0] == way[1]:
                    inside[way[0]] += 1
                else:
                    ways[way].append(route(self.record, node, edge.output, target, edge.input))
        self.boxes = [replace(box, inside=inside[place]) for place, box in enumerate(self.boxes)]
        circles = _circles_of(ways)
        return [self._arrow(*way, routes, back=way[1] < way[0] and way in circles) for way, routes in ways.items()]

    def _arrow(self, source: int, target: int, routes: list[str], *, back: bool) -> Arrow:
        one, other = self.boxes[source], self.boxes[target]
        times, alike = len(routes), self.times[self._shared_frame(one, other)]
        label = times // alike if times % alike == 0 else times
        more = ["…"] if times > TOLD else []
        tooltip = [counted(times, "gradient"), *routes[:TOLD], *more] if times > 1 else routes
        text = f"×{label:,}" if label > 1 else ""
        if back and alike > 1:
            text = f"to the next {text}"
        return Arrow(one.id, other.id, text, "; ".join(tooltip), count=times, back=back)

    def _shared_frame(self, one: Box, other: Box) -> str | None:
        """The innermost frame around both."""
        outer = self._frames(other)
        return next((frame for frame in self._frames(one) if frame in outer), None)

    def _frames(self, box: Box) -> list[str | None]:
        frames, frame = list[str | None](), box.cluster
        while frame is not None:
            frames.append(frame)
            frame = self.clusters[frame].parent
        return frames


def _circles_of(ways: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of the ways that lie on a circle."""
    ways = list(ways)
    after: dict[int, list[int]] = defaultdict(list)
    for source, target in ways:
        after[source].append(target)
        after[target]  # every box has its entry
    component = {place: number for number, places in enumerate(strong_components(after)) for place in places}
    return {way for way in ways if component[way[0]] == component[way[1]]}


def _numbered(nodes: Sequence[AutogradNode]) -> str:
    numbers = " ".join(f"#{node.number}" for node in nodes[:TOLD])
    return numbers + (" …" if len(nodes) > TOLD else "")


def _stems(nodes: Sequence[AutogradNode]) -> str:
    """The names of several nodes, in the order in which they run: `NllLoss · LogSoftmax · View`."""
    names = [node.name for node in nodes if node.leaf is None] or [node.name for node in nodes]
    stems = list(dict.fromkeys(name.removesuffix("Backward0") or name for name in names))
    return " · ".join([*stems[:NAMED_NODES], *(["…"] if len(stems) > NAMED_NODES else [])])


def _commonest(nodes: Sequence[AutogradNode]) -> BoxKind:
    kinds = Counter(node.kind for node in nodes if node.leaf is None) or Counter(node.kind for node in nodes)
    return kinds.most_common(1)[0][0]


def _line(nodes: Sequence[AutogradNode]) -> SourceLine | None:
    """The line that made most of the nodes."""
    lines = Counter(node.line for node in nodes if node.line is not None)
    return lines.most_common(1)[0][0] if lines else None


def _source(nodes: Sequence[AutogradNode]) -> str:
    line = _line(nodes)
    return "" if line is None else line.text
