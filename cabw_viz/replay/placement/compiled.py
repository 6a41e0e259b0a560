"""A captured graph through a compiler, as compiled autograd itself would put it there.

The graph is copied with its accumulations turned into outputs, so that nothing is written, and with its sizes as plain
numbers, as `torch.compile` itself takes the first sizes that it sees; with symbols, compiling takes many times as long.
Saved tensors that hooks have packed are unpacked before (`unpacking.py`).
The copy goes to `torch.compile` (where the backend is one of its own) or to the backend itself, if that is a compiler.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.replay.hook_policy import is_left_out
from cabw_viz.replay.placement.decompositions import way_around
from cabw_viz.replay.placement.device_dtype_map import is_out_of_memory
from cabw_viz.replay.placement.engine_rules import accumulations_to_copy, copy_of_gradient, sum_of_gradients
from cabw_viz.replay.placement.inductor_random import draw_as_inductor
from cabw_viz.replay.placement.out_of_memory import oom_as_cabw_error
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.replay.placement.target import Target
from cabw_viz.replay.placement.unpacking import unpack_first

REASON_LENGTH = 600
"""Characters of a compiler's explanation that are kept."""


@dataclass(frozen=True)
class CompiledRun:
    """Results of a compiled graph."""

    collected: dict[int, Any]
    """Gradients by number of the autograd node that takes them in."""
    returned: list[Any]
    """What `torch.autograd.grad` returns."""
    graph_count: int | None
    """How many graphs `torch.compile` made of it; None where it was not asked."""
    values: dict[str, Any] = field(default_factory=dict)
    """Of the graph nodes that are observed, by name."""


@dataclass(frozen=True)
class Observation:
    """Graph nodes whose values a compiled graph returns too."""

    names: frozenset[str] = frozenset()
    at_calls: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """For each node that calls an autograd node: a name for each gradient that it takes, and that gradient's node. The
    value is copied right before the call, and those of `names` where they are made: code of the user's may write to
    them later. Empty where there is no such code; then nothing is copied."""


NOTHING = Observation()


def run_compiled(placed: PlacedGraph, target: Target, observation: Observation = NOTHING) -> CompiledRun:
    """Compile a graph, and run it once.

    Args:
        placed: the graph.
        target: where it is placed, with a backend that is not `eager`.
        observation: graph nodes whose values are wanted too.

    Raises:
        CabwError: the backend cannot compile it, or what it made raises; names the backend and gives its reason.
    """
    graph, names, numbers = gradients_as_outputs(placed, observation)
    if target.backend != "inductor":
        draw_as_inductor(graph)
    with (
        oom_as_cabw_error(lambda: f"the graph that {target.backend_name} compiled was running", target.device),
        placed.execution_context(),
    ):
        inputs, *rest = placed.call_args
        inputs += unpack_first(graph, placed.arguments)
        with torch_adapter.compiling():
            outputs, graphs = _outputs(graph, placed, target, (inputs, *rest))
    count = len(outputs) - len(numbers) - len(names)
    returned, added = outputs[:count], outputs[count:]
    values = dict(zip(names, added[: len(names)], strict=True))
    return CompiledRun(dict(zip(numbers, added[len(names) :], strict=True)), returned, graphs, values)


def _outputs(
    graph: torch.fx.GraphModule, placed: PlacedGraph, target: Target, call_args: tuple[Any, ...]
) -> tuple[list[Any], int | None]:
    """What a graph returns once it is compiled, and how many graphs `torch.compile` made of it."""
    try:
        if placed.needs_tracing:
            graph, call_args = _traced(graph, placed, call_args)
        before = torch_adapter.count_of_graphs()
        compiled, by_torch = _compile(graph, target)
        outputs = list(compiled(*call_args))
        return outputs, torch_adapter.count_of_graphs() - before if by_torch else None
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise _failure(target, error) from error
    finally:
        torch_adapter.drop_compiled_code_of(graph)


def _failure(target: Target, error: Exception) -> CabwError:
    if isinstance(error, CabwError):
        return error
    reason = " ".join(str(error).partition("\n\nSet TORCHDYNAMO_VERBOSE")[0].split())
    is_aot_eager = target.backend_name == "aot_eager"
    code_generation = "" if is_aot_eager else '; backend="aot_eager", to tell whether it is code generation'
    way = way_around(reason)
    if len(reason) > REASON_LENGTH:
        reason = f"{reason[:REASON_LENGTH].rpartition(' ')[0]} …"
    return CabwError(
        f"backend {target.backend_name!r} cannot run this graph: {type(error).__name__}: {reason}",
        expected="a graph that it can compile: hooks and custom Functions are Python that a compiler must trace",
        try_=way or 'backend="eager", which interprets the graph' + code_generation,
    )


def gradients_as_outputs(
    placed: PlacedGraph, observation: Observation = NOTHING
) -> tuple[torch.fx.GraphModule, list[str], list[int]]:
    """A copy of a graph that returns the gradients which it would accumulate, behind what it returned before.

    Hooks are left out, gradients summed and copied as by `GradientCollector`.

    Returns:
        The copy; the name of each observed value and the number of the accumulate node of each gradient among the added
        outputs, in order.
    """
    record = placed.record
    copy = torch.fx.Graph()
    copies: dict[torch.fx.Node, Any] = {}
    gradients: dict[int, Any] = {}
    sizes = {size.graph_node: size.value for size in record.sizes}
    kept = accumulations_to_copy(placed)
    values = _NodeValues(observation, copy)
    for node, row in zip(placed.module.graph.nodes, record.graph_nodes, strict=True):
        values.add_at_call(node)
        kind = torch_adapter.hook_type(node.target, node.kwargs)
        if node.target is torch_adapter.call_accumulate_grad or node.target is torch_adapter.call_cpp_tensor_pre_hooks:
            accumulates = node.target is torch_adapter.call_accumulate_grad
            read = torch_adapter.accumulated_gradient if accumulates else torch_adapter.hook_input
            gradient = read(node.args)
            copies[node] = copies[gradient] if isinstance(gradient, torch.fx.Node) else gradient
            if row.name in kept and isinstance(copies[node], torch.fx.Node):
                copies[node] = copy.call_function(copy_of_gradient, (copies[node],))
            if row.autograd_node is not None:
                gradients[row.autograd_node] = copies[node]
        elif kind is not None and is_left_out(record.by_number.get(row.autograd_node or -1), kind, placed.hooks):
            copies[node] = torch.fx.map_arg(torch_adapter.hook_input(node.args), copies.__getitem__)
        elif node.target is torch_adapter.unwrap_size:
            copies[node] = sizes[row.inputs[0]]
        elif node.op == "output":
            returned = torch.fx.map_arg(node.args[0], copies.__getitem__)
            copy.output([*returned, *values.outputs.values(), *gradients.values()])
        elif row.kind == "gradient_sum":
            terms = torch.fx.map_arg(node.args, copies.__getitem__)
            copies[node] = copy.call_function(sum_of_gradients, terms)
        else:
            copies[node] = copied = copy.node_copy(node, copies.__getitem__)
            if node in placed.changes.arguments:
                copied.args, copied.kwargs = torch.fx.map_arg(placed.changes.arguments[node], copies.__getitem__)
        values.add(node, copies.get(node))
    module = torch.fx.GraphModule(placed.module, copy)
    placed.changes.apply(module)
    return module, list(values.outputs), list(gradients)


class _NodeValues:
    """The values of the nodes of an observation, in a graph that is being built."""

    def __init__(self, observation: Observation, graph: torch.fx.Graph) -> None:
        self._observation, self._graph = observation, graph
        self._by_name: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}

    def add(self, node: torch.fx.Node, value: Any) -> None:
        """Add the value of a node that has just been built, if it is to be returned."""
        self._by_name[node.name] = value
        if node.name in self._observation.names:
            self.outputs[node.name] = self._copied(value) if self._observation.at_calls else value

    def add_at_call(self, node: torch.fx.Node) -> None:
        """Add what a node takes that is about to be built."""
        for site, name in self._observation.at_calls.get(node.name, ()):
            self.outputs[site] = self._copied(self._by_name[name])

    def _copied(self, value: Any) -> Any:
        return self._graph.call_function(copy_of_gradient, (value,)) if isinstance(value, torch.fx.Node) else value


def _compile(graph: torch.fx.GraphModule, target: Target) -> tuple[Callable[..., Any], bool]:
    """The compiled graph, and whether torch.compile made it.

    A callable that takes one argument is a compiler function, as compiled autograd takes it; one that takes the example
    inputs too is a backend of torch.compile.
    """
    if callable(target.backend) and not _takes_inputs(target.backend):
        return target.backend(graph), False
    return torch.compile(graph, backend=target.backend), True


def _takes_inputs(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable in C
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty and p.kind in positional for p in parameters) >= 2


def _traced(
    graph: torch.fx.GraphModule, placed: PlacedGraph, call_args: tuple[Any, ...]
) -> tuple[torch.fx.GraphModule, tuple[Any, ...]]:
    """A graph of operators alone, as they are called at the target, and its inputs."""
    assert placed.mode is not None  # or nothing would need tracing
    inputs, *rest = call_args
    indices = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]

    def flat(*tensors: torch.Tensor) -> list[Any]:
        values = list(inputs)
        for i, tensor in zip(indices, tensors, strict=True):
            values[i] = tensor
        return list(torch.fx.Interpreter(graph).run(values, *rest))

    tensors = [inputs[i] for i in indices]
    return torch_adapter.operators_of(flat, tensors, placed.mode), tuple(tensors)
