"""FX nodes without the ways around: what `PythonKeyTracer.create_proxy` and `GraphModule` do, less what no graph needs.

`PythonKeyTracer.create_proxy` looks at each argument some thirty times (pytree, `isinstance`), writes a log line and
looks up metadata that compiled autograd never sets. Here a node is made of the same parts with the same name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx
from torch.fx import _lazy_graph_module, traceback
from torch.fx.experimental import proxy_tensor

from cabw_viz.torch_adapter.quick_sizes import QuickSizes

PLAIN = frozenset(
    {int, float, bool, complex, str, type(None), torch.device, torch.dtype, torch.layout, torch.memory_format}
)
"""Classes of arguments that a graph keeps as they are."""

Argument = Callable[[Any], Any]
"""Makes the argument of a graph node of a traced value; raises for what it does not know."""


class QuickFxTracer(proxy_tensor.PythonKeyTracer):
    """Creates the nodes that `PythonKeyTracer` creates, of arguments that `traced` turns into nodes.

    Args:
        traced: for a tensor or a symbolic number, the graph node that stands for it.
    """

    def __init__(self, traced: Argument) -> None:
        super().__init__()
        self.traced = traced
        self.stack_trace = ""
        """Of the nodes that are created."""

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        """A proxy of a new node; of a function call the quick way."""
        if kind != "call_function" or rest or options:
            return super().create_proxy(kind, target, args, kwargs, *rest, **options)
        arguments = tuple([self.argument(value) for value in args])
        return torch.fx.Proxy(self.call(target, arguments, {key: self.argument(kwargs[key]) for key in kwargs}), self)

    def call(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.fx.Node:
        """A new node that calls a function; the arguments are nodes and constants."""
        made = _new_call(self.graph, target, args, kwargs)
        made.meta["stack_trace"] = self.stack_trace
        return made

    def argument(self, value: Any) -> Any:
        """A traced value as an argument of a node, as `create_arg` makes it of proxies."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is torch.fx.Proxy:
            return value.node
        if kind is list:
            return [self.argument(each) for each in value]
        if kind is tuple or kind is torch.Size:
            return tuple([self.argument(each) for each in value])
        if isinstance(value, (torch.Tensor, torch.SymInt)):
            return self.traced(value)
        return self.create_arg(value)


@functools.cache
def _candidate(target: Any) -> str:
    """The name that FX would give to the first call of a target."""
    return str(torch.fx.Graph()._target_to_str(target))


def _new_call(graph: Any, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.fx.Node:
    """What `Graph.create_node` does for a call, without a walk through the arguments for symbolic numbers."""
    names = graph._graph_namespace
    name = names.create_name(_candidate(target), None)
    made = torch.fx.Node(graph, name, "call_function", target, args, dict(kwargs) if kwargs else _NO_KWARGS)
    names.associate_name_with_obj(name, made)
    graph._insert(made)
    graph._find_nodes_lookup_table.insert(made)
    graph._len += 1
    return made


_NO_KWARGS: Any = torch.fx.immutable_collections.immutable_dict()


def current_stack_trace() -> str:
    """The stack trace that FX gives to new nodes."""
    return str(traceback.get_current_meta().get("stack_trace", ""))


def set_stack_trace(text: str) -> None:
    """Set the stack trace that FX gives to new nodes."""
    traceback.set_stack_trace([text])


def lazy_graph_module(root: Any, graph: torch.fx.Graph, name: str) -> torch.fx.GraphModule:
    """A GraphModule whose code is generated when somebody reads or runs it."""
    return _lazy_graph_module._LazyGraphModule(root, graph, class_name=name)


def use_quick_parts(tracer: Any, traced: Argument) -> None:
    """Give a new tracer of compiled autograd quick nodes, and quick symbols for lifted sizes."""
    tracer.fx_tracer = QuickFxTracer(traced)
    tracer.proxy_mode = proxy_tensor.ProxyTorchDispatchMode(tracer.fx_tracer, "symbolic")
    tracer.shape_env = QuickSizes()
