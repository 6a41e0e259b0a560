"""Traced graphs compared node for node, and each quick trace of a block with PyTorch's own trace of the same call."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.tracing import trace_only
from cabw_viz.tracing.tracer import TraceStopped


@dataclass(frozen=True)
class Row:
    """One node of a graph as text: two graphs are equal where their rows are."""

    op: str
    name: str
    target: str
    args: str
    kwargs: str
    users: tuple[str, ...]
    stack_trace: str


def rows_of(graph: torch.fx.Graph) -> tuple[Row, ...]:
    """A graph's nodes in order."""
    return tuple(
        Row(
            node.op,
            node.name,
            _target(node.target),
            _text(node.args),
            _text(node.kwargs),
            tuple(user.name for user in node.users),
            node.meta.get("stack_trace", ""),
        )
        for node in graph.nodes
    )


def _target(target: Any) -> str:
    """What a node calls. PyTorch makes some targets anew for each trace: prologues, and a C++ Function's number."""
    if isinstance(target, str):
        return target
    name = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', None) or target}"
    return re.sub(r"(CppNode\S*?)\d+$", r"\1", name) if "CppNode" in name else re.sub(" at 0x[0-9a-f]+", "", name)


def _text(value: Any) -> str:
    """An argument with its class: 1 is not True, and a list is no tuple."""
    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    if isinstance(value, dict):
        return f"{type(value).__name__}({', '.join(f'{key}={_text(each)}' for key, each in value.items())})"
    return f"{type(value).__name__}:{value!r}"


def first_difference(expected: Sequence[Row], actual: Sequence[Row]) -> str:
    """The first node that differs, in words; empty where the graphs are equal."""
    for index, (one, other) in enumerate(zip(expected, actual, strict=False)):
        if one != other:
            return f"node {index}: {one} expected, {other} traced"
    return "" if len(expected) == len(actual) else f"{len(expected)} nodes expected, {len(actual)} traced"


@dataclass
class Traces:
    """The traces of a block, in order."""

    differences: list[str] = field(default_factory=list)
    """For each quick trace that made a graph, how it differs from PyTorch's; empty texts where it does not."""
    refusals: list[str] = field(default_factory=list)
    """Why the other quick traces were not taken."""

    @property
    def wrong(self) -> list[str]:
        """The differences that are some."""
        return [difference for difference in self.differences if difference]


@contextlib.contextmanager
def compared_traces() -> Iterator[Traces]:
    """A context in which PyTorch's own tracer traces each call again that was traced the quick way."""
    traces, attempt = Traces(), trace_only._attempt

    def compared(block: Any, trace: Any, tracer_class: type[Any]) -> Any:
        result = attempt(block, trace, tracer_class)
        if tracer_class.__name__ != "QuickTracer":
            return result
        if result.can_be_repeated:
            traces.refusals.append(str(result.error))
        elif result.error is None and trace.state.graph is not None:
            traces.differences.append(
                first_difference(_rows_by_pytorch(block, trace), rows_of(trace.state.graph.graph))
            )
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_only, "_attempt", compared)
        yield traces


def _rows_by_pytorch(block: Any, trace: Any) -> tuple[Row, ...]:
    """The graph that compiled autograd hands a compiler for a call."""
    graphs: list[tuple[Row, ...]] = []

    def keep(graph: torch.fx.GraphModule) -> Any:
        graphs.append(rows_of(graph.graph))
        raise TraceStopped

    torch_adapter.clear_cache()
    block.cache.mark_foreign()
    try:
        with torch_adapter.trace_isolation(), torch_adapter.tracing(torch_adapter.TracerBase, keep, dynamic=True):
            trace.engine_call.run(keep_graph=True)
    except TraceStopped:
        return graphs[0]
    except Exception as error:  # noqa: BLE001  # the difference is that PyTorch raises
        return (Row("raises", type(error).__name__, str(error)[:300], "", "", (), ""),)
    raise AssertionError("the call was not traced")
