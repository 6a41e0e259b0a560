"""What differs in a captured graph at a target: devices and dtypes in its nodes' arguments, and its attributes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.replay.placement.device_dtype_map import DeviceDtypeMap


@dataclass(frozen=True)
class GraphChanges:
    """What differs in a graph at a target. The graph itself stays as it is: to copy one takes longer than to run it."""

    arguments: Mapping[torch.fx.Node, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    """Of the nodes that have others there."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Tensors and inner graphs that are others there, by the target of the node that reads them."""

    @classmethod
    def for_target(cls, graph: torch.fx.GraphModule, mapping: DeviceDtypeMap) -> GraphChanges:
        """What a graph needs to run at a target.

        Devices are rewritten wherever they stand, dtypes in `validate_outputs`, whose arguments have a known layout.
        Other dtypes are left to `RetargetMode`: in the graph they are plain numbers, as sizes are. Tensors and inner
        graphs that are attributes of the module move too.
        """
        arguments: dict[torch.fx.Node, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        attributes: dict[str, Any] = {}
        for node in graph.graph.nodes:
            if node.op in ("get_attr", "call_module"):
                target = str(node.target)
                attributes[target] = _moved_attribute(operator.attrgetter(target)(graph), mapping)
                continue
            args, kwargs = node.args, node.kwargs
            if mapping.target.device is not None and (_has_device(args) or _has_device(kwargs)):
                args, kwargs = _with_devices(args, mapping), _with_devices(kwargs, mapping)
            if mapping.target.dtype is not None and torch_adapter.is_validate_outputs(node.target):
                args = torch_adapter.with_output_dtypes(args, mapping.dtype)
            if args is not node.args:
                arguments[node] = args, kwargs
        return cls(arguments, attributes)

    def arguments_of(self, node: torch.fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a node there."""
        return self.arguments.get(node) or (node.args, node.kwargs)

    def apply(self, graph: torch.fx.GraphModule) -> None:
        """Give a copy of the graph the attributes that it has there."""
        for target, value in self.attributes.items():
            _set_attribute(graph, target, value)


NO_CHANGES = GraphChanges()


def _retargeted_graph(graph: torch.fx.GraphModule, mapping: DeviceDtypeMap) -> torch.fx.GraphModule:
    """A copy of a graph, with what differs at a target."""
    changes = GraphChanges.for_target(graph, mapping)
    copy = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.graph.nodes:
        copies[node] = copied = copy.node_copy(node, copies.__getitem__)
        if node in changes.arguments:
            copied.args, copied.kwargs = torch.fx.map_arg(changes.arguments[node], copies.__getitem__)
    module = torch.fx.GraphModule(graph, copy)
    changes.apply(module)
    return module


def _has_device(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_device, value))
    if isinstance(value, dict):
        return any(map(_has_device, value.values()))
    return isinstance(value, torch.device)


def _with_devices(value: Any, mapping: DeviceDtypeMap) -> Any:
    """Arguments of a node with every device in them rewritten."""
    if isinstance(value, torch.device):
        return mapping.device(value)
    if isinstance(value, list | tuple):
        items = [_with_devices(item, mapping) for item in value]
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: _with_devices(item, mapping) for key, item in value.items()}
    return value


def _set_attribute(root: torch.nn.Module, path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        root = getattr(root, parent)
    setattr(root, name, value)


def _moved_attribute(value: Any, mapping: DeviceDtypeMap) -> Any:
    if isinstance(value, torch.fx.GraphModule):
        return _retargeted_graph(value, mapping)
    return mapping.tensor(value) if isinstance(value, torch.Tensor) else value
