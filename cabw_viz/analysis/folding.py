"""Which modules next to each other are built alike, and may be drawn as one.

Alike is what has the same autograd nodes in the same order, from the same modules inside, with the same edges between
them and the same number of edges out. What flows in is a neighbour's business: the last block of a model gets one
gradient where the others get two. Shapes, dtypes, hooks and the like may differ; `differences` tells them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

from cabw_viz.analysis.drawing import counted
from cabw_viz.analysis.module_tree import Part
from cabw_viz.analysis.touches import marks
from cabw_viz.record.model import AutogradNode, CaptureRecord

MIN_NAMED = 3
"""So many of `block1`, `block2`, … fold; `norm1` and `norm2` are two things. Of `0`, `1` in a list two are enough."""

_NUMBERED = re.compile(r"(.*?)\d+")

_NAMED = 3
"""So many blocks are named where something differs, of the others the number is given."""


class Structure:
    """How the parts of one record's module tree are built; every answer is kept."""

    def __init__(self, record: CaptureRecord) -> None:
        self.record = record
        self._above: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for node in record.autograd_nodes:
            for edge in node.edges:
                self._above[edge.target].append((node.number, edge.output))
        self._touched = marks(record)
        self._orders: dict[Part, tuple[int, ...]] = {}
        self._signatures: dict[Part, Hashable] = {}
        self._differences: dict[tuple[Part, ...], list[str]] = {}

    # -- structure -------------------------------------------------------------------------------------------

    def order(self, part: Part) -> tuple[int, ...]:
        """The part's nodes in an order that is the same in every part that is built alike.

        That is the order in which they run, but for accumulations, which run whenever the engine likes: they stand
        behind, in the order of those that feed them.
        """
        if part not in self._orders:
            kinds = {number: self.record.by_number[number].kind for number in part.nodes}
            running = [number for number in part.nodes if kinds[number] != "accumulate_grad"]
            place = {number: index for index, number in enumerate(running)}
            sinks = sorted((self._feeder(number, place), number) for number in part.nodes if number not in place)
            self._orders[part] = (*running, *(number for _, number in sinks))
        return self._orders[part]

    def _feeder(self, number: int, place: dict[int, int]) -> tuple[int, int]:
        return min(((place[n], out) for n, out in self._above[number] if n in place), default=(len(place), 0))

    def signature(self, part: Part) -> Hashable:
        """Equal for parts that are built alike."""
        if part not in self._signatures:
            self._signatures[part] = self._signature(part)
        return self._signatures[part]

    def _signature(self, part: Part) -> Hashable:
        order, slots = self.order(part), _slots(part)
        place = {number: index for index, number in enumerate(order)}
        beyond: dict[int, int] = {}
        rows = []
        for number in order:
            node = self.record.by_number[number]
            edges = tuple(
                (edge.output, place[edge.target], edge.input)
                if edge.target in place
                else (edge.output, -1 - beyond.setdefault(edge.target, len(beyond)), 0)
                for edge in node.edges
            )
            rows.append((node.name, slots[number], edges))
        return part.cls, part.own, tuple(rows)

    # -- what differs ----------------------------------------------------------------------------------------

    def unlike(self, part: Part, others: Part) -> str:
        """Why a part does not fold with others of its class, in a few words."""
        if part.cls != others.cls:
            return f"{part.cls or 'no class'} instead of {others.cls or 'no class'}"
        mine, theirs = self._names(part), self._names(others)
        less, more = theirs - mine, mine - theirs
        words = [f"without {_counted_names(less)}"] if less else []
        words += [f"with {'also ' if not less else ''}{_counted_names(more)}"] if more else []
        if not words and self._leaving(part) != self._leaving(others):
            words = [f"{counted(self._leaving(part), 'gradient')} out of it instead of {self._leaving(others):,}"]
        return " and ".join(words) or "other edges between the same nodes"

    def _names(self, part: Part) -> Counter[str]:
        """The part's nodes by name; its parameters only where it has nothing else."""
        nodes = [self.record.by_number[number] for number in part.nodes]
        names = Counter(node.name.removesuffix("Backward0") for node in nodes if node.kind != "accumulate_grad")
        return names or Counter(node.name for node in nodes)

    def _leaving(self, part: Part) -> int:
        inside = set(part.nodes)
        return sum(e.target not in inside for n in part.nodes for e in self.record.by_number[n].edges)

    def differences(self, parts: Sequence[Part]) -> list[str]:
        """What differs between parts that are built alike, a line each: `other hooks in layers.3`."""
        if len(parts) == 1:
            return []
        key = tuple(parts)
        if key not in self._differences:
            self._differences[key] = list(self._differing(parts))
        return self._differences[key]

    def _differing(self, parts: Sequence[Part]) -> Iterator[str]:
        for what, look in self._looks().items():
            looks = [tuple(look(self.record.by_number[number]) for number in self.order(part)) for part in parts]
            usual, count = Counter(looks).most_common(1)[0]
            if count < len(parts):
                others = [part.key for part, seen in zip(parts, looks, strict=True) if seen != usual]
                yield f"other {what} in {_listed(others[::-1])}"  # in the order of the forward

    def _looks(self) -> dict[str, Callable[[AutogradNode], Hashable]]:
        leaves = self.record.leaves
        return {
            "kinds of nodes": lambda node: node.kind,
            "shapes": lambda node: (
                tuple(spec and spec.shape for spec in (*node.gradients_in, *node.gradients_out)),
                tuple(tensor.shape for tensor in node.saved),
                None if node.leaf is None else leaves[node.leaf].shape,
            ),
            "dtypes": lambda node: (
                tuple(spec and spec.dtype for spec in (*node.gradients_in, *node.gradients_out)),
                tuple(tensor.dtype for tensor in node.saved),
                None if node.leaf is None else leaves[node.leaf].dtype,
            ),
            "hooks": lambda node: tuple(hook.kind for hook in node.hooks),
            "touches": lambda node: str(self._touched.get(node.number, "")),
        }

    # -- folding ---------------------------------------------------------------------------------------------

    def folded(self, children: Sequence[Part], alone: Callable[[Part], bool]) -> list[list[int]]:
        """Places of the children that are drawn as one, in order; each child stands in one list.

        Args:
            children: the parts that one part is made of, in the order of the backward.
            alone: says which of them the reader wants to see by themselves.
        """
        groups: list[list[int]] = []
        for place, child in enumerate(children):
            last = children[groups[-1][-1]] if groups else None
            if last is not None and not alone(child) and not alone(last) and self._alike(last, child):
                groups[-1].append(place)
            else:
                groups.append([place])
        return [part for group in groups for part in self._fitting(children, group)]

    def _alike(self, a: Part, b: Part) -> bool:
        return (
            not a.own
            and not b.own
            and a.parts == b.parts == 1
            and len(a.nodes) == len(b.nodes)
            and _stem(a) == _stem(b)
            and self.signature(a) == self.signature(b)
        )

    def _fitting(self, children: Sequence[Part], group: list[int]) -> list[list[int]]:
        """The group, or each by itself where it is too small, or where a gradient leaves it and comes back."""
        needed = MIN_NAMED if _stem(children[group[0]]) else 2
        if len(group) >= needed and not self._comes_back(children, set(group)):
            return [group]
        return [[place] for place in group]

    def _comes_back(self, children: Sequence[Part], group: set[int]) -> bool:
        at = {number: place for place, child in enumerate(children) for number in child.nodes}
        after: dict[int, set[int]] = defaultdict(set)
        for place, child in enumerate(children):
            for number in child.nodes:
                after[place] |= {at[e.target] for e in self.record.by_number[number].edges if e.target in at}
        todo = [other for place in group for other in after[place] - group]
        seen = set(todo)
        while todo:
            if after[todo[-1]] & group:
                return True
            fresh = after[todo.pop()] - seen
            seen |= fresh
            todo += fresh
        return False


def _slots(part: Part) -> dict[int, tuple[Hashable, ...]]:
    """Where in the part each of its nodes is: the way down to it, without the part's own name."""
    found: dict[int, tuple[Hashable, ...]] = dict.fromkeys(part.nodes, ())
    todo: list[tuple[Part, tuple[Hashable, ...]]] = [(part, ())]
    while todo:
        at, way = todo.pop()
        for place, child in enumerate(at.children):
            here = (*way, (place, "" if child.own else child.path[-1], child.cls, child.own))
            found.update(dict.fromkeys(child.nodes, here))
            todo.append((child, here))
    return found


def _stem(part: Part) -> str:
    """A module's own name without the number at its end; something of its own where it has none."""
    match = _NUMBERED.fullmatch(part.path[-1]) if part.path else None
    return match[1] if match else part.key


def is_sibling(part: Part, other: Part) -> bool:
    """Whether one would expect two parts to be built alike, by their names."""
    return _stem(part) == _stem(other)


def is_listed(part: Part) -> bool:
    """Whether a module is one of a list, which has numbers for names."""
    return not _stem(part)


def _counted_names(names: Counter[str]) -> str:
    most = names.most_common(_NAMED)
    words = [name if count == 1 else f"{count} {name}" for name, count in most]
    left = sum(names.values()) - sum(count for _, count in most)
    return ", ".join([*words, *([f"{counted(left, 'more node')}"] if left else [])])


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:_NAMED], *([f"and {len(names) - _NAMED:,} more"] if len(names) > _NAMED else [])]
    return ", ".join(shown)
