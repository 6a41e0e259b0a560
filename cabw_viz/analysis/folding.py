"""Which modules next to each other are built alike, and may be drawn as one.

Alike is what has the same autograd nodes in the same order, from the same modules inside, with the same edges between
them and the same number of edges out. What flows in is a neighbour's business: the last block of a model gets one
gradient where the others get two. Shapes, dtypes, hooks and the like may differ; `differences` lists them.

The drawing folds neighbours that are all alike into one box. The inspector closes a whole list into one box, a stack:
it needs most of a list to be alike, and marks the others in it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from cabw_viz.analysis.module_tree import Group, ModuleTree
from cabw_viz.analysis.touches import marks
from cabw_viz.record.model import AutogradNode
from cabw_viz.record.wording import counted

MIN_NAMED = 3
"""So many of `block1`, `block2`, … fold; `norm1` and `norm2` are two things. Of `0`, `1` in a list two are enough."""

MIN_STACK, MIN_ALIKE = 3, 0.75
"""A stack has so many blocks, and such a part of them is built alike: the first block of a model often lacks the edge
to an input that needs no gradient."""

_NUMBERED = re.compile(r"(.*?)\d+")

_NAMED = 3
"""So many blocks are named where something differs, of the others the number is given."""


class Structure:
    """How the groups of a module tree are built; every answer is cached."""

    def __init__(self, tree: ModuleTree) -> None:
        self.tree, self.record = tree, tree.record
        self._orders: dict[Group, tuple[int, ...]] = {}
        self._signatures: dict[Group, Hashable] = {}
        self._differences: dict[tuple[Group, ...], list[str]] = {}
        self._children: dict[Group, list[Group]] = {}

    # -- structure -------------------------------------------------------------------------------------------

    def order(self, group: Group) -> tuple[int, ...]:
        """The group's nodes in an order that is the same in every group that is built alike.

        That is the order in which they run, but for accumulations, which run whenever the engine likes: they stand
        behind, in the order of those that feed them.
        """
        if group not in self._orders:
            accumulations, by_number = self.tree.accumulations, self.record.by_number
            running = [number for number in group.nodes if number not in accumulations]
            feeders: dict[int, tuple[int, int]] = {}
            for position, number in enumerate(running):
                for edge in by_number[number].edges:
                    if edge.target in accumulations:
                        feeder = (position, edge.output)
                        feeders[edge.target] = min(feeders.get(edge.target, feeder), feeder)
            none = (len(running), 0)
            sinks = [(feeders.get(number, none), number) for number in group.nodes if number in accumulations]
            self._orders[group] = (*running, *(number for _, number in sorted(sinks)))
        return self._orders[group]

    def signature(self, group: Group) -> Hashable:
        """Equal for groups that are built alike."""
        if group not in self._signatures:
            self._signatures[group] = self._signature(group)
        return self._signatures[group]

    def _signature(self, group: Group) -> Hashable:
        order, slots = self.order(group), _slots(group)
        position = {number: index for index, number in enumerate(order)}
        outside: dict[int, int] = {}
        row: list[Hashable] = []  # flat: tuples in tuples would cost the garbage collector's time
        for number in order:
            node = self.record.by_number[number]
            row += (node.name, node.kind == "graph_root", slots[number], len(node.edges))
            for edge in node.edges:
                target = position.get(edge.target)
                if target is not None:
                    row += (edge.output, target, edge.input)
                else:
                    row += (edge.output, -1 - outside.setdefault(edge.target, len(outside)), 0)
        return group.cls, group.own, tuple(row)

    def children(self, group: Group, like: Group) -> list[Group]:
        """What a group is made of, in the order of another one that is built alike, whose own parts are found once."""
        if group is like:
            return group.children
        if group not in self._children:
            places = dict(zip(self.order(like), self.order(group), strict=True))
            modules = dict(zip(map(id, like.modules), group.modules, strict=True))
            self._children[group] = [
                modules[id(child)]
                if not child.own
                else replace(child, key=group.key, path=group.path, nodes=_mapped(child.nodes, places), parent=group)
                for child in like.children
            ]
        return self._children[group]

    # -- what differs ----------------------------------------------------------------------------------------

    def unlike(self, group: Group, others: Group) -> str:
        """Why a group does not fold with others of its class, in a few words."""
        if group.cls != others.cls:
            return f"{group.cls or 'no class'} instead of {others.cls or 'no class'}"
        mine, theirs = self._names(group), self._names(others)
        less, more = theirs - mine, mine - theirs
        words = [f"without {_counted_names(less)}"] if less else []
        words += [f"with {'also ' if not less else ''}{_counted_names(more)}"] if more else []
        if not words and self._leaving(group) != self._leaving(others):
            words = [f"{counted(self._leaving(group), 'gradient')} out of it instead of {self._leaving(others):,}"]
        return " and ".join(words) or "other edges between the same nodes"

    def _names(self, group: Group) -> Counter[str]:
        """The group's nodes by name; its parameters only where it has nothing else."""
        nodes = [self.record.by_number[number] for number in group.nodes]
        names = Counter(node.name.removesuffix("Backward0") for node in nodes if node.kind != "accumulate_grad")
        return names or Counter(node.name for node in nodes)

    def _leaving(self, group: Group) -> int:
        inside = set(group.nodes)
        return sum(e.target not in inside for n in group.nodes for e in self.record.by_number[n].edges)

    def differences(self, groups: Sequence[Group]) -> list[str]:
        """What differs between groups that are built alike, a line each: `other hooks in layers.3`."""
        if len(groups) == 1:
            return []
        key = tuple(groups)
        if key not in self._differences:
            self._differences[key] = list(self._differing(groups))
        return self._differences[key]

    def _differing(self, groups: Sequence[Group]) -> Iterator[str]:
        orders = [self.order(group) for group in groups]
        for what, looks_of_nodes in self._looks.items():
            looks = [tuple(map(looks_of_nodes.__getitem__, order)) for order in orders]
            usual, count = Counter(looks).most_common(1)[0]
            if count < len(groups):
                others = [group.key for group, look in zip(groups, looks, strict=True) if look != usual]
                yield f"other {what} in {_listed(others[::-1])}"  # in the order of the forward

    @cached_property
    def _looks(self) -> dict[str, dict[int, int]]:
        """By what may differ, and by node: a number that is the same for nodes in which it does not."""
        leaves, touched = self.record.leaves, marks(self.record)

        look_of: dict[str, Callable[[AutogradNode], Hashable]] = {
            "kinds of nodes": lambda node: node.kind,
            "shapes": lambda node: (
                tuple([spec and spec.shape for spec in (*node.gradients_in, *node.gradients_out)]),
                tuple([tensor.shape for tensor in node.saved]),
                None if node.leaf is None else leaves[node.leaf].shape,
            ),
            "dtypes": lambda node: (
                tuple([spec and spec.dtype for spec in (*node.gradients_in, *node.gradients_out)]),
                tuple([tensor.dtype for tensor in node.saved]),
                None if node.leaf is None else leaves[node.leaf].dtype,
            ),
            "hooks": lambda node: tuple([hook.kind for hook in node.hooks]),
            "touches": lambda node: str(touched.get(node.number, "")),
        }
        return {what: self._numbered(look) for what, look in look_of.items()}

    def _numbered(self, look_of: Callable[[AutogradNode], Hashable]) -> dict[int, int]:
        numbers: dict[Hashable, int] = {}
        return {node.number: numbers.setdefault(look_of(node), len(numbers)) for node in self.record.autograd_nodes}

    # -- folding ---------------------------------------------------------------------------------------------

    def folds(self, children: Sequence[Group], alone: Callable[[Group], bool]) -> list[list[int]]:
        """Indices of the children that are drawn as one, in order; each child stands in one list.

        Args:
            children: what one group is made of, in the order of the backward.
            alone: says which of them the reader wants to see by themselves.
        """
        runs: list[list[int]] = []
        for index, child in enumerate(children):
            last = children[runs[-1][-1]] if runs else None
            if last is not None and not alone(child) and not alone(last) and self._is_alike(last, child):
                runs[-1].append(index)
            else:
                runs.append([index])
        return [fold for run in runs for fold in self._folds_of(children, run)]

    def _is_alike(self, a: Group, b: Group) -> bool:
        return (
            not a.own
            and not b.own
            and a.parts == b.parts == 1
            and len(a.nodes) == len(b.nodes)
            and _stem(a) == _stem(b)
            and self.signature(a) == self.signature(b)
        )

    def _folds_of(self, children: Sequence[Group], run: list[int]) -> list[list[int]]:
        """The run, or each by itself where it is too small, or where a gradient leaves it and comes back."""
        needed = MIN_NAMED if _stem(children[run[0]]) else 2
        if len(run) >= needed and not self._comes_back(children, set(run)):
            return [run]
        return [[index] for index in run]

    def _comes_back(self, children: Sequence[Group], run: set[int]) -> bool:
        index_of = {number: index for index, child in enumerate(children) for number in child.nodes}
        after: dict[int, set[int]] = defaultdict(set)
        for index, child in enumerate(children):
            for number in child.nodes:
                for edge in self.record.by_number[number].edges:
                    other = index_of.get(edge.target, index)
                    if other != index:
                        after[index].add(other)
        todo = [other for index in run for other in after[index] - run]
        visited = set(todo)
        while todo:
            if after[todo[-1]] & run:
                return True
            fresh = after[todo.pop()] - visited
            visited |= fresh
            todo += fresh
        return False

    # -- stacks ----------------------------------------------------------------------------------------------

    def odd_blocks(self, group: Group) -> list[Group] | None:
        """The blocks of a stack that are built differently from the others; None for a group that is no stack."""
        blocks = group.modules
        if len(blocks) < MIN_STACK or len({(block.cls, _stem(block)) for block in blocks}) > 1:
            return None
        if sum(len(block.nodes) for block in blocks) < len(group.nodes):  # nodes of its own: no list
            return None
        sizes = Counter(len(block.nodes) for block in blocks)
        if sizes.most_common(1)[0][1] < MIN_ALIKE * len(blocks):
            return None
        usual, count = Counter(map(self.signature, blocks)).most_common(1)[0]
        if count < MIN_ALIKE * len(blocks):
            return None
        return [block for block in blocks if self.signature(block) != usual]


def _mapped(numbers: Sequence[int], places: Mapping[int, int]) -> list[int]:
    return sorted([places[number] for number in numbers])


def _slots(group: Group) -> dict[int, tuple[Hashable, ...]]:
    """Where in the group each of its nodes is: the way down to it, without the group's own name."""
    slots: dict[int, tuple[Hashable, ...]] = dict.fromkeys(group.nodes, ())
    todo: list[tuple[Group, tuple[Hashable, ...]]] = [(group, ())]
    while todo:
        around, way = todo.pop()
        for index, module in enumerate(around.modules):
            below = (*way, (index, module.path[-1], module.cls))
            slots.update(dict.fromkeys(module.nodes, below))
            todo.append((module, below))
    return slots


def _stem(group: Group) -> str:
    """A module's own name without the number at its end; something of its own where it has none."""
    match = _NUMBERED.fullmatch(group.path[-1]) if group.path else None
    return match[1] if match else group.key


def is_sibling(group: Group, other: Group) -> bool:
    """Whether one would expect two groups to be built alike, by their names."""
    return _stem(group) == _stem(other)


def is_listed(group: Group) -> bool:
    """Whether a module is one of a list, which has numbers for names."""
    return not _stem(group)


def _counted_names(names: Counter[str]) -> str:
    most = names.most_common(_NAMED)
    words = [name if count == 1 else f"{count} {name}" for name, count in most]
    left = sum(names.values()) - sum(count for _, count in most)
    return ", ".join([*words, *([f"{counted(left, 'more node')}"] if left else [])])


def _listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _NAMED:,} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])
