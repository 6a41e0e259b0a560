"""A part of a backward cut out of the whole: one module, the neighbourhood of a node, the ways to one parameter."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cabw_viz.analysis.module_plan import checked_module, module_names
from cabw_viz.analysis.module_tree import module_tree
from cabw_viz.errors import CabwError
from cabw_viz.record.model import CaptureRecord, Leaf
from cabw_viz.record.wording import counted

HOPS = 2
"""How far `around` goes unless told."""


@dataclass(frozen=True)
class Crossing:
    """A gradient on its way between the part that was cut out and the rest."""

    inside: int
    """Number of the autograd node in the part."""
    outside: int
    """Number of the one beyond it."""
    entering: bool
    """Whether the gradient flows into the part."""


@dataclass(frozen=True)
class Cut:
    """A part of a record."""

    record: CaptureRecord
    """With the autograd nodes of the part; edges to others lead out of it. The graph is whole."""
    whole: CaptureRecord
    notes: tuple[str, ...] = ()
    """What was cut out, a sentence each; empty for the whole."""
    focus: str = ""
    """The module that was cut out; its borders are drawn."""

    @property
    def numbers(self) -> frozenset[int]:
        """The autograd nodes of the part."""
        return frozenset(self.record.by_number)

    def crossings(self) -> Iterator[Crossing]:
        """The gradients that cross the border of the part, in the order in which they are made."""
        inside = self.numbers
        for node in self.whole.autograd_nodes:
            for edge in node.edges:
                if edge.target in self.whole.by_number and (node.number in inside) != (edge.target in inside):
                    entering = edge.target in inside
                    ends = (edge.target, node.number) if entering else (node.number, edge.target)
                    yield Crossing(*ends, entering)


def cut(
    record: CaptureRecord,
    *,
    focus: str | None = None,
    around: int | None = None,
    hops: int = HOPS,
    path_to: str | None = None,
) -> Cut:
    """Cut a part out; what is asked for together is the part that all agree on.

    Args:
        record: The capture.
        focus: The name of a module: its autograd nodes, with those of the modules inside.
        around: The number of an autograd node: the nodes that at most `hops` edges, whichever way they lead, part
            from it.
        hops: How many edges that are.
        path_to: A parameter, by any of its names: the nodes on the ways that gradients take from the loss to it.

    Raises:
        CabwError: There is no such module, node or parameter, or nothing that all of them agree on.
    """
    numbers, notes = set(record.by_number), []
    if focus is not None:
        tree = module_tree(record)
        focus = checked_module(focus, module_names(tree), "focus")
        numbers &= {number for group in tree.named(focus) for number in group.nodes}
        notes.append(f"only {focus}, with what flows in and out")
    if around is not None:
        numbers &= _neighbours(record, _checked_node(record, around), _checked_hops(hops))
        notes.append(f"only what is at most {counted(hops, 'edge')} away from #{around}")
    elif hops != HOPS:
        raise CabwError(f"hops={hops!r} was given without around=", try_="around=7, the number of an autograd node")
    if path_to is not None:
        numbers &= ways_to(record, path_to)
        notes.append(f"only the ways of gradients to {_leaf(record, path_to).label}")
    if not numbers and notes:
        raise CabwError(
            f"no autograd node is left: {', and '.join(notes)}",
            expected="parts of the backward that have nodes in common",
            try_="one of them at a time",
        )
    return Cut(_part(record, numbers), record, tuple(notes), focus or "")


def _part(record: CaptureRecord, numbers: set[int]) -> CaptureRecord:
    """The record with these autograd nodes alone; the graph and the leaves are left whole, for they go by place."""
    if len(numbers) == len(record.autograd_nodes):
        return record
    indices = [index for index, node in enumerate(record.autograd_nodes) if node.number in numbers]
    return replace(record, autograd_nodes=tuple(record.autograd_nodes[i] for i in indices))


def _checked_node(record: CaptureRecord, number: object) -> int:
    if type(number) is int and number in record.by_number:
        return number
    numbers = list(record.by_number)
    raise CabwError(
        f"around={number!r} is no autograd node of this backward",
        expected=f"a number from {numbers[0]} to {numbers[-1]}" if numbers else "nothing: there are none",
        try_="cap.nodes lists them by number",
    )


def _checked_hops(hops: object) -> int:
    if type(hops) is not int or hops < 0:
        raise CabwError(f"hops={hops!r} is no number of edges", expected="a whole number from 0")
    return hops


def _neighbours(record: CaptureRecord, start: int, hops: int) -> set[int]:
    """The nodes that at most so many edges part from a node."""
    beside: dict[int, set[int]] = defaultdict(set)
    for node in record.autograd_nodes:
        for edge in node.edges:
            if edge.target in record.by_number:
                beside[node.number].add(edge.target)
                beside[edge.target].add(node.number)
    numbers, rim = {start}, {start}
    for _ in range(hops):
        rim = {other for number in rim for other in beside[number]} - numbers
        if not rim:
            break
        numbers |= rim
    return numbers


def ways_to(record: CaptureRecord, name: str) -> set[int]:
    """Numbers of the autograd nodes on the ways that gradients take to a leaf, its own node included.

    Raises:
        CabwError: There is no leaf of that name, or its gradient is not part of this backward.
    """
    leaf = _leaf(record, name)
    if leaf.autograd_node not in record.by_number:
        raise CabwError(f"no gradient of this backward goes to {leaf.label}", try_=_near(record, name, others=True))
    above: dict[int, list[int]] = defaultdict(list)
    for node in record.autograd_nodes:
        for edge in node.edges:
            if edge.target != leaf.autograd_node or edge.input == leaf.input:
                above[edge.target].append(node.number)
    todo, numbers = [leaf.autograd_node], set[int]()
    while todo:
        number = todo.pop()
        if number not in numbers:
            numbers.add(number)
            todo += above[number]
    return numbers


def _leaf(record: CaptureRecord, name: str) -> Leaf:
    """The leaf of this name; a tied parameter has several."""
    leaf = next((leaf for leaf in record.leaves if name in (*leaf.names, leaf.label)), None)
    if leaf is None:
        raise CabwError(
            f"path_to={name!r} is no parameter of this backward",
            expected=_near(record, name),
            try_="cap.nodes lists the leaves",
        )
    return leaf


def _near(record: CaptureRecord, name: object, *, others: bool = False) -> str:
    """Names like this one, of leaves whose gradients are part of the backward."""
    names = [n for leaf in record.leaves if leaf.autograd_node in record.by_number for n in leaf.names if n != name]
    like = [n for n in names if str(name) and str(name) in n][:3] or difflib.get_close_matches(str(name), names, 3, 0.5)
    like = like or names[:3]
    suggestions = " or ".join(map(repr, like))
    return (f"path_to={suggestions}" if others else f"one such as {suggestions}") if suggestions else ""
