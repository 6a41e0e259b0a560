"""The tree of modules over the autograd nodes of a record: the boxes of `cap.graph()`, and the inspector's groups.

A group is drawn as one box, so no gradient should leave a group and come back to it. Where that happens (a module
called twice with others between, two lists of modules called in turn) the group is cut into the parts that run one
after the other, in the order of the backward: `mlp`, `mlp@2`. Two kinds of modules stay whole: one that would fall
into more than `MAX_PARTS` parts, such as the cell of an unrolled loop, and a list whose modules are called in turn
with those of another. Two boxes with arrows both ways say more than a chain of sixty.

An accumulation belongs to the group of its parameter's module and never cuts one: no gradient leaves it, and the
engine runs it whenever it likes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from cabw_viz.record.model import CaptureRecord

MAX_PARTS = 4
"""A module that would be cut into more parts is left whole."""

MAX_DEPTH = 64
"""Segments of a path that count: no model nests deeper, but a generated name may, and frames in frames cost time."""

Path = tuple[str, ...]

V = TypeVar("V", bound=Hashable)


@dataclass(eq=False)
class Group:
    """A module or one of its parts, or some of the nodes that were made in the module itself."""

    tree: ModuleTree = field(repr=False)
    path: Path
    """Of the module: `("layers", "3", "mlp")`; empty for the subject, and for what was made outside of any."""
    key: str
    """The path with the parts, `layers.3.mlp@2`: no two modules or parts of modules have the same."""
    cls: str
    nodes: list[int]
    """Numbers of all autograd nodes in it, ascending."""
    parent: Group | None = field(default=None, repr=False)
    """The group around it; None for the root."""
    own: str = ""
    """For nodes that were made in the module itself: `own`; `outside` for those of no module; `root` for GraphRoot."""
    suffix: int = 1
    """The number after the `@` of its key; 1 for none."""
    part: int = 1
    parts: int = 1
    """Which of how many parts of its module, in the order of the backward."""
    modules: list[Group] = field(default_factory=list, repr=False)
    """The modules inside, or their parts, in the order of the backward."""

    @property
    def name(self) -> str:
        """The module's path as people write it."""
        return ".".join(self.path)

    @cached_property
    def children(self) -> list[Group]:
        """All that it is made of, in the order of the backward; empty for a module without modules inside."""
        return [] if self.own else self.tree.children_of(self)

    @cached_property
    def calls(self) -> tuple[int, ...]:
        """The calls of the module that it goes back through, from 0, ascending; empty where that is not known."""
        if self.own in {"root", "outside"} or not self.path:
            return ()
        nodes = [self.tree.record.by_number[number] for number in self.nodes]
        direct = {n.visit for n in nodes if n.kind != "accumulate_grad" and n.module == self.name}
        # Without a node of its own it was called at most as often as any module inside.
        inside = min((module.calls for module in self.modules if module.calls), key=len, default=())
        return tuple(sorted(direct)) or inside


class ModuleTree:
    """The groups of a record. Those of modules are made at once, those of a module's own nodes when they are drawn."""

    def __init__(self, record: CaptureRecord, paths: Mapping[int, Path] | None = None, *, cut: bool = True) -> None:
        """Build the tree.

        Args:
            record: The capture.
            paths: The place of each node in the tree, by the node's number; None for that of its module.
            cut: Cut groups that are left and entered again; otherwise all of them stay whole.
        """
        self.record, self.cut = record, cut
        self.paths = module_paths(record) if paths is None else paths
        self.accumulations = {node.number for node in record.autograd_nodes if node.kind == "accumulate_grad"}
        """The nodes that do not run when their turn comes."""
        self._classes = _classes(record)
        self.root = Group(self, (), "", self._classes.get((), ""), sorted(self.paths))
        self.groups = [self.root]
        """The root, modules and parts of modules; each after the one around it."""
        self._keys = {""}
        for group in self.groups:  # grows on the way
            group.modules = self._modules_of(group)
            self.groups += group.modules

    @cached_property
    def sources(self) -> dict[int, list[tuple[int, int]]]:
        """By number of a node: number and output of the nodes whose gradients enter it."""
        sources: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for node in self.record.autograd_nodes:
            for edge in node.edges:
                sources[edge.target].append((node.number, edge.output))
        return sources

    def named(self, name: str) -> list[Group]:
        """The groups that a path or a key names, outermost first; all parts of a module for its path."""
        return [group for group in self.groups[1:] if name in (group.key, group.name)]

    # -- groups ----------------------------------------------------------------------------------------------

    def _modules_of(self, group: Group) -> list[Group]:
        """The modules in a group, cut into parts where a gradient leaves them and comes back."""
        depth, paths, accumulations = len(group.path), self.paths, self.accumulations
        modules: dict[str, list[int]] = {}
        before: str | None = None
        scattered = False
        for number in group.nodes:
            path = paths[number]
            segment = path[depth] if len(path) > depth else None
            if segment is not None:
                if segment not in modules:
                    modules[segment] = []
                elif segment != before and number not in accumulations:
                    scattered = True
                modules[segment].append(number)
            if segment != before and number not in accumulations:
                before = segment
        if scattered and self.cut:  # else each module runs in one stretch, which no gradient leaves and enters again
            pieces = {bucket[1:]: each for bucket, each in self._pieces(group).items() if bucket.startswith(".")}
        else:
            pieces = {segment: [nodes] for segment, nodes in modules.items()}
        groups = [
            self._module(group, segment, nodes, part, len(parts))
            for segment, parts in pieces.items()
            for part, nodes in enumerate(parts, 1)
        ]
        return sorted(groups, key=self._first) if len(groups) > 1 else groups

    def _module(self, parent: Group, segment: str, nodes: list[int], part: int, parts: int) -> Group:
        path, suffix = (*parent.path, segment), part
        whole = f"{parent.key}.{segment}" if parent.path else segment
        key = whole if suffix == 1 else f"{whole}@{suffix}"
        while key in self._keys:  # a module may itself be called `mlp@2`
            suffix += 1
            key = f"{whole}@{suffix}"
        self._keys.add(key)
        return Group(self, path, key, self._classes.get(path, ""), nodes, parent, "", suffix, part, parts)

    def children_of(self, group: Group) -> list[Group]:
        """The modules in a group and what was made in the group's module itself, in the order of the backward."""
        pieces = self._pieces(group)
        if group.path and set(pieces) <= {"own"}:
            return []
        cls = group.cls or self._classes.get(group.path, "")
        own = [
            Group(self, group.path, group.key, cls, nodes, group, bucket, 1, part, len(parts))
            for bucket, parts in pieces.items()
            if not bucket.startswith(".")
            for part, nodes in enumerate(parts, 1)
        ]
        return sorted([*group.modules, *own], key=self._first)

    def _first(self, group: Group) -> tuple[bool, int]:
        """Sorts groups in the order in which they run, those that only accumulate last."""
        running = next((number for number in group.nodes if number not in self.accumulations), None)
        return running is None, group.nodes[0] if running is None else running

    # -- cutting ---------------------------------------------------------------------------------------------

    def _pieces(self, group: Group) -> dict[str, list[list[int]]]:
        """The nodes of each module in a group, as `.name`, and of the group itself, each cut into its parts."""
        members: dict[str, list[int]] = defaultdict(list)
        bucket_of: dict[int, str] = {}
        for number in group.nodes:
            bucket_of[number] = self._bucket(number, len(group.path))
            members[bucket_of[number]].append(number)
        runs = self._runs(group, bucket_of)
        return {
            bucket: self._with_accumulations(numbers, runs.get(bucket, []), in_module=bucket.startswith("."))
            for bucket, numbers in members.items()
        }

    def _bucket(self, number: int, depth: int) -> str:
        path = self.paths[number]
        if len(path) > depth:
            return f".{path[depth]}"
        node = self.record.by_number[number]
        if node.kind == "graph_root":
            return "root"
        return "own" if path or node.module_class or node.kind == "accumulate_grad" else "outside"

    def _runs(self, group: Group, bucket_of: Mapping[int, str]) -> dict[str, list[list[int]]]:
        """The nodes of each bucket but accumulations, in the stretches in which they run undisturbed."""
        running = [number for number in group.nodes if number not in self.accumulations]
        inside = [
            (number, edge.target)
            for number in running
            for edge in self.record.by_number[number].edges
            if edge.target in bucket_of and edge.target not in self.accumulations
        ]
        single = {number: bucket if bucket.startswith(".") else f"#{number}" for number, bucket in bucket_of.items()}
        circles = _circles((single[a], single[b]) for a, b in inside)
        # The group's own nodes are drawn together as long as that is possible.
        own_circles = _circles((bucket_of[a], bucket_of[b]) for a, b in inside)
        modules = _stretches(running, bucket_of, {number: circles.get(single[number]) for number in running})
        whole = {bucket for bucket, runs in modules.items() if bucket.startswith(".") and not self._is_cut(runs)}
        runs = {bucket: _joined(runs) if bucket in whole else runs for bucket, runs in modules.items()}
        others = [number for number in running if bucket_of[number] not in whole]
        circle_of = {number: own_circles.get(bucket_of[number]) for number in others}
        for bucket, own_runs in _stretches(others, bucket_of, circle_of).items():
            if not bucket.startswith("."):
                runs[bucket] = own_runs if self.cut else _joined(own_runs)
        return runs

    def _is_cut(self, runs: list[list[int]]) -> bool:
        """Whether a module is cut in these parts: a list of modules, each called in turn, is one thing all the same."""
        if len(runs) == 1:
            return True
        if not self.cut or len(runs) > MAX_PARTS:
            return False
        paths = [{self.paths[number] for number in run} for run in runs]
        return len(set[Path]().union(*paths)) < sum(map(len, paths))

    def _with_accumulations(self, members: list[int], runs: list[list[int]], *, in_module: bool) -> list[list[int]]:
        """The runs of a bucket with its accumulations, each in the last run that feeds it."""
        pieces = [list(run) for run in runs]
        run_of = {number: index for index, run in enumerate(runs) for number in run}
        rest = []
        for number in members:
            if number not in self.accumulations:
                continue
            feeders = [run_of[source] for source, _ in self.sources[number] if source in run_of]
            if feeders:
                pieces[max(feeders)].append(number)
            elif pieces and in_module:
                pieces[-1].append(number)  # a tied parameter: another module makes its gradient
            else:
                rest.append(number)
        return [sorted(piece) for piece in [*pieces, rest] if piece]


def module_tree(record: CaptureRecord) -> ModuleTree:
    """The tree of modules; its root is the subject, with everything in it."""
    return ModuleTree(record)


def module_paths(record: CaptureRecord) -> dict[int, Path]:
    """The path of each node's module, by the node's number.

    An accumulation has its parameter's module. Where none was recorded for it, that is the innermost module around the
    parameter, by the parameter's name, in which a node was made.
    """
    split = {module: _path(module) for module in {node.module for node in record.autograd_nodes}}
    paths = {node.number: split[node.module] for node in record.autograd_nodes}
    nameless = [n for n in record.autograd_nodes if n.leaf is not None and not n.module and not n.module_class]
    if nameless:
        made = {split[node.module] for node in record.autograd_nodes if node.leaf is None}
        known = {path[:end] for path in made for end in range(1, len(path) + 1)}
        for node in nameless:
            owner = _path(record.leaves[node.leaf or 0].names[0].rpartition(".")[0])
            paths[node.number] = next((owner[:n] for n in range(len(owner), 0, -1) if owner[:n] in known), ())
    return paths


def _path(module: str) -> Path:
    return tuple(module.split(".")[:MAX_DEPTH]) if module else ()


def _classes(record: CaptureRecord) -> dict[Path, str]:
    """The class of each module, as far as a node was made in it directly."""
    classes = {(node.module, node.module_class): None for node in record.autograd_nodes if node.module_class}
    by_path: dict[Path, str] = {}
    for module, cls in classes:
        by_path.setdefault(tuple(module.split(".")) if module else (), cls)
    return by_path


def _stretches(
    running: list[int], bucket_of: Mapping[int, str], circles: Mapping[int, int | None]
) -> dict[str, list[list[int]]]:
    """The nodes of each bucket, a new list wherever another member of the same circle ran in between."""
    stretches: dict[str, list[list[int]]] = defaultdict(list)
    before = dict[int, str]()
    for number in running:
        circle, own = circles[number], stretches[bucket_of[number]]
        if not own or (circle is not None and before.get(circle) != bucket_of[number]):
            own.append([])
        own[-1].append(number)
        if circle is not None:
            before[circle] = bucket_of[number]
    return stretches


def _joined(stretches: list[list[int]]) -> list[list[int]]:
    return [[number for stretch in stretches for number in stretch]]


def _circles(edges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Which vertices lie on a circle, each with the number of the circles that hang together with it."""
    after: dict[str, dict[str, None]] = defaultdict(dict)
    for a, b in edges:
        if a != b:
            after[a][b] = None
            after[b]  # every vertex has its entry
    return {
        vertex: number
        for number, component in enumerate(strong_components(after))
        if len(component) > 1
        for vertex in component
    }


def strong_components(after: Mapping[V, Iterable[V]]) -> Iterator[list[V]]:
    """The strongly connected components of a graph, after Tarjan, without recursion."""
    index, low, on = dict[V, int](), dict[V, int](), set[V]()
    stack: list[V] = []
    for start in after:
        if start in index:
            continue
        calls = [(start, iter(after[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on.add(start)
        while calls:
            vertex, ways = calls[-1]
            for other in ways:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on.add(other)
                    calls.append((other, iter(after[other])))
                    break
                if other in on:
                    low[vertex] = min(low[vertex], index[other])
            else:
                calls.pop()
                if calls:
                    low[calls[-1][0]] = min(low[calls[-1][0]], low[vertex])
                if low[vertex] == index[vertex]:
                    component = list[V]()
                    while not component or component[-1] != vertex:
                        component.append(stack.pop())
                        on.discard(component[-1])
                    yield component
