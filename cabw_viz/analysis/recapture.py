"""What an autograd node takes from symbolic inputs, and what of it is a constant.

A symbolic input may change from call to call; a constant that stands in the graph, or in the key of the cache, may
not. The key holds (`CompiledNodeArgs` in torch/csrc/dynamo/compiled_autograd.h): the autograd nodes and their edges,
the hooks, each node's saved scalars, and device, dtype and requires_grad of each lifted tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cabw_viz.record.model import AutogradNode

_ELEMENT = re.compile(r"(\[\d+\]|, (dimension|element) \d+)(?= of |$)")


def lifted_text(node: AutogradNode) -> str:
    """The symbolic inputs that a node uses, those of one tensor together: `exponents = [5, 3] (sizes[0], sizes[1])`."""
    mixed = {_ELEMENT.sub("", constant.meaning) for constant in node.baked if _ELEMENT.search(constant.meaning)}
    groups: dict[str, list[tuple[int, int]]] = {}
    for use in node.lifted:
        name = _ELEMENT.sub("", use.meaning)
        groups.setdefault(use.meaning if name in mixed else name, []).append((use.size, use.value))
    whole = {use.meaning for use in node.lifted}
    texts = []
    for name, uses in groups.items():
        values = uses[0][1] if name in whole else [value for _, value in uses]
        texts.append(f"{name} = {values} ({ranges([index for index, _ in uses])})")
    return "; ".join(texts)


def ranges(indices: Sequence[int]) -> str:
    """Symbolic inputs by number: `sizes[0], sizes[3]`, three and more in a row as `sizes[0] to sizes[2]`."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    parts = []
    for run in runs:
        ends = [f"sizes[{run[0]}]", f"sizes[{run[-1]}]"]
        parts.append(" to ".join(ends) if len(run) > 2 else ", ".join(dict.fromkeys(ends)))
    return ", ".join(parts)


def baked_text(node: AutogradNode) -> str:
    """A node's constants, those of one tensor together: `exponent = 2`."""
    groups: dict[str, list[str]] = {}
    for constant in node.baked:
        groups.setdefault(constant.meaning, []).append(constant.value)
    return "; ".join(f"{meaning} = {', '.join(values)}" for meaning, values in groups.items())
