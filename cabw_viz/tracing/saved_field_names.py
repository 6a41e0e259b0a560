"""Which argument of an opaque backward call is which saved field of its autograd node.

C++ packs a node's saved fields in the order of their names, those saved from the forward's inputs before those saved
from its outputs (`save_var` in torchgen's gen_autograd_functions.py). Python can name the fields of most types, not
all: a dtype, a layout, TensorOptions, TypeAndSize and counts have no getter. So names are laid along the arguments in
order; an argument gets a name only where there is one way to do it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

UNKNOWN = object()
"""Stands for the value of a field that was not read."""


def align(
    arguments: Sequence[Any],
    fields: Sequence[tuple[str, Any]],
    fits: Callable[[Any, Any], bool],
    may_be_nameless: Callable[[Any], bool],
) -> list[str | None] | None:
    """The field that each argument is.

    Args:
        arguments: of a call, those that come from fields.
        fields: names and values, in the order in which they are packed. Every one is among the arguments.
        fits: whether an argument may be a field of that value.
        may_be_nameless: whether an argument may be none of these fields.

    Returns:
        A name for each argument, None where more than one way is open; None where there is no way at all.
    """
    count, last = len(arguments), len(fields)
    match = [[fits(argument, value) for _, value in fields] for argument in arguments]
    skip = [may_be_nameless(argument) for argument in arguments]
    head = _reachable(match, skip, count, last)
    if not head[count][last]:
        return None
    backwards = _reachable([row[::-1] for row in match[::-1]], skip[::-1], count, last)
    names: list[str | None] = [None] * count
    for field, (name, _) in enumerate(fields):
        places = [
            i for i in range(count) if head[i][field] and match[i][field] and backwards[count - i - 1][last - field - 1]
        ]
        if len(places) == 1:
            names[places[0]] = name
    return names


def _reachable(match: list[list[bool]], skip: list[bool], count: int, last: int) -> list[list[bool]]:
    """`[i][j]`: whether the first i arguments can hold exactly the first j fields."""
    table = [[False] * (last + 1) for _ in range(count + 1)]
    table[0][0] = True
    for i in range(count):
        for j in range(last + 1):
            if table[i][j] and skip[i]:
                table[i + 1][j] = True
            if table[i][j] and j < last and match[i][j]:
                table[i + 1][j + 1] = True
    return table


DIM = re.compile(r"(start_|end_)?dims?\d?|dimension|axis")


def attribute_of(name: str, value: Any) -> str:
    """What kind of thing a constant is, by the name of its field or argument, and its own type."""
    if isinstance(value, bool) or (isinstance(value, list) and any(isinstance(item, bool) for item in value)):
        return "flag"
    if DIM.fullmatch(name):
        return "dim"
    if any(word in name for word in ("sym_size", "sym_argsize", "numel", "sizes", "shape")) or name == "size":
        return "size"
    if "sym_strides" in name:
        return "stride"
    return _BY_TYPE.get(type(value).__name__, "scalar" if name else "other")


_BY_TYPE = {
    "device": "device",
    "dtype": "dtype",
    "layout": "layout",
    "memory_format": "memory_format",
    "str": "flag",
    "float": "scalar",
    "complex": "scalar",
}
