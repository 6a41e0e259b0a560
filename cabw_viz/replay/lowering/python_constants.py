"""Compares two captures' structure, and collects plain Python values (closures, ctx attributes) that traces bake in."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from cabw_viz.record.kinds import PLUMBING
from cabw_viz.record.model import CaptureRecord
from cabw_viz.runtime.capture_state import Captured

_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, type(None))
_NUMBERED = re.compile(r"\b([A-Za-z_]+?)(?:_\d+)?\b")


@dataclass(frozen=True)
class PythonConstant:
    """A plain value in the state of a custom Function's ctx or of a Python hook."""

    label: str
    """`n of ScaleBackward (#4)`."""
    value: Any


def python_constants(captured: Captured) -> tuple[PythonConstant, ...]:
    """Plain values that custom Functions keep on their ctx and hooks in their closures, in the graph's order.

    Raises:
        CabwError: the capture cannot run.
    """
    record, capture = captured.record, captured.runnable()
    constants = []
    for node, row in zip(capture.graph.graph.nodes, record.graph_nodes, strict=True):
        if row.kind != "lifted_object" or node.op == "placeholder" or str(node.args[0]) != "hooks":
            continue
        number = next((record.graph_nodes[user].autograd_node for user in row.users), None)
        owner = record.by_number.get(number) if number is not None else None
        label = "a hook" if owner is None else f"{record.label(owner)} (#{owner.number})"
        for name, value in _state(capture.arguments.hooks[node.args[1]]):
            if _is_plain(value):
                constants.append(PythonConstant(f"{name} of {label}", value))
    return tuple(constants)


def _state(owner: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of the arguments, closure and attributes of an object or a function."""
    if isinstance(owner, functools.partial):
        yield from ((f"argument {place}", value) for place, value in enumerate(owner.args))
        yield from owner.keywords.items()
        owner = owner.func
    owner = getattr(owner, "__func__", owner)
    closure, code = getattr(owner, "__closure__", None), getattr(owner, "__code__", None)
    if closure is not None and code is not None:
        yield from ((name, _content(cell)) for name, cell in zip(code.co_freevars, closure, strict=True))
    yield from getattr(owner, "__dict__", {}).items()


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return ...


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, list | tuple) and all(map(_is_plain, value)))


def differing_structure(one: CaptureRecord, other: CaptureRecord) -> str | None:
    """The first difference between two graphs that is not a size, as text; None where there is none.

    Numbers in the names of graph nodes do not count: an old gradient more shifts them.
    """
    for mine, theirs in itertools.zip_longest(_calls(one), _calls(other)):
        if mine != theirs:
            return f"{_call_text(theirs)} in place of {_call_text(mine)}"
    return None


def _calls(record: CaptureRecord) -> Iterator[tuple[int | None, str, str]]:
    for row in record.graph_nodes:
        if row.kind not in PLUMBING and row.kind != "accumulate_grad":
            yield row.autograd_node, row.target, _NUMBERED.sub(r"\1", row.arguments)


def _call_text(call: tuple[int | None, str, str] | None) -> str:
    if call is None:
        return "nothing"
    number, target, arguments = call
    return f"{target}{arguments[:80]}{'…' if len(arguments) > 80 else ''} of autograd node #{number}"
