"""Which modules are drawn open, which closed, and which are folded into one: the layout of a module graph as a tree."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cabw_viz.analysis.folding import Structure, is_listed, is_sibling
from cabw_viz.analysis.module_tree import Part
from cabw_viz.errors import CabwError

READABLE = 30
"""A module graph is drawn as deep as it can be without having more boxes than this."""

SUGGESTED = 3


@dataclass
class Item:
    """One thing of a module graph: a box, or a frame with things inside. Several modules, where they are folded."""

    parts: list[Part]
    """The modules that it stands for, built alike, in the order of the backward."""
    items: list[Item] = field(default_factory=list)
    """What is drawn inside; empty for a box."""
    number: int | None = None
    """For a box of single autograd nodes: which of each part, as its place in `Structure.order`."""
    note: str = ""
    """Why it is not folded with its neighbours."""

    def boxes(self) -> Iterator[Item]:
        """The boxes in it, in order."""
        if not self.items:
            yield self
        for item in self.items:
            yield from item.boxes()


@dataclass(frozen=True)
class Opening:
    """What the reader wants to see."""

    depth: int
    """Segments of a path, below `base`, down to which modules are open."""
    expand: frozenset[str] = frozenset()
    """Names of modules that are open whatever the depth: their own autograd nodes are drawn one by one."""
    base: int = 0
    """Segments that do not count: the path of the module that was cut out."""
    nodes: bool = False
    """Open everything, down to the autograd nodes."""


def planned(structure: Structure, root: Part, opening: Opening) -> Item:
    """The things to draw, all in one that stands for the whole."""
    return _opened(structure, [root], opening, _ancestors(opening.expand))


def plan(
    structure: Structure, root: Part, *, depth: int | None, expand: Iterable[str], base: int = 0, few: bool = False
) -> tuple[Item, int | None]:
    """The things to draw, and how deep; None for down to the autograd nodes.

    Args:
        structure: how the parts are built.
        root: the tree of modules.
        depth: segments of a path down to which modules are open; None for as many as can be read.
        expand: names of modules to open beyond that.
        base: segments that do not count.
        few: whether the autograd nodes themselves are drawn where there are few enough of them, if `depth` is None.

    Raises:
        CabwError: `depth` is below 1, or there is no module of a name in `expand`.
    """
    names = known_modules(root)
    wanted = frozenset(checked_module(name, names, "expand") for name in expand)
    if depth is not None:
        if type(depth) is not int or depth < 1:
            raise CabwError(f"depth={depth!r} is no depth", expected="a whole number from 1, or None", try_="depth=2")
        return planned(structure, root, Opening(depth, wanted, base)), depth
    deepest = max((name.count(".") + 1 for name in names), default=1) - base
    best, chosen = planned(structure, root, Opening(1, wanted, base)), 1
    limit = max(READABLE, _count(best))
    for deeper in range(2, deepest + 1):
        item = planned(structure, root, Opening(deeper, wanted, base))
        if _count(item) > limit:
            return best, chosen
        best, chosen = item, deeper
    if few and len(root.nodes) <= limit:
        return planned(structure, root, Opening(deepest + 1, wanted, base, nodes=True)), None
    return best, chosen


def _count(item: Item) -> int:
    return sum(1 for _ in item.boxes())


def known_modules(root: Part) -> dict[str, None]:
    """The names of all modules in a tree, with those of their parts, in the order of the backward."""
    found: dict[str, None] = {}
    todo = [root]
    while todo:
        part = todo.pop()
        if part.path and not part.own:
            found |= dict.fromkeys((part.name, part.key))
        todo += reversed(part.children)
    return found


def checked_module(name: object, known: Iterable[str], option: str) -> str:
    """A module's name, if there is such a module.

    Raises:
        CabwError: there is none; says which are like it.
    """
    names = list(known)
    if isinstance(name, str) and name in names:
        return name
    like = difflib.get_close_matches(str(name), names, SUGGESTED, 0.5)
    shown = ", ".join(map(repr, like or names[:SUGGESTED]))
    raise CabwError(
        f"{option} names {name!r}, and no autograd node of this backward was made in a module of that name",
        expected=f"a module's path such as {shown}" if names else "nothing: no module made any of these nodes",
        try_='cap.nodes["module"].unique() lists them' if names else "level='autograd'",
    )


def _ancestors(names: Iterable[str]) -> frozenset[str]:
    """The modules in which those of these names are."""
    found = set()
    for name in names:
        parent = name.partition("@")[0].rpartition(".")[0]
        while parent:
            found.add(parent)
            parent = parent.rpartition(".")[0]
    return frozenset(found)


def _asked(part: Part, opening: Opening) -> bool:
    return not part.own and (part.name in opening.expand or part.key in opening.expand)


def _opened(structure: Structure, parts: list[Part], opening: Opening, above: frozenset[str]) -> Item:
    """The parts, built alike, with what is inside."""
    head = parts[0]
    item = Item(parts)
    if not head.children:
        item.items = _single(structure, parts)
        return item
    asked = _asked(head, opening)

    def alone(child: Part) -> bool:
        return asked or _asked(child, opening) or child.name in above

    for places in structure.folded(head.children, alone):
        folded = [part.children[place] for part in parts for place in places]
        item.items += _shown(structure, folded, opening, above, own=asked)
    _explain(structure, item.items)
    return item


def _shown(
    structure: Structure, parts: list[Part], opening: Opening, above: frozenset[str], *, own: bool
) -> list[Item]:
    """The parts as a box or, open, as a frame; nodes of the module around them one by one, if `own`, or in one box."""
    head = parts[0]
    if head.own:
        return _single(structure, parts) if own or opening.nodes or len(head.nodes) == 1 else [Item(parts)]
    deep = len(head.path) - opening.base < opening.depth and bool(head.children)
    if deep or opening.nodes or _asked(head, opening) or head.name in above:
        return [_opened(structure, parts, opening, above)]
    return [Item(parts)]


def _single(structure: Structure, parts: list[Part]) -> list[Item]:
    """A box for each autograd node, in the order in which those of the first part run."""
    order = structure.order(parts[0])
    places = sorted(range(len(order)), key=order.__getitem__)
    return [Item(parts, number=place) for place in places]


def _explain(structure: Structure, items: Sequence[Item]) -> None:
    """Note on each module why it does not fold with those that one would expect it to."""
    modules = [item for item in items if not item.parts[0].own]
    for item in modules if len(modules) > 1 else ():
        head = item.parts[0]
        alike = [other for other in modules if is_sibling(other.parts[0], head)]
        usual = max(alike, key=lambda other: len(other.parts), default=item).parts
        # A list of blocks is one in which all are of a class; `0` and `2` of a Sequential are two things.
        expected = len(usual) > 1 or (is_listed(head) and all(other.parts[0].cls == head.cls for other in alike))
        if expected and usual[0].cls == head.cls and structure.signature(usual[0]) != structure.signature(head):
            item.note = f"unlike {usual[0].name}: {structure.unlike(head, usual[0])}"
