"""Which modules a module graph draws open, which closed, and which it folds into one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cabw_viz.analysis.folding import Structure, is_listed, is_sibling
from cabw_viz.analysis.module_tree import Group, ModuleTree
from cabw_viz.errors import CabwError

READABLE = 30
"""A module graph is drawn as deep as it can be without having more boxes than this."""

SUGGESTED = 3


@dataclass
class Item:
    """One thing of a module graph: a box, or a frame with things inside. Several modules, where they are folded."""

    groups: list[Group]
    """The modules that it stands for, built alike, in the order of the backward."""
    items: list[Item] = field(default_factory=list)
    """What is drawn inside; empty for a box."""
    number: int | None = None
    """For a box of single autograd nodes: which of each group, as its place in `Structure.order`."""
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
    expand: frozenset[Group] = frozenset()
    """Modules that are open whatever the depth: their own autograd nodes are drawn one by one."""
    above: frozenset[Group] = frozenset()
    """The modules around those, which are open too."""
    base: int = 0
    """Segments that do not count: the path of the module that was cut out."""
    nodes: bool = False
    """Open everything, down to the autograd nodes."""


def root_item(structure: Structure, opening: Opening) -> Item:
    """The things to draw, all in one that stands for the whole."""
    return _frame(structure, [structure.tree.root], opening)


def plan(
    structure: Structure, *, depth: int | None, expand: Iterable[str], base: int = 0, few: bool = False
) -> tuple[Item, int | None]:
    """The things to draw, and how deep; None for down to the autograd nodes.

    Args:
        structure: how the groups are built.
        depth: segments of a path down to which modules are open; None for as many as can be read.
        expand: names of modules to open beyond that.
        base: segments that do not count.
        few: whether the autograd nodes themselves are drawn where there are few enough of them, if `depth` is None.

    Raises:
        CabwError: `depth` is below 1, or there is no module of a name in `expand`.
    """
    tree = structure.tree
    names = module_names(tree)
    opening = _opening(tree, [checked_module(name, names, "expand") for name in expand], base)
    if depth is not None:
        if type(depth) is not int or depth < 1:
            raise CabwError(f"depth={depth!r} is no depth", expected="a whole number from 1, or None", try_="depth=2")
        return root_item(structure, replace(opening, depth=depth)), depth
    deepest = max((name.count(".") + 1 for name in names), default=1) - base
    best, chosen = root_item(structure, opening), 1
    limit = max(READABLE, _count(best))
    for deeper in range(2, deepest + 1):
        item = root_item(structure, replace(opening, depth=deeper))
        if _count(item) > limit:
            return best, chosen
        best, chosen = item, deeper
    if few and len(tree.root.nodes) <= limit:
        return root_item(structure, replace(opening, depth=deepest + 1, nodes=True)), None
    return best, chosen


def _count(item: Item) -> int:
    return sum(1 for _ in item.boxes())


def module_names(tree: ModuleTree) -> dict[str, None]:
    """The names of all modules in a tree, with the keys of their parts, in the order of the backward."""
    names: dict[str, None] = {}
    todo = [tree.root]
    while todo:
        group = todo.pop()
        if group.path:
            names |= dict.fromkeys((group.name, group.key))
        todo += reversed(group.modules)
    return names


def checked_module(name: object, known: Iterable[str], option: str) -> str:
    """A module's name, if there is such a module.

    Raises:
        CabwError: there is none; names those that are spelled similarly.
    """
    names = list(known)
    if isinstance(name, str) and name in names:
        return name
    similar = difflib.get_close_matches(str(name), names, SUGGESTED, 0.5)
    examples = ", ".join(map(repr, similar or names[:SUGGESTED]))
    raise CabwError(
        f"{option} names {name!r}, and no autograd node of this backward was made in a module of that name",
        expected=f"a module's path such as {examples}" if names else "nothing: no module made any of these nodes",
        try_='cap.nodes["module"].unique() lists them' if names else "level='autograd'",
    )


def _opening(tree: ModuleTree, names: Iterable[str], base: int) -> Opening:
    """Modules to depth 1, and these."""
    expand = {group for name in names for group in tree.named(name)}
    above: set[Group] = set()
    for group in expand:
        parent = group.parent
        while parent is not None and parent not in above:
            above.add(parent)
            parent = parent.parent
    return Opening(1, frozenset(expand), frozenset(above), base)


def _frame(structure: Structure, groups: list[Group], opening: Opening) -> Item:
    """The groups, built alike, with what is inside."""
    head = groups[0]
    item = Item(groups)
    if not head.children:
        item.items = _single(structure, groups)
        return item
    expanded = head in opening.expand

    def alone(child: Group) -> bool:
        return expanded or child in opening.expand or child in opening.above

    children = [structure.children(group, head) for group in groups]
    for places in structure.folds(head.children, alone):
        folded = [parts[place] for parts in children for place in places]
        item.items += _items_of(structure, folded, opening, own=expanded)
    _explain(structure, item.items)
    return item


def _items_of(structure: Structure, groups: list[Group], opening: Opening, *, own: bool) -> list[Item]:
    """The groups as a box or, open, as a frame; nodes of the module around them one by one, if `own`, or in one box."""
    head = groups[0]
    if head.own:
        return _single(structure, groups) if own or opening.nodes or len(head.nodes) == 1 else [Item(groups)]
    deep = len(head.path) - opening.base < opening.depth and bool(head.children)
    if deep or opening.nodes or head in opening.expand or head in opening.above:
        return [_frame(structure, groups, opening)]
    return [Item(groups)]


def _single(structure: Structure, groups: list[Group]) -> list[Item]:
    """A box for each autograd node, in the order in which those of the first group run."""
    order = structure.order(groups[0])
    places = sorted(range(len(order)), key=order.__getitem__)
    return [Item(groups, number=place) for place in places]


def _explain(structure: Structure, items: Sequence[Item]) -> None:
    """Note on each module why it does not fold with those that one would expect it to."""
    modules = [item for item in items if not item.groups[0].own]
    for item in modules if len(modules) > 1 else ():
        head = item.groups[0]
        alike = [other for other in modules if is_sibling(other.groups[0], head)]
        usual = max(alike, key=lambda other: len(other.groups), default=item).groups
        # A list of blocks is one in which all are of a class; `0` and `2` of a Sequential are two things.
        expected = len(usual) > 1 or (is_listed(head) and all(other.groups[0].cls == head.cls for other in alike))
        if expected and usual[0].cls == head.cls and structure.signature(usual[0]) != structure.signature(head):
            item.note = f"unlike {usual[0].name}: {structure.unlike(head, usual[0])}"
