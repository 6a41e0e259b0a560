"""Traces a captured backward down to a graph of aten ops.

lower ── Tracing: interprets the captured graph on stand-ins, while PyTorch's tracer records each op
  ├─ explain_lowering_error: the error of a trace that failed, with the reason
  ├─ GraphAssembler: a graph of its own with plain names; inputs that the backward writes to are copied first
  └─ Lowered
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.options import HookPolicy
from cabw_viz.replay.lowering.assembling import GraphAssembler
from cabw_viz.replay.lowering.formulas import nodes_with_other_formulas
from cabw_viz.replay.lowering.guards import Expected, Guards
from cabw_viz.replay.lowering.lowered import Lowered, Origin, Parts
from cabw_viz.replay.lowering.python_constants import python_constants
from cabw_viz.replay.lowering.refusals import explain_lowering_error, nested_backward_error
from cabw_viz.replay.lowering.signature import Slot, slots, with_values
from cabw_viz.replay.lowering.symbolic_trace import StandIn, SymbolicTrace, no_nested_accumulation
from cabw_viz.replay.lowering.tracing import Tracing
from cabw_viz.replay.progress import Progress
from cabw_viz.replay.replay import Replay
from cabw_viz.replay.user_state.guard import unchanged_user_state
from cabw_viz.runtime.capture_state import Arguments, Captured


def lower(captured: Captured, *, hooks: HookPolicy = "run", symbolic: bool = False, tied: bool = True) -> Lowered:
    """Trace a captured graph down to aten ops; no kernel runs, nothing is written.

    Args:
        captured: the capture.
        hooks: `run` traces through them: they run now, on stand-ins, once, and with symbols once more; `drop` leaves
            them out; `refuse` raises if there are any but unpack hooks.
        symbolic: sizes are symbols, so that the graph holds for other sizes; else they are the captured numbers.
        tied: of symbols: what had one shape in the captured call is taken to have one shape.

    Raises:
        CabwError: it cannot be lowered; names the autograd node and the reason.
    """
    # First on sizes that are numbers: code that reads a stand-in's memory raises there. Of one with symbols it gets
    # a null pointer (`TensorImpl::data_ptr_impl_impl` in c10/core/TensorImpl.h takes it for empty): the process ends.
    assembled = _assembled(_Lowering(captured, hooks, symbolic=False, tied=False), works_with_numbers=False)
    if symbolic:
        assembled = _assembled(_Lowering(captured, hooks, symbolic=True, tied=tied), works_with_numbers=True)
    return Lowered(*assembled)  # writes its Python code, which of the first of two nobody would read


def _assembled(lowering: _Lowering, *, works_with_numbers: bool) -> Assembled:
    try:
        return lowering.assembled()
    except Exception as error:
        if lowering.is_refused(error):
            raise
        place, pytorchs = lowering.tracing.location(), lowering.tracing.node_of_pytorchs()
        raise explain_lowering_error(place, error, works_with_numbers=works_with_numbers, pytorchs=pytorchs) from error


Assembled = tuple[torch.fx.GraphModule, torch.fx.Graph, Parts]
"""What holds the attributes of a lowered graph, its nodes, and all else of it."""


class _Lowering:
    """One attempt to trace a captured graph; for the arguments, see `lower`."""

    def __init__(self, captured: Captured, hooks: HookPolicy, *, symbolic: bool, tied: bool) -> None:
        self._captured, self._symbolic, self._tied = captured, symbolic, tied and symbolic
        self._graph = Replay(captured, hooks=hooks).graph
        self._inputs = slots(self._graph.record, self._graph.arguments)
        _check_inputs(self._inputs)
        self._trace = SymbolicTrace(symbolic=symbolic, tied=tied)
        self._stand_ins = [_stand_in(self._trace, slot, tied=tied) for slot in self._inputs]
        self._indices: list[int] = []
        self.tracing = Tracing(self._graph, symbolic=symbolic)

    def is_refused(self, error: Exception) -> bool:
        """Whether an error says all by itself: it is one of ours, and not about the node that the trace is at."""
        return isinstance(error, CabwError) and self.tracing.done

    def assembled(self) -> Assembled:
        """Trace the graph, and assemble what came of it."""
        record = self._graph.record
        with (
            unchanged_user_state(self._captured.state.users, record),
            self._graph.thread_state.restored(),
            torch_adapter.compiled_autograd_off(),
            self._graph.recomputation.running(),
            no_nested_accumulation(nested_backward_error),
            Progress(len(record.graph_nodes), "lowering") as self.tracing.progress,
        ):
            traced = self._trace.run(self._backward, [each.value for each in self._stand_ins if _is_traced(each.value)])
        self.tracing.done = True
        _check_leaves(self._captured, self._indices)
        pairs = list(zip(self._inputs, self._stand_ins, strict=True))
        assembler = GraphAssembler(traced, [slot.name for slot, each in pairs if _is_traced(each.value)], self._inputs)
        guards = Guards(tuple(_expected(*pair) for pair in pairs), self._trace.guards, self._symbolic, self._tied)
        guards.verify([slot.value for slot in self._inputs])
        leaves = tuple(record.leaves[index].label for index in self._indices)
        parts = Parts(
            leaves,
            tuple(self._indices),
            guards,
            assembler.constants(),
            python_constants(self._captured),
            nodes_with_other_formulas(record),
            Origin(self._captured),
        )
        return traced, assembler.graph, parts

    def _backward(self, *values: Any) -> list[Any]:
        arguments = self._graph.arguments
        stand_ins = with_values(arguments, self._inputs, _merged(self._stand_ins, values))
        gradients = self.tracing.gradients(_with_requires_grad(arguments, stand_ins))
        self._indices[:] = gradients
        return list(gradients.values())


def _with_requires_grad(original: Arguments, stand_ins: Arguments) -> Arguments:
    """The stand-ins, with `requires_grad` as their tensors have it.

    Some formulas read it from a saved tensor, and leave out gradients that are then not needed (linalg_solve_backward,
    linalg_lstsq_backward in torch/csrc/autograd/FunctionsManual.cpp).
    """
    for tensor, stand_in in zip(original.inputs, stand_ins.inputs, strict=True):
        if isinstance(stand_in, torch.Tensor) and stand_in is not tensor and tensor.requires_grad:
            stand_in.requires_grad_()
    return stand_ins


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
