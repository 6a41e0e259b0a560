"""What change in the user's program would make PyTorch capture a backward again.

A symbolic input may change from call to call; a constant that stands in the graph, or in the key of the cache, may
not. The key holds (`CompiledNodeArgs` in torch/csrc/dynamo/compiled_autograd.h): the autograd nodes and their edges,
the hooks, each node's saved scalars, and device, dtype and requires_grad of each lifted tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cabw_viz.record.model import AutogradNode, Baked, CaptureRecord

_ELEMENT = re.compile(r"(\[\d+\]|, (dimension|element) \d+)(?= of |$)")
_EXTENTS = ("size", "stride", "storage_offset")


@dataclass(frozen=True)
class Change:
    """Something that may change, and whether the backward is then captured again."""

    what: str
    """`exponent = 2`, `self_sym_sizes = [5, 3]`."""
    again: bool
    where: str = ""
    """The symbolic inputs that take a change up, or the nodes in which a constant stands."""

    def __str__(self) -> str:
        return f"{self.what}: {'yes' if self.again else 'no'}{f' ({self.where})' if self.where else ''}"


def explain(record: CaptureRecord, node: AutogradNode | None = None) -> str:
    """In words, a line each: would a change of this make PyTorch capture the backward again?

    Args:
        record: a capture.
        node: one of its autograd nodes; without it, the whole backward.
    """
    return "\n".join(str(change) for change in (changes(record) if node is None else node_changes(node)))


# -- one autograd node ---------------------------------------------------------------------------------------


def node_changes(node: AutogradNode) -> tuple[Change, ...]:
    """What an autograd node takes from symbolic inputs, its constants and its hooks."""
    hooks = tuple(Change(f"{hook.kind} {hook.name}", again=True) for hook in node.hooks)
    return lifted(node) + baked(node) + hooks


def lifted(node: AutogradNode) -> tuple[Change, ...]:
    """The symbolic inputs that a node uses, those of one tensor together."""
    mixed = {_ELEMENT.sub("", constant.meaning) for constant in node.baked if _ELEMENT.search(constant.meaning)}
    groups: dict[str, list[tuple[int, int]]] = {}
    for use in node.lifted:
        name = _ELEMENT.sub("", use.meaning)
        groups.setdefault(use.meaning if name in mixed else name, []).append((use.size, use.value))
    whole = {use.meaning for use in node.lifted}
    changes = []
    for name, uses in groups.items():
        values = uses[0][1] if name in whole else [value for _, value in uses]
        changes.append(Change(f"{name} = {values}", again=False, where=ranges([index for index, _ in uses])))
    return tuple(changes)


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


def baked(node: AutogradNode) -> tuple[Change, ...]:
    """A node's constants, those of one tensor together."""
    groups: dict[str, list[str]] = {}
    for constant in node.baked:
        groups.setdefault(constant.meaning, []).append(constant.value)
    return tuple(Change(f"{meaning} = {', '.join(values)}", again=True) for meaning, values in groups.items())


def lifted_text(node: AutogradNode) -> str:
    """The symbolic inputs that a node uses, in one line."""
    return "; ".join(f"{change.what} ({change.where})" for change in lifted(node))


def baked_text(node: AutogradNode) -> str:
    """A node's constants, in one line."""
    return "; ".join(change.what for change in baked(node))


# -- a whole backward ----------------------------------------------------------------------------------------


def changes(record: CaptureRecord) -> tuple[Change, ...]:
    """What of a backward may change without a new capture, and what may not."""
    fixed = [
        Change("number of dimensions of a tensor", again=True),
        Change("which tensors require a gradient", again=True),
        Change("a hook added or removed", again=True, where=_hooked(record)),
    ]
    if any(node.kind == "accumulate_grad" for node in record.autograd_nodes):
        fixed.append(Change("whether a leaf has a .grad already", again=True))
    return (*_extents(record), *_kinds(record), *_constants(record), *fixed)


def size_change(record: CaptureRecord, value: int) -> Change:
    """Whether a size that is `value` in this capture, such as the batch size, may change without a new one."""
    stuck = [_at(node) for node in record.autograd_nodes if any(_holds(b.value, value) for b in _baked_sizes(node))]
    if stuck:
        return Change(f"a size of {value}", again=True, where=", ".join(stuck))
    used = [use.size for node in record.autograd_nodes for use in node.lifted if use.value == value]
    return Change(f"a size of {value}", again=False, where=ranges(used) or "used nowhere")


def _extents(record: CaptureRecord) -> tuple[Change, ...]:
    used = [use.size for node in record.autograd_nodes for use in node.lifted]
    stuck = [_at(node) for node in record.autograd_nodes if _baked_sizes(node)]
    changes = [Change("sizes, strides and offsets of tensors", again=False, where=ranges(used))] if used else []
    if stuck:
        changes.append(Change("sizes, strides and offsets that are constants", again=True, where=", ".join(stuck)))
    return tuple(changes)


def _kinds(record: CaptureRecord) -> tuple[Change, ...]:
    kinds: dict[str, None] = {}
    for node in record.autograd_nodes:
        kinds |= {f"{b.attribute} {b.value}": None for b in node.baked if b.attribute in ("device", "dtype", "layout")}
    for lifted_input in record.inputs:
        kinds |= {f"device {lifted_input.device}": None, f"dtype {lifted_input.dtype}": None}
    return tuple(Change(what, again=True) for what in sorted(kinds) if not what.endswith(" "))


def _constants(record: CaptureRecord) -> tuple[Change, ...]:
    """Scalars, dims and such, each with the nodes in which it stands."""
    places: dict[str, list[str]] = {}
    for node in record.autograd_nodes:
        for constant in node.baked:
            if constant.attribute in ("dim", "scalar", "memory_format", "flag") and constant.meaning not in _PLUMBING:
                places.setdefault(f"{constant.meaning} = {constant.value}", []).append(_at(node))
    return tuple(Change(what, again=True, where=", ".join(dict.fromkeys(nodes))) for what, nodes in places.items())


_PLUMBING = ("needs_input_grad", "accumulates into a .grad", "has_post_hooks")
"""Flags that `changes` tells in words of their own."""


def _baked_sizes(node: AutogradNode) -> list[Baked]:
    return [constant for constant in node.baked if constant.attribute in _EXTENTS]


def _holds(text: str, value: int) -> bool:
    return re.search(rf"(?<![\d-]){value}(?!\d)", text) is not None


def _at(node: AutogradNode) -> str:
    return f"{node.name} #{node.number}"


def _hooked(record: CaptureRecord) -> str:
    return ", ".join(_at(node) for node in record.autograd_nodes if node.hooks)
