"""Which argument of an opaque backward call is which saved field of its autograd node.

C++ packs a node's saved fields in the order of their names, those saved from the forward's inputs before those saved
from its outputs (`save_var` in torchgen's gen_autograd_functions.py). Python can name the fields of most types, not
of all: a dtype, a layout, TensorOptions, TypeAndSize and counts have no getter. So the names are aligned with the
arguments in order; an argument gets a name only where no other alignment is possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

UNKNOWN = object()
"""Stands for the value of a field that Python cannot read."""


def align(
    arguments: Sequence[Any],
    fields: Sequence[tuple[str, Any]],
    fits: Callable[[Any, Any], bool],
    may_be_nameless: Callable[[Any], bool],
) -> list[str | None] | None:
    """The field that each argument is.

    Args:
        arguments: those arguments of a call that come from saved fields.
        fields: names and values, in the order in which C++ packs them. Each is one of the arguments.
        fits: whether an argument may be a field of that value.
        may_be_nameless: whether an argument may be none of these fields.

    Returns:
        The name of each argument's field, None where several are possible; None where no alignment is possible.
    """
    n, m = len(arguments), len(fields)
    match = [[fits(argument, value) for _, value in fields] for argument in arguments]
    skip = [may_be_nameless(argument) for argument in arguments]
    heads = _alignable(match, skip, m)
    if not heads[n][m]:
        return None
    tails = _alignable([row[::-1] for row in match[::-1]], skip[::-1], m)
    names: list[str | None] = [None] * n
    for j, (name, _) in enumerate(fields):
        candidates = [i for i in range(n) if heads[i][j] and match[i][j] and tails[n - i - 1][m - j - 1]]
        if len(candidates) == 1:
            names[candidates[0]] = name
    return names


def _alignable(match: list[list[bool]], skip: list[bool], m: int) -> list[list[bool]]:
    """`[i][j]`: whether the first i arguments can hold exactly the first j fields."""
    n = len(match)
    table = [[False] * (m + 1) for _ in range(n + 1)]
    table[0][0] = True
    for i in range(n):
        for j in range(m + 1):
            if table[i][j] and skip[i]:
                table[i + 1][j] = True
            if table[i][j] and j < m and match[i][j]:
                table[i + 1][j + 1] = True
    return table


DIM = re.compile(r"(start_|end_)?dims?\d?|dimension|axis")


def attribute_of(name: str, value: Any) -> str:
    """The `Baked.attribute` of a constant, by the name of its field or argument and by its own type."""
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
