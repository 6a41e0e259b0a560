"""Finds tensors that hooks and autograd.Function contexts hold outside the graph's inputs; they cannot be moved.

Saved tensors are inputs of the graph, and move. A tensor that a hook closes over, or that is an attribute of a ctx, is
the user's own; where the graph runs on another device, an error names its autograd node and its name before anything
runs. Hooks that unpack saved tensors run on the device on which they were made, and their results are moved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.kinds import HookKind
from cabw_viz.record.model import CaptureRecord, GraphNode
from cabw_viz.replay.hook_policy import follows_accumulation
from cabw_viz.replay.placement.device_dtype_map import DeviceDtypeMap
from cabw_viz.runtime.capture_state import Arguments, RunnableCapture

DEEPEST = 4
"""How many functions within functions are searched."""


def check_closure_tensors(capture: RunnableCapture, mapping: DeviceDtypeMap, *, hooks: bool) -> None:
    """Refuse hooks and ctxs that hold tensors on a device where the graph will not be.

    Args:
        capture: the capture.
        mapping: the way to the target.
        hooks: whether hooks will run.

    Raises:
        CabwError: names the autograd node, the hook or ctx, and the tensor.
    """
    record, arguments = capture.record, capture.arguments
    for node, row in zip(capture.graph.graph.nodes, record.graph_nodes, strict=True):
        if node.target is torch_adapter.call_backward:
            ctx = _lifted(torch_adapter.ctx_index(node.args), arguments)
            tensors = _tensors_of_attributes(torch_adapter.ctx_attributes(ctx))
            _refuse(record, row, mapping, ((f"its ctx.{name}", tensor) for name, tensor in tensors))
        elif hooks and _runs(record, row, torch_adapter.hook_type(node.target, node.kwargs)):
            hook = _lifted(torch_adapter.hook_index(node.args), arguments)
            name = getattr(hook, "__qualname__", type(hook).__qualname__)
            tensors = tensors_held_by(hook)
            _refuse(record, row, mapping, ((f"its hook {name} holds {label}, which", each) for label, each in tensors))


def _runs(record: CaptureRecord, row: GraphNode, kind: HookKind | None) -> bool:
    node = record.by_number.get(row.autograd_node) if row.autograd_node is not None else None
    return kind not in (None, "unpack_hook") and not follows_accumulation(node, kind)


def _refuse(
    record: CaptureRecord, row: GraphNode, mapping: DeviceDtypeMap, tensors: Iterator[tuple[str, torch.Tensor]]
) -> None:
    for what, tensor in tensors:
        device = mapping.device(tensor.device)
        if device == tensor.device:
            continue
        node = record.by_number.get(row.autograd_node) if row.autograd_node is not None else None
        label = "a node" if node is None else f"{record.label(node)} (#{node.number})"
        raise CabwError(
            f"{label} cannot be run on {device}: {what} is a tensor {tuple(tensor.shape)} on {tensor.device}",
            expected="tensors that PyTorch knows of, and can be moved: ctx.save_for_backward, or made in the backward",
            try_='hooks="drop"' if "hook" in what else "ctx.save_for_backward(tensor) in place of an attribute of ctx",
        )


def _lifted(index: int | None, arguments: Arguments) -> Any:
    """The object behind `hooks[3]` in the graph."""
    return None if index is None else arguments.hooks[index]


def with_unpacking(
    graph: torch.fx.GraphModule, arguments: Arguments, mapping: DeviceDtypeMap, paused: Callable[[], Any]
) -> tuple[Any, ...]:
    """The hooks of a graph; the results of those that unpack saved tensors are moved.

    Args:
        graph: the graph.
        arguments: what it runs on.
        mapping: the way to the target.
        paused: makes a context in which operators are called as they are.
    """
    hooks = list(arguments.hooks)
    for node in graph.graph.nodes:
        if torch_adapter.hook_type(node.target, node.kwargs) != "unpack_hook":
            continue
        index = torch_adapter.hook_index(node.args)
        if index is not None:
            hooks[index] = _Unpacking(arguments.hooks[index], mapping, paused)
    return tuple(hooks)


class _Unpacking:
    """A hook that unpacks as captured, and moves its result to the target."""

    def __init__(self, hook: Callable[[Any], Any], mapping: DeviceDtypeMap, paused: Callable[[], Any]) -> None:
        self._hook, self._mapping, self._paused = hook, mapping, paused

    def __call__(self, packed: Any) -> Any:
        with self._paused():
            unpacked = self._hook(packed)
        return self._mapping.tensor(unpacked) if isinstance(unpacked, torch.Tensor) else unpacked


# ----------------------------------------------------------------------------------------------------- tensors held


def tensors_held_by(function: Any, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of a function's tensors: closed over, global, a default, its own attributes or its object's."""
    if depth > DEEPEST:
        return
    if isinstance(function, functools.partial):
        yield from _named("an argument", list(function.args), depth)
        for name, value in function.keywords.items():
            yield from _named(name, value, depth)
        yield from tensors_held_by(function.func, depth + 1)
        return
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, torch.nn.Module):
        if isinstance(owner, torch.Tensor):
            yield "its object", owner
        yield from _tensors_of_attributes(_attributes(owner))
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        if callable(function) and not isinstance(function, torch.nn.Module):
            yield from _tensors_of_attributes(_attributes(function))
        return
    yield from _of_function(function, code, depth)


def _of_function(function: Any, code: CodeType, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in torch_adapter.closure_values(function):
        yield from _named(name, value, depth)
    for value in function.__defaults__ or ():
        yield from _named("a default", value, depth)
    for name, value in (function.__kwdefaults__ or {}).items():
        yield from _named(name, value, depth)
    for name in torch_adapter.globals_read(code):
        value = function.__globals__.get(name)
        if isinstance(value, torch.Tensor):
            yield name, value


def _named(name: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.nn.Module):  # its parameters are not all in use
        return
    if callable(value) and not isinstance(value, torch.Tensor | type):
        yield from tensors_held_by(value, depth + 1)
        return
    for leaf in torch_adapter.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield name, leaf


def _attributes(holder: Any) -> dict[str, Any]:
    return dict(getattr(holder, "__dict__", {}))


def _tensors_of_attributes(attributes: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in attributes.items():
        if not callable(value) or isinstance(value, torch.Tensor):
            yield from _named(name, value, DEEPEST)
