"""From a traced graph and the autograd nodes of the call to the record."""

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


def autograd_nodes(walk: NumberedNodes) -> tuple[AutogradNode, ...]:
    """The autograd nodes of a call, without what only the graph knows."""
    return tuple(_autograd_node(walk, number, node) for number, node in enumerate(walk.nodes))


def _autograd_node(walk: NumberedNodes, number: int, node: Any) -> AutogradNode:
    edges = tuple(Edge(*edge) for edge in walk.edges(number))
    if node is ROOT:
        return AutogradNode(0, "GraphRoot", "graph_root", 0, len(walk.roots), edges)
    name = torch_adapter.name_of_node(node)
    inputs = torch_adapter.input_count(node)
    return AutogradNode(number, name, autograd_kind(node, name), inputs, len(node.next_functions), edges)


def autograd_kind(node: Any, name: str) -> AutogradKind:
    """What an autograd node is."""
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
    """A traced graph, read: its nodes as records, and the nodes themselves by ordinal."""

    nodes: tuple[GraphNode, ...]
    fx_nodes: tuple[torch.fx.Node, ...]


def read_graph(
    graph: torch.fx.Graph, kinds: Mapping[int, AutogradKind], pasted: Mapping[torch.fx.Node, int]
) -> ReadGraph:
    """Read a traced graph.

    Args:
        graph: as compiled autograd hands it to a compiler, or as far as a failed trace came.
        kinds: kind of each autograd node by number.
        pasted: NodeCall number of nodes whose stack trace does not tell it.
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


@lru_cache(maxsize=64)  # the nodes of one call share one text, and stand together
def _node_call(trace: str) -> tuple[int, str] | None:
    found = torch_adapter.NODE_CALL.search(trace.rstrip().rpartition("\n")[2])
    return (int(found[2]), found[1].strip()) if found else None


def _stable_names(nodes: Iterable[torch.fx.Node]) -> dict[torch.fx.Node, str]:
    """Names with the process-wide numbers of compiled regions counted from 0 in this graph."""
    regions: dict[str, int] = {}

    def stable(name: str) -> str:
        found = AOT_NAME.match(name)
        if not found:
            return name
        number = regions.setdefault(found[1], len(regions))
        return f"aot{number}_{name[found.end() :]}"

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
    name = torch_adapter.op_name(target)
    if name == "validate_outputs":
        return "validate_outputs", "ops.validate_outputs"
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


# -- putting both together -----------------------------------------------------------------------------------


def lifted_inputs(
    view: ReadGraph, notes: TraceNotes, arguments: Arguments | None, given: Callable[[Any], tuple[str, ...]]
) -> tuple[LiftedInput, ...]:
    """The graph's tensor inputs, described from the real tensors."""
    rows = []
    for index, ordinal in _lifted(view, "inputs"):
        origin = notes.input_origins[index] if index < len(notes.input_origins) else None
        tensor = arguments.inputs[index] if arguments is not None else None
        rows.append(LiftedInput(index, ordinal, **_describe_tensor(tensor, given), autograd_node=origin))
    return tuple(rows)


def _describe_tensor(tensor: Any, names: Callable[[Any], tuple[str, ...]]) -> dict[str, Any]:
    """What a `LiftedInput` says of its tensor; nothing where the trace failed before there was one."""
    if not isinstance(tensor, torch.Tensor):
        return {"shape": (), "dtype": "", "device": "", "layout": ""}
    base = torch_adapter.base_of(tensor)
    return {
        "shape": tuple(tensor.shape),
        "dtype": str(tensor.dtype),
        "device": str(tensor.device),
        "layout": str(tensor.layout),
        "names": names(tensor),
        "view_of": () if base is None else names(base),
    }


def lifted_sizes(view: ReadGraph, notes: TraceNotes, arguments: Arguments | None) -> tuple[LiftedSize, ...]:
    """The graph's integer inputs with their values in this call."""
    rows = []
    values = () if arguments is None else arguments.size_values
    for index, ordinal in _lifted(view, "sizes"):
        before = notes.used_sizes[index] if index < len(notes.used_sizes) else None
        known = before is not None and before < len(notes.size_origins)
        origin = notes.size_origins[before] if known and before is not None else None
        rows.append(LiftedSize(index, ordinal, 0 if arguments is None else values[index], origin))
    return tuple(rows)


def _lifted(view: ReadGraph, source: str) -> list[tuple[int, int]]:
    """(index, ordinal) of the graph nodes that take items from a placeholder, by index."""
    found = []
    for ordinal, node in enumerate(view.fx_nodes):
        if node.target is operator.getitem and _placeholder(node.args[0]) == source and isinstance(node.args[1], int):
            found.append((node.args[1], ordinal))
    return sorted(found)


def complete_nodes(
    nodes: Sequence[AutogradNode],
    view: ReadGraph,
    leaves: Sequence[Leaf],
    hooks: Sequence[Any] | None,
    hooked: Mapping[torch.fx.Node, int],
) -> tuple[AutogradNode, ...]:
    """Autograd nodes with their graph nodes, hooks and leaves filled in; `hooked` says which gradients hooks see."""
    made: dict[int, list[int]] = {}
    for row in view.nodes:
        if row.autograd_node is not None:
            made.setdefault(row.autograd_node, []).append(row.ordinal)
    on_node: dict[int, list[Hook]] = {}
    for row in view.nodes:
        if row.kind in ("hook", "unpack_hook") and row.autograd_node is not None:
            call = view.fx_nodes[row.ordinal]
            hook = replace(_hook(call, row.ordinal, hooks), input=hooked.get(call))
            on_node.setdefault(row.autograd_node, []).append(hook)
    leaf_of = {leaf.autograd_node: i for i, leaf in enumerate(leaves)}
    return tuple(
        replace(
            node,
            leaf=leaf_of.get(node.number) if node.kind == "accumulate_grad" else None,
            hooks=tuple(on_node.get(node.number, ())),
            graph_nodes=tuple(made.get(node.number, ())),
            aot_graph=_aot_graph(node, [view.nodes[i].name for i in made.get(node.number, ())]),
        )
        for node in nodes
    )


def _aot_graph(node: AutogradNode, names: Iterable[str]) -> int | None:
    """Which compiled region a node is the backward of, as the names of its graph nodes tell it."""
    found = (AOT_NAME.match(name) for name in names if node.kind == "aot_backward")
    return next((int(match[1]) for match in found if match), None)


def _hook(node: torch.fx.Node, ordinal: int, hooks: Sequence[Any] | None) -> Hook:
    if node.target is torch_adapter.call_cpp_tensor_pre_hooks:
        return Hook("cpp_tensor_pre_hook", "<C++>", "", ordinal)
    kind = torch_adapter.hook_type(node.target, node.kwargs)
    assert kind is not None
    index = torch_adapter.hook_index(node.args)
    function = hooks[index] if hooks is not None and index is not None else None
    return Hook(kind, *_describe_function(function), ordinal)


def _describe_function(function: Any) -> tuple[str, str]:
    """Qualified name of a hook, and the place of its definition."""
    if function is None:
        return "<unknown>", ""
    function = inspect.unwrap(getattr(function, "func", function))
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return name, source_location(code.co_filename, code.co_firstlineno) if code else ""


def disagreement(nodes: Sequence[AutogradNode], view: ReadGraph) -> str:
    """Where the walk and the traced graph name an autograd node differently; empty where they agree."""
    expected = {node.number: node.name for node in nodes}
    rows = zip(view.nodes, view.fx_nodes, strict=True)
    seen = dict.fromkeys(node_call(node) for row, node in rows if row.autograd_node is not None)
    for number, traced in (call for call in seen if call is not None):
        head, bracket, tail = traced.partition("<")
        name = re.sub(r"\d+$", "", head.rpartition("::")[2]) + bracket + tail
        if re.sub(r"\d+$", "", expected.get(number, "")) != name:
            return f"the tracer calls node {number} {traced}, the autograd graph {expected.get(number, 'nothing')}"
    return ""
