"""The tree of modules over the autograd nodes of a record.

A group is drawn as one box, so no gradient should leave a group and come back to it. Where that happens (a module
called twice with others between, two lists of modules called in turn) the group is cut into the parts that run one
after the other, in the order of the backward. A module that would fall into many parts, such as a cell of an unrolled
loop, stays whole, and so does a list of modules that are called in turn: a circle of two boxes says more than a chain
of sixty.

Accumulations take no part in this: nothing comes after them, and the engine runs them whenever it likes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from cabw_viz.record.model import CaptureRecord

MAX_PARTS = 4
"""A module that would be cut into more parts is left whole."""

MAX_DEPTH = 64
"""Segments of a path that count: nobody nests deeper, but a generated model may, and frames in frames cost time."""

Path = tuple[str, ...]

V = TypeVar("V", bound=Hashable)


@dataclass(eq=False)
class Part:
    """A module or one of its parts, or some of the nodes that were made in the module itself."""

    path: Path
    """Of the module: `("layers", "3", "mlp")`; empty for the subject, and for what was made outside of any."""
    cls: str = ""
    nodes: list[int] = field(default_factory=list)
    """Numbers of all autograd nodes in it, ascending."""
    own: str = ""
    """For nodes that were made in the module itself: `own`; `outside` for those of no module; `root` for GraphRoot."""
    part: int = 1
    parts: int = 1
    """Which of how many parts of its module, in the order of the backward."""
    calls: tuple[int, ...] = ()
    """The calls of the module that it goes back through, from 0, ascending; empty where that is not known."""
    children: list[Part] = field(default_factory=list)
    """In the order of the backward; empty for `own` nodes and for a module without modules inside."""

    @property
    def name(self) -> str:
        """The module's path as people write it."""
        return ".".join(self.path)

    @property
    def key(self) -> str:
        """The name with the part: `mlp@2`."""
        return f"{self.name}@{self.part}" if self.part > 1 else self.name


def paths_of(record: CaptureRecord) -> dict[int, Path]:
    """The path of each node's module, by the node's number."""
    return {
        node.number: tuple(node.module.split(".")[:MAX_DEPTH]) if node.module else () for node in record.autograd_nodes
    }


def module_tree(record: CaptureRecord) -> Part:
    """The tree of modules; its root is the subject, with everything in it."""
    return grown(record, paths_of(record), cut=True)


def grown(record: CaptureRecord, paths: Mapping[int, Path], *, cut: bool) -> Part:
    """A tree over the nodes of a record.

    Args:
        record: The capture.
        paths: The place of each node in the tree.
        cut: Cut groups that are left and entered again; otherwise all of them stay whole.
    """
    root = Part((), nodes=sorted(paths))
    grower = _Grower(record, paths, cut=cut)
    todo = [root]
    while todo:
        part = todo.pop()
        part.children = grower.children(part)
        todo += [child for child in part.children if not child.own]
    _tell_calls(record, root)
    return root


class _Grower:
    def __init__(self, record: CaptureRecord, paths: Mapping[int, Path], *, cut: bool) -> None:
        self.record, self.paths, self.cut = record, paths, cut
        self.below = {
            node.number: [edge.target for edge in node.edges if edge.target in record.by_number]
            for node in record.autograd_nodes
        }
        self.above: dict[int, list[int]] = defaultdict(list)
        for number, targets in self.below.items():
            for target in targets:
                self.above[target].append(number)
        self.runs = {node.number: node.kind != "accumulate_grad" for node in record.autograd_nodes}
        """Whether a node runs when its turn comes."""
        self.classes = _classes(record)

    def children(self, part: Part) -> list[Part]:
        """What a part is made of; nothing for a module without modules inside."""
        buckets: dict[str, list[int]] = defaultdict(list)  # "." before the segment of a child, or a word for own nodes
        of: dict[int, str] = {}
        for number in part.nodes:
            of[number] = self._bucket(number, len(part.path))
            buckets[of[number]].append(number)
        if part.path and all(bucket == "own" for bucket in buckets):
            return []
        runs = self._runs(part, of)
        children = []
        for bucket, members in buckets.items():
            pieces = self._with_leaves(members, runs.get(bucket, []), of)
            for place, piece in enumerate(pieces, 1):
                children.append(self._child(part, bucket, piece, place, len(pieces)))
        return sorted(children, key=self._first)

    def _bucket(self, number: int, depth: int) -> str:
        path = self.paths[number]
        if len(path) > depth:
            return f".{path[depth]}"
        node = self.record.by_number[number]
        if node.kind == "graph_root":
            return "root"
        return "own" if path or node.module_class or node.kind == "accumulate_grad" else "outside"

    def _child(self, part: Part, bucket: str, nodes: list[int], place: int, places: int) -> Part:
        if not bucket.startswith("."):
            return Part(part.path, part.cls or self.classes.get(part.path, ""), nodes, bucket, place, places)
        path = (*part.path, bucket[1:])
        return Part(path, self.classes.get(path, ""), nodes, "", place, places)

    def _first(self, part: Part) -> tuple[bool, int]:
        """Sorts parts in the order in which they run, those that only accumulate last."""
        running = next((number for number in part.nodes if self.runs[number]), None)
        return running is None, part.nodes[0] if running is None else running

    # -- cutting ---------------------------------------------------------------------------------------------

    def _runs(self, part: Part, of: dict[int, str]) -> dict[str, list[list[int]]]:
        """The nodes of each bucket but accumulations, in the stretches in which they run undisturbed."""
        running = [number for number in part.nodes if self.runs[number]]
        inside = [(a, b) for a in running for b in self.below[a] if b in of and self.runs[b]]
        alone = {number: of[number] if of[number].startswith(".") else f"#{number}" for number in running}
        circles = _circles((alone[a], alone[b]) for a, b in inside)
        joined = _circles((of[a], of[b]) for a, b in inside)  # own nodes are drawn together as long as that is possible
        modules = _stretches(running, of, {number: circles.get(alone[number]) for number in running})
        whole = {bucket for bucket, runs in modules.items() if bucket.startswith(".") and not self._cuts(runs)}
        runs = {bucket: _together(runs) if bucket in whole else runs for bucket, runs in modules.items()}
        others = [number for number in running if of[number] not in whole]
        for bucket, found in _stretches(others, of, {number: joined.get(of[number]) for number in others}).items():
            if not bucket.startswith("."):
                runs[bucket] = found if self.cut else _together(found)
        return runs

    def _cuts(self, runs: list[list[int]]) -> bool:
        """Whether a module is cut in these parts: a list of modules, each called in turn, is one thing all the same."""
        if len(runs) == 1:
            return True
        if not self.cut or len(runs) > MAX_PARTS:
            return False
        seen = [{self.paths[number] for number in run} for run in runs]
        return len(set[Path]().union(*seen)) < sum(map(len, seen))

    def _with_leaves(self, members: list[int], runs: list[list[int]], of: dict[int, str]) -> list[list[int]]:
        """The runs of a bucket with the accumulations, each in the last run that feeds it."""
        pieces = [list(run) for run in runs]
        place = {number: index for index, run in enumerate(runs) for number in run}
        left = []
        for number in members:
            if self.runs[number]:
                continue
            feeders = [place[source] for source in self.above[number] if source in place]
            if feeders:
                pieces[max(feeders)].append(number)
            elif pieces and of[number].startswith("."):
                pieces[-1].append(number)  # a tied parameter: another module makes its gradient
            else:
                left.append(number)
        return [sorted(piece) for piece in [*pieces, left] if piece]


def _classes(record: CaptureRecord) -> dict[Path, str]:
    """The class of each module, as far as a node was made in it directly."""
    found: dict[Path, str] = {}
    for node in record.autograd_nodes:
        if node.module_class:
            found.setdefault(tuple(node.module.split(".")) if node.module else (), node.module_class)
    return found


def _stretches(
    running: list[int], of: Mapping[int, str], circles: Mapping[int, int | None]
) -> dict[str, list[list[int]]]:
    """The nodes of each bucket, a new list wherever another member of the same circle ran in between."""
    found: dict[str, list[list[int]]] = defaultdict(list)
    before = dict[int, str]()
    for number in running:
        circle, stretches = circles[number], found[of[number]]
        if not stretches or (circle is not None and before.get(circle) != of[number]):
            stretches.append([])
        stretches[-1].append(number)
        if circle is not None:
            before[circle] = of[number]
    return found


def _together(stretches: list[list[int]]) -> list[list[int]]:
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


def _tell_calls(record: CaptureRecord, root: Part) -> None:
    """Note in each part which calls of its module it goes back through."""
    order = [root]
    for part in order:
        order += part.children
    for part in reversed(order):  # innermost first
        if part.own in {"root", "outside"} or not part.path:
            continue
        nodes = [record.by_number[number] for number in part.nodes]
        direct = {n.visit for n in nodes if n.kind != "accumulate_grad" and n.module == part.name}
        # Without a node of its own it was called at most as often as any module inside.
        inside = min((child.calls for child in part.children if child.calls), key=len, default=())
        part.calls = tuple(sorted(direct)) or inside
