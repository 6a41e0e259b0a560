"""Traces a captured backward down to a graph of aten ops.

lower ── _Tracing: interprets the captured graph on stand-ins, while PyTorch's tracer records each op
  ├─ explain_lowering_error: the error of a trace that failed, with the reason
  ├─ GraphAssembler: a graph of its own with plain names; inputs that the backward writes to are copied first
  └─ Lowered
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.model import AutogradNode, CaptureRecord
from cabw_viz.record.options import HookPolicy
from cabw_viz.replay.interpreter import GradientCollector, leaf_gradients
from cabw_viz.replay.lowering.assembling import KEPT, GraphAssembler
from cabw_viz.replay.lowering.guards import Expected, Guards
from cabw_viz.replay.lowering.lowered import META, Lowered, Origin, Parts
from cabw_viz.replay.lowering.python_constants import python_constants
from cabw_viz.replay.lowering.signature import Slot, slots, with_values
from cabw_viz.replay.lowering.symbolic_trace import StandIn, SymbolicTrace, no_nested_accumulation
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.replay.progress import Progress
from cabw_viz.replay.replay import Replay
from cabw_viz.replay.user_state.guard import unchanged_user_state
from cabw_viz.runtime.capture_state import Arguments, Captured


def lower(captured: Captured, *, hooks: HookPolicy = "run", symbolic: bool = True, tied: bool = True) -> Lowered:
    """Trace a captured graph down to aten ops; no kernel runs, nothing is written.

    Args:
        captured: the capture.
        hooks: `run` traces through them: they run once, now, on stand-ins; `drop` leaves them out; `refuse` raises
            if there are any but unpack hooks.
        symbolic: False makes every size a number: quicker, and for ops that insist on numbers.
        tied: what had one shape in the captured call is taken to have one shape.

    Raises:
        CabwError: it cannot be lowered; names the autograd node and the reason.
    """
    graph = Replay(captured, hooks=hooks).graph
    record, arguments = graph.record, graph.arguments
    inputs = slots(record, arguments)
    _check_inputs(inputs)
    trace = SymbolicTrace(symbolic=symbolic, tied=tied)
    stand_ins = [_stand_in(trace, slot, tied=tied) for slot in inputs]
    tracing = _Tracing(graph)
    indices: list[int] = []

    def backward(*values: Any) -> list[Any]:
        gradients = tracing.gradients(
            _with_requires_grad(arguments, with_values(arguments, inputs, _merged(stand_ins, values)))
        )
        indices[:] = gradients
        return list(gradients.values())

    symbols = [each.value for each in stand_ins if _is_traced(each.value)]
    with (
        unchanged_user_state(captured.state.users, record),
        graph.thread_state.restored(),
        torch_adapter.compiled_autograd_off(),
        graph.recomputation.running(),
        no_nested_accumulation(nested_backward_error),
        Progress(len(record.graph_nodes), "lowering") as tracing.progress,
    ):
        try:
            traced = trace.run(backward, symbols)
        except Exception as error:
            raise explain_lowering_error(tracing.location(), error, symbolic=symbolic) from error
    _check_leaves(captured, indices)
    names = [slot.name for slot, each in zip(inputs, stand_ins, strict=True) if _is_traced(each.value)]
    assembler = GraphAssembler(traced, names, inputs)
    guards = Guards(tuple(map(_expected, inputs, stand_ins)), trace.guards, tied and symbolic)
    leaves = tuple(record.leaves[index].label for index in indices)
    constants = assembler.constants()
    parts = Parts(leaves, tuple(indices), guards, constants, python_constants(captured), Origin(captured))
    return Lowered(traced, assembler.graph, parts)


def _with_requires_grad(original: Arguments, stand_ins: Arguments) -> Arguments:
    """The stand-ins, with `requires_grad` as their tensors have it.

    Some formulas read it from a saved tensor, and leave out gradients that are then not needed (linalg_solve_backward,
    linalg_lstsq_backward in torch/csrc/autograd/FunctionsManual.cpp).
    """
    for tensor, stand_in in zip(original.inputs, stand_ins.inputs, strict=True):
        if isinstance(stand_in, torch.Tensor) and stand_in is not tensor and tensor.requires_grad:
            stand_in.requires_grad_()
    return stand_ins


NUMBERS_ALONE = "isIntList()"
"""What PyTorch says where C++ unpacks a node's arguments and takes no symbolic sizes (UpsampleBilinear2DBackward0)."""


def _is_traced(value: Any) -> bool:
    return isinstance(value, torch.Tensor | torch.SymInt)


def _merged(stand_ins: Sequence[StandIn], values: Sequence[Any]) -> list[Any]:
    """The traced values, and between them the numbers that are not traced."""
    rest = iter(values)
    return [next(rest) if _is_traced(each.value) else each.value for each in stand_ins]


def _stand_in(trace: SymbolicTrace, slot: Slot, *, tied: bool) -> StandIn:
    if not isinstance(slot.value, torch.Tensor):
        return trace.size(slot.value, slot.name, slot.place, fixed=slot.fixed and tied)
    try:
        return trace.tensor(slot.value, slot.name, fixed=slot.fixed)
    except Exception as error:
        raise CabwError(
            f"this backward cannot be lowered: {slot.name} ({slot.label}) has no stand-in: {type(error).__name__}: "
            f"{error}",
            expected="plain tensors",
            try_="cap.replay(), which runs on the tensors as they are",
        ) from error


def _expected(slot: Slot, stand_in: StandIn) -> Expected:
    if not isinstance(slot.value, torch.Tensor):
        return Expected(slot.name, slot.label, value=stand_in.text)
    tensor = slot.value
    return Expected(slot.name, slot.label, stand_in.shape, stand_in.strides, tensor.dtype, tensor.device)


def _check_inputs(inputs: Sequence[Slot]) -> None:
    for slot in inputs:
        if torch_adapter.is_wrapper_subclass(slot.value):
            raise CabwError(
                f"this backward cannot be lowered: {slot.name} ({slot.label}) is a {type(slot.value).__name__}, whose "
                "class decides what each op does",
                expected="plain tensors",
                try_="cap.replay(), which runs on the tensors as they are",
            )


def _check_leaves(captured: Captured, indices: Sequence[int]) -> None:
    """Refuse a trace that lacks a gradient that your own run had: a formula went another way on stand-ins."""
    leaves = captured.record.leaves
    lost = [leaves[index].label for index in captured.state.reference if index not in indices]
    if lost:
        raise CabwError(
            f"this backward cannot be lowered: on stand-ins nothing flows to {', '.join(lost)}",
            expected="the gradients of your own run",
            try_="cap.replay(), which runs on real tensors",
        )


# -- the trace -----------------------------------------------------------------------------------------------


class _Tracing(GradientCollector):
    """Interprets a captured graph on stand-ins.

    run_node   the ops that the tracer recorded meanwhile get the autograd node, module and line in their `meta`
    └─ GradientCollector   as in a replay
    """

    def __init__(self, graph: PlacedGraph) -> None:
        super().__init__(graph)
        self._metas: dict[int | None, dict[str, Any]] = {}

    def gradients(self, arguments: Arguments) -> dict[int, Any]:
        """Gradients by index of the leaf."""
        returned = self.run(*replace(self.placed, arguments=arguments).call_args)
        return leaf_gradients(self.record, self.collected, returned)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one node of the captured graph."""
        recorded = torch_adapter.active_fx_tracer().graph
        last = next(iter(reversed(recorded.nodes)), None)
        result = super().run_node(n)
        row = self.rows[n.name]
        for node in reversed(recorded.nodes):
            if node is last:
                break
            if row.autograd_node is not None:
                node.meta.update(self._meta(row.autograd_node))
                node.meta[META] = {**node.meta[META], "graph_node": row.ordinal}
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call; sizes of a node that takes numbers alone are numbers from here on, with guards."""
        try:
            return super().call_function(target, args, kwargs)
        except RuntimeError as error:
            if NUMBERS_ALONE not in str(error):
                raise
        return super().call_function(target, *torch_adapter.with_concrete_sizes((args, kwargs)))

    def _kept(self, gradient: Any) -> Any:
        kept = super()._kept(gradient)
        if kept is not gradient:
            copy = next(iter(reversed(torch_adapter.active_fx_tracer().graph.nodes)))
            copy.meta[KEPT] = True
        return kept

    def _meta(self, number: int) -> dict[str, Any]:
        if number not in self._metas:
            self._metas[number] = _meta(self.record, self.record.by_number[number])
        return self._metas[number]


def _meta(record: CaptureRecord, node: AutogradNode) -> dict[str, Any]:
    """The `meta` of the ops of an autograd node."""
    call = f"{node.name} (NodeCall {node.number})"
    where = ""
    if node.line is not None:
        where = f'  File "{node.line.file}", line {node.line.line}, in forward\n    {node.line.text}\n'
    meta: dict[str, Any] = {
        META: {
            "autograd_node": node.number,
            "name": record.label(node),
            "module": node.module,
            "module_class": node.module_class,
            "visit": node.visit,
            "line": str(node.line) if node.line is not None else "",
        },
        "stack_trace": f"{where}{call}",
    }
    if node.module_class:
        meta["nn_module_stack"] = {node.module: (node.module, node.module_class)}
    return meta


# -- why a backward cannot be lowered ---------------------------------------------------------------------------


COMPILED = "symbolically trace a dynamo-optimized function"
"""In the message of Dynamo's error for a compiled function that is called in a trace."""

LEAVES_TORCH = (
    "not supported for tensor subclasses",  # .numpy(), .tolist()
    "data pointer",
    "does not have storage",
    "doesn't have storage",
)
"""In the messages of PyTorch's errors for reading the memory of a stand-in."""


def nested_backward_error() -> CabwError:
    """The error for a backward that starts another one, which accumulates."""
    return CabwError(
        "a backward of its own accumulates into .grad (a reentrant checkpoint does)",
        expected="nothing but gradients that are returned",
        try_="torch.utils.checkpoint(..., use_reentrant=False)",
    )


def explain_lowering_error(place: str, error: Exception, *, symbolic: bool) -> CabwError:
    """The error of a trace that failed: at which autograd node, and why."""
    head = f"this backward cannot be lowered: {place}"
    text = str(error)
    if isinstance(error, CabwError):
        return CabwError(f"{head}: {error.seen}", expected=error.expected, try_=error.try_)
    if isinstance(error, torch_adapter.UNTRACEABLE) or "data-dependent" in text:
        return CabwError(
            f"{head} reads a tensor's values, on which the graph would depend ({_first_line(error)})",
            expected="ops whose shapes and Python code do not depend on values",
            try_='hooks="drop" where it is a hook; cap.replay(), which runs on real tensors',
        )
    if isinstance(error, torch_adapter.NO_FAKE_KERNEL):
        return CabwError(
            f"{head} calls {_first_line(error)}, an op that has no fake kernel",
            expected="ops that compute their outputs' shapes without values",
            try_="torch.library.register_fake for an op of your own",
        )
    if COMPILED in text:
        return CabwError(
            f"{head} calls a compiled function, whose kernels cannot be traced",
            expected="backwards that run ops; the backward of a compiled region is lowered as its graph",
            try_='hooks="drop" where it is a hook; a checkpoint around code that is not compiled',
        )
    if any(word in text for word in LEAVES_TORCH):
        return CabwError(
            f"{head} leaves torch: {type(error).__name__}: {_first_line(error)}",
            expected="code that computes with torch's ops alone",
            try_='hooks="drop" where it is a hook; torch.library.custom_op around code that uses numpy or pointers',
        )
    if symbolic and "symbolic" in text:
        return CabwError(
            f"{head} takes sizes only as numbers: {type(error).__name__}: {_first_line(error)}",
            expected="ops that take symbolic sizes",
            try_="cap.lower(symbolic=False), for the captured sizes alone",
        )
    return CabwError(
        f"{head} raised {type(error).__name__} on stand-ins: {text}",
        expected="a graph that PyTorch can run again, and code in it that takes stand-ins for tensors",
        try_="cap.replay(), which runs on real tensors: where it fails too, it is not the lowering",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
