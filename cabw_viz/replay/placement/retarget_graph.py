"""A copy of a captured graph with the device and dtype constants of a target."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.replay.placement.device_dtype_map import DeviceDtypeMap


def retargeted_graph(graph: torch.fx.GraphModule, mapping: DeviceDtypeMap) -> torch.fx.GraphModule:
    """A copy of a graph for a target: its nodes have the same names, in the same order.

    Devices are rewritten wherever they stand, dtypes in `validate_outputs`, whose arguments have a known layout.
    Other dtypes are left to `RetargetMode`: in the graph they are plain numbers, as sizes are. Tensors and inner graphs
    that are attributes of the module move too.
    """
    root = torch.nn.Module()
    copy = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.graph.nodes:
        copied = copy.node_copy(node, copies.__getitem__)
        copies[node] = copied
        if node.op in ("get_attr", "call_module"):
            _set_attribute(root, str(node.target), _moved_attribute(_attribute(graph, str(node.target)), mapping))
        elif _has_device(node.args) or _has_device(node.kwargs):
            copied.args = _with_devices(copied.args, mapping)
            copied.kwargs = _with_devices(copied.kwargs, mapping)
        if torch_adapter.is_validate_outputs(node.target):
            copied.args = torch_adapter.with_output_dtypes(copied.args, mapping.dtype)
    return torch.fx.GraphModule(root, copy)


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


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _set_attribute(root: torch.nn.Module, path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        if not hasattr(root, parent):
            setattr(root, parent, torch.nn.Module())
        root = getattr(root, parent)
    setattr(root, name, value)


def _moved_attribute(value: Any, mapping: DeviceDtypeMap) -> Any:
    if isinstance(value, torch.fx.GraphModule):
        return retargeted_graph(value, mapping)
    return mapping.tensor(value) if isinstance(value, torch.Tensor) else value
