"""Reads a traced graph and the autograd nodes of its call into records."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.record.changed import changed
from cabw_viz.record.kinds import AutogradKind, GraphKind
from cabw_viz.record.model import AutogradNode, Edge, GraphNode, Hook, Leaf, LiftedInput, LiftedSize
from cabw_viz.runtime.capture_state import Arguments
from cabw_viz.runtime.fx_text import arguments_text
from cabw_viz.runtime.stack_frames import source_location
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes
from cabw_viz.tracing.tracer import TraceNotes

LIFTED: dict[str, GraphKind] = {
    "inputs": "lifted_input",
    "sizes": "lifted_size",
    "scalars": "lifted_scalar",
    "hooks": "lifted_object",
    "packed_data": "lifted_object",
}
TARGETS: dict[Any, tuple[GraphKind, str]] = {
    torch_adapter.unwrap_size: ("lifted_size", "unwrap_size"),
    torch_adapter.call_accumulate_grad: ("accumulate_grad", "accumulate_grad"),
    torch_adapter.call_backward: ("backward_call", "call_backward"),
    torch_adapter.call_hook: ("hook", "call_hook"),
    torch_adapter.call_cpp_tensor_pre_hooks: ("hook", "call_cpp_tensor_pre_hooks"),
    torch_adapter.copy_slices_prologue: ("copy_slices_prologue", "copy_slices_prologue"),
    torch_adapter.copy_slices_epilogue: ("copy_slices_epilogue", "copy_slices_epilogue"),
    torch_adapter.final_callbacks: ("final_callbacks", "final_callbacks"),
    torch.add: ("gradient_sum", "torch.add"),
    operator.getitem: ("getitem", "getitem"),
}
AOT_NAME = re.compile(r"^aot(\d+)_")


# -- the autograd side ---------------------------------------------------------------------------------------


def autograd_nodes(numbering: NumberedNodes) -> tuple[AutogradNode, ...]:
    """The autograd nodes of a call, without graph nodes, hooks and leaves."""
    made = [None if node is ROOT else torch_adapter.sequence_number_of(node) for node in numbering.nodes]
    orders = {number: order for order, number in enumerate(sorted({number for number in made if number is not None}))}
    nodes = (_autograd_node(numbering, number, node) for number, node in enumerate(numbering.nodes))
    return tuple(
        node if number is None else replace(node, order=orders[number])
        for node, number in zip(nodes, made, strict=True)
    )


def _autograd_node(numbering: NumberedNodes, number: int, node: Any) -> AutogradNode:
    edges = tuple(Edge(*edge) for edge in numbering.edges(number))
    if node is ROOT:
        return AutogradNode(0, "GraphRoot", "graph_root", 0, len(numbering.roots), edges)
    name = torch_adapter.name_of_node(node)
    inputs = torch_adapter.input_count(node)
    return AutogradNode(number, name, autograd_kind(node, name), inputs, len(numbering.targets(node)), edges)


def autograd_kind(node: Any, name: str) -> AutogradKind:
    """The kind of an autograd node."""
    if name == "AccumulateGrad":
        return "accumulate_grad"
    if name == "CopySlices":
        return "copy_slices"
    if torch_adapter.is_aot_backward(node):
        return "aot_backward"
    if torch_adapter.is_python_function(node):
        return "custom_function"
    return "cpp_function" if name.startswith("CppNode") else "builtin"


# -- the graph side ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadGraph:
    """The nodes of a traced graph by ordinal: as records, and themselves."""

    nodes: tuple[GraphNode, ...]
    fx_nodes: tuple[torch.fx.Node, ...]


def read_graph(
    graph: torch.fx.Graph, kinds: Mapping[int, AutogradKind], pasted: Mapping[torch.fx.Node, int]
) -> ReadGraph:
    """Read a traced graph.

    Args:
        graph: as compiled autograd passes it to a compiler, or as far as a failed trace came.
        kinds: kind of each autograd node by number.
        pasted: NodeCall number of the graph nodes whose stack traces do not name their NodeCall.
    """
    fx_nodes = tuple(graph.nodes)
    ordinals = {node: i for i, node in enumerate(fx_nodes)}
    names = _stable_names(fx_nodes)
    rows = []
    for ordinal, node in enumerate(fx_nodes):
        number = pasted.get(node)
        if number is None and (call := node_call(node)) is not None:
            number = call[0]
        kind, target = _classify(node, kinds.get(number) if number is not None else None)
        if kind in ("lifted_input", "lifted_size", "lifted_scalar", "lifted_object", "output"):
            number = None
        rows.append(
            GraphNode(
                ordinal,
                names[node],
                node.op,
                target,
                _render_call(node, names),
                kind,
                tuple(ordinals[used] for used in node.all_input_nodes),
                tuple(sorted(ordinals[user] for user in node.users if user in ordinals)),
                number,
            )
        )
    return ReadGraph(tuple(rows), fx_nodes)


def node_call(node: torch.fx.Node) -> tuple[int, str] | None:
    """Number and name of the NodeCall that a graph node was made in, from the last line of its stack trace."""
    trace = node.meta.get("stack_trace")
    return _node_call(trace) if trace else None


@lru_cache(maxsize=64)  # the graph nodes of one NodeCall share one text, and follow one another
def _node_call(trace: str) -> tuple[int, str] | None:
    match = torch_adapter.NODE_CALL.search(trace.rstrip().rpartition("\n")[2])
    return (int(match[2]), match[1].strip()) if match else None


def _stable_names(nodes: Iterable[torch.fx.Node]) -> dict[torch.fx.Node, str]:
    """Names with the process-wide numbers of compiled regions counted from 0 in this graph."""
    regions: dict[str, int] = {}

    def stable(name: str) -> str:
        match = AOT_NAME.match(name)
        if not match:
            return name
        number = regions.setdefault(match[1], len(regions))
        return f"aot{number}_{name[match.end() :]}"

    return {node: stable(node.name) for node in nodes}


def _classify(node: torch.fx.Node, autograd: AutogradKind | None) -> tuple[GraphKind, str]:
    """Kind of a graph node and its target as text."""
    if node.op == "placeholder":
        return "placeholder", str(node.target)
    if node.op == "output":
        return "output", "output"
    target = node.target
    known = TARGETS.get(target) if callable(target) else None
    if known is not None:
        kind, text = known
        if kind == "getitem" and (source := _placeholder(node.args[0])):
            return LIFTED[source], text
        if kind == "hook" and node.kwargs.get("hook_type") == "unpack_hook":
            return "unpack_hook", text
        return kind, text
    if torch_adapter.is_validate_outputs(target):
        return "validate_outputs", "ops.validate_outputs"
    name = torch_adapter.op_name(target)
    if name is not None:
        return "backward_call", f"ops.{name}"
    return "aot_op" if autograd == "aot_backward" else "other", _target_text(target)


def _placeholder(source: Any) -> str | None:
    return str(source.target) if isinstance(source, torch.fx.Node) and source.op == "placeholder" else None


def _target_text(target: Any) -> str:
    if isinstance(target, str):
        return target
    if torch_adapter.is_operator(target):
        return str(target)
    return str(getattr(target, "__name__", type(target).__name__))


# -- arguments as text ---------------------------------------------------------------------------------------


def _render_call(node: torch.fx.Node, names: Mapping[torch.fx.Node, str]) -> str:
    if node.op in ("placeholder", "get_attr"):
        return ""
    if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):  # four in five nodes
        return f"({names[node.args[0]]}, {node.args[1]})"
    return arguments_text(node, names)


# -- both sides -----------------------------------------------------------------------------------


def lifted_inputs(
    graph: ReadGraph, notes: TraceNotes, arguments: Arguments | None, names_of: Callable[[Any], tuple[str, ...]]
) -> tuple[LiftedInput, ...]:
    """The graph's tensor inputs, described from the real tensors."""
    rows = []
    for index, ordinal in _lifted(graph, "inputs"):
        origin = notes.input_origins[index] if index < len(notes.input_origins) else None
        tensor = arguments.inputs[index] if arguments is not None else None
        rows.append(LiftedInput(index, ordinal, **_describe_tensor(tensor, names_of), autograd_node=origin))
    return tuple(rows)


def _describe_tensor(tensor: Any, names_of: Callable[[Any], tuple[str, ...]]) -> dict[str, Any]:
    """The fields of a `LiftedInput` that describe its tensor; empty where the trace failed before there was one."""
    if not isinstance(tensor, torch.Tensor):
        return {"shape": (), "dtype": "", "device": "", "layout": ""}
    base = torch_adapter.base_of(tensor)
    return {
        "shape": torch_adapter.shape_of(tensor),
        "dtype": str(tensor.dtype),
        "device": str(tensor.device),
        "layout": str(tensor.layout),
        "names": names_of(tensor),
        "view_of": () if base is None else names_of(base),
    }


def lifted_sizes(graph: ReadGraph, notes: TraceNotes, arguments: Arguments | None) -> tuple[LiftedSize, ...]:
    """The graph's integer inputs with their values in this call."""
    values = arguments.size_values if arguments is not None else None
    rows = []
    for index, ordinal in _lifted(graph, "sizes"):
        position = notes.used_sizes[index] if index < len(notes.used_sizes) else None
        has_origin = position is not None and position < len(notes.size_origins)
        origin = notes.size_origins[position] if has_origin and position is not None else None
        rows.append(LiftedSize(index, ordinal, values[index] if values is not None else 0, origin))
    return tuple(rows)


def _lifted(graph: ReadGraph, source: str) -> list[tuple[int, int]]:
    """(index, ordinal) of the graph nodes that take items from a placeholder, by index."""
    return sorted(
        (node.args[1], ordinal)
        for ordinal, node in enumerate(graph.fx_nodes)
        if node.target is operator.getitem and _placeholder(node.args[0]) == source and isinstance(node.args[1], int)
    )


def with_leaves(nodes: Sequence[AutogradNode], leaves: Sequence[Leaf]) -> tuple[AutogradNode, ...]:
    """Autograd nodes, of which those that accumulate have their leaves."""
    leaf_of = {leaf.autograd_node: i for i, leaf in enumerate(leaves)}
    return tuple(
        changed(node, leaf=leaf_of.get(node.number)) if node.kind == "accumulate_grad" else node for node in nodes
    )


def complete_nodes(
    nodes: Sequence[AutogradNode],
    graph: ReadGraph,
    leaves: Sequence[Leaf],
    hooks: Sequence[Any] | None,
    hooked: Mapping[torch.fx.Node, int],
) -> tuple[AutogradNode, ...]:
    """Autograd nodes with their graph nodes, hooks and leaves.

    Args:
        nodes: as `autograd_nodes` returns them.
        graph: the traced graph.
        leaves: of the call.
        hooks: the functions that the graph gets as arguments; None where there are no arguments.
        hooked: for graph nodes that call hooks on tensors, which of their autograd node's gradients the hooks see.
    """
    graph_nodes_of: dict[int, list[int]] = {}
    hooks_of: dict[int, list[Hook]] = {}
    frameworks: dict[int, str] = {}
    for row in graph.nodes:
        if row.autograd_node is None:
            continue
        graph_nodes_of.setdefault(row.autograd_node, []).append(row.ordinal)
        if row.kind in ("hook", "unpack_hook"):
            call = graph.fx_nodes[row.ordinal]
            hook = replace(_hook(call, row.ordinal, hooks), input=hooked.get(call))
            hooks_of.setdefault(row.autograd_node, []).append(hook)
        elif graph.fx_nodes[row.ordinal].target is torch_adapter.call_backward:
            frameworks[row.autograd_node] = _framework(_lifted_object(graph.fx_nodes[row.ordinal], hooks))
    leaf_of = {leaf.autograd_node: i for i, leaf in enumerate(leaves)}
    return tuple(
        replace(
            node,
            leaf=leaf_of.get(node.number) if node.kind == "accumulate_grad" else None,
            hooks=tuple(hooks_of.get(node.number, ())),
            graph_nodes=tuple(graph_nodes_of.get(node.number, ())),
            aot_graph=_aot_graph(node, [graph.nodes[i].name for i in graph_nodes_of.get(node.number, ())]),
            framework=frameworks.get(node.number, ""),
        )
        for node in nodes
    )


def _aot_graph(node: AutogradNode, names: Iterable[str]) -> int | None:
    """Number of the compiled region whose backward a node is, from the names of its graph nodes."""
    matches = (AOT_NAME.match(name) for name in names if node.kind == "aot_backward")
    return next((int(match[1]) for match in matches if match), None)


def _hook(node: torch.fx.Node, ordinal: int, hooks: Sequence[Any] | None) -> Hook:
    if node.target is torch_adapter.call_cpp_tensor_pre_hooks:
        return Hook("cpp_tensor_pre_hook", "<C++>", "", ordinal)
    kind = torch_adapter.hook_type(node.target, node.kwargs)
    assert kind is not None
    function = _lifted_object(node, hooks)
    framework = _framework(function)
    described = function.described if isinstance(function, torch_adapter.FrameworkHook) else function
    return Hook(kind, *describe_function(described), ordinal, framework=framework)


def _lifted_object(node: torch.fx.Node, hooks: Sequence[Any] | None) -> Any:
    """The hook that a graph node calls, or the ctx whose backward it calls; None where that is not known."""
    index = torch_adapter.lifted_index(node.args[0])
    return hooks[index] if hooks is not None and index is not None else None


def _framework(lifted: Any) -> str:
    """The framework that a hook or a ctx belongs to; empty for the user's own."""
    is_framework = isinstance(lifted, torch_adapter.FrameworkHook | torch_adapter.FrameworkContext)
    return lifted.framework if is_framework else ""


def describe_function(function: Any) -> tuple[str, str]:
    """Qualified name of a hook, and the place of its definition."""
    if function is None:
        return "<unknown>", ""
    function = inspect.unwrap(getattr(function, "func", function))
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return name, source_location(code.co_filename, code.co_firstlineno) if code else ""


def disagreement(nodes: Sequence[AutogradNode], graph: ReadGraph) -> str:
    """Where the numbering and the traced graph name an autograd node differently; empty where they agree."""
    expected = {node.number: node.name for node in nodes}
    rows = zip(graph.nodes, graph.fx_nodes, strict=True)
    calls = dict.fromkeys(node_call(node) for row, node in rows if row.autograd_node is not None)
    for number, traced in (call for call in calls if call is not None):
        head, bracket, tail = traced.partition("<")
        name = re.sub(r"\d+$", "", head.rpartition("::")[2]) + bracket + tail
        if re.sub(r"\d+$", "", expected.get(number, "")) != name:
            return f"the tracer calls node {number} {traced}, the autograd graph {expected.get(number, 'nothing')}"
    return ""
