"""Making a graph of aten ops of a captured backward.

lower ── _Tracing: interprets the captured graph on stand-ins, while PyTorch's tracer notes each op
  ├─ refusal: why that did not work, in words
  ├─ Assembling: a graph of its own with plain names; inputs that the backward writes to are copied first
  └─ Lowered
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.model import AutogradNode, CaptureRecord
from cabw_viz.record.options import HookPolicy
from cabw_viz.replay.lowering.assembling import Assembling
from cabw_viz.replay.lowering.guards import Expected, Guards
from cabw_viz.replay.lowering.lowered import META, Lowered, Origin, Parts
from cabw_viz.replay.lowering.lowering_errors import nested, refusal
from cabw_viz.replay.lowering.python_constants import brought
from cabw_viz.replay.lowering.signature import Slot, put_back, slots
from cabw_viz.replay.lowering.symbolic_trace import StandIn, SymbolicTrace, no_nested_accumulation
from cabw_viz.replay.progress import Progress
from cabw_viz.replay.runner import GradientCollector, by_leaf, check_hooks, check_versions, runnable, said
from cabw_viz.runtime.capture_state import Arguments, CaptureState


def lower(
    record: CaptureRecord, live: CaptureState, *, hooks: HookPolicy = "run", symbolic: bool = True, tied: bool = True
) -> Lowered:
    """Trace a captured graph down to aten ops; no kernel runs, nothing is written.

    Args:
        record: the capture.
        live: what it keeps alive.
        hooks: `run` traces through them: they run once, now, on stand-ins; `drop` leaves them out; `refuse` raises
            if there are any but unpack hooks.
        symbolic: False makes every size a number: quicker, and for ops that insist on numbers.
        tied: what had one shape in the captured call is taken to have one shape.

    Raises:
        CabwError: it cannot be lowered; names the autograd node and the reason.
    """
    check_hooks(record, hooks)
    graph, arguments = runnable(record, live)
    check_versions(record, arguments)
    given = slots(record, arguments)
    _check_inputs(given)
    trace = SymbolicTrace(symbolic=symbolic, tied=tied)
    stand_ins = [_stand_in(trace, slot, tied=tied) for slot in given]
    tracing = _Tracing(graph, record, hooks)
    indices: list[int] = []

    def backward(*values: Any) -> list[Any]:
        found = tracing.gradients(_wanting(arguments, put_back(arguments, given, _merged(stand_ins, values))))
        indices[:] = found
        return list(found.values())

    assert live.thread_state is not None  # set together with the arguments
    symbols = [each.value for each in stand_ins if _is_traced(each.value)]
    with (
        live.thread_state.restored(),
        torch_adapter.compiled_autograd_off(),
        no_nested_accumulation(nested),
        Progress(len(record.graph_nodes), "lowering") as tracing.progress,
    ):
        try:
            traced = trace.run(backward, symbols)
        except Exception as error:
            raise refusal(tracing.place(), error, symbolic=symbolic) from error
    _check_leaves(record, live, indices)
    names = [slot.name for slot, each in zip(given, stand_ins, strict=True) if _is_traced(each.value)]
    assembling = Assembling(traced, names, given)
    guards = Guards(tuple(map(_expected, given, stand_ins)), trace.guards, tied and symbolic)
    leaves = tuple(record.leaves[index].label for index in indices)
    parts = Parts(leaves, tuple(indices), guards, assembling.constants(), brought(record, live), Origin(record, live))
    return Lowered(traced, assembling.graph, parts)


def _wanting(original: Arguments, stand_ins: Arguments) -> Arguments:
    """The stand-ins, those of tensors that want a gradient wanting one too.

    Some formulas ask a saved tensor whether it does, and leave out what is then not wanted (linalg_solve_backward,
    linalg_lstsq_backward in torch/csrc/autograd/FunctionsManual.cpp).
    """
    for tensor, stand_in in zip(original.inputs, stand_ins.inputs, strict=True):
        if isinstance(stand_in, torch.Tensor) and stand_in is not tensor and tensor.requires_grad:
            stand_in.requires_grad_()
    return stand_ins


NUMBERS_ALONE = "isIntList()"
"""What PyTorch says where C++ unpacks a node's arguments and takes no symbolic size (UpsampleBilinear2DBackward0)."""


def _is_traced(value: Any) -> bool:
    return isinstance(value, torch.Tensor | torch.SymInt)


def _merged(stand_ins: Sequence[StandIn], values: Sequence[Any]) -> list[Any]:
    """The traced values, and between them the numbers that are none."""
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
            f"{said(error)}",
            expected="plain tensors",
            try_="cap.replay(), which runs on the tensors as they are",
        ) from error


def _expected(slot: Slot, stand_in: StandIn) -> Expected:
    if not isinstance(slot.value, torch.Tensor):
        return Expected(slot.name, slot.label, value=stand_in.text)
    tensor = slot.value
    return Expected(slot.name, slot.label, stand_in.shape, stand_in.strides, tensor.dtype, tensor.device)


def _check_inputs(given: Sequence[Slot]) -> None:
    for slot in given:
        if torch_adapter.is_wrapper_subclass(slot.value):
            raise CabwError(
                f"this backward cannot be lowered: {slot.name} ({slot.label}) is a {type(slot.value).__name__}, whose "
                "class decides what each op does",
                expected="plain tensors",
                try_="cap.replay(), which runs on the tensors as they are",
            )


def _check_leaves(record: CaptureRecord, live: CaptureState, found: Sequence[int]) -> None:
    """Refuse a trace that lacks a gradient that your own run had: a formula went another way on stand-ins."""
    lost = [record.leaves[index].label for index in live.reference if index not in found]
    if lost:
        raise CabwError(
            f"this backward cannot be lowered: on stand-ins nothing flows to {', '.join(lost)}",
            expected="the gradients of your own run",
            try_="cap.replay(), which runs on real tensors",
        )


# -- the trace -----------------------------------------------------------------------------------------------


class _Tracing(GradientCollector):
    """Interprets a captured graph on stand-ins.

    run_node   the ops that were noted meanwhile get the autograd node, module and line in their `meta`
    └─ GradientCollector   as in a replay
    """

    def __init__(self, graph: torch.fx.GraphModule, record: CaptureRecord, hooks: HookPolicy) -> None:
        super().__init__(graph, record, hooks)
        self._metas: dict[int | None, dict[str, Any]] = {}

    def gradients(self, arguments: Arguments) -> dict[int, Any]:
        """Gradients by index of the leaf."""
        given = (list(arguments.inputs), list(arguments.sizes), list(arguments.scalars), arguments.hooks)
        return by_leaf(self.record, self.collected, self.run(*given, arguments.packed_data))

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one node of the captured graph."""
        made = torch_adapter.active_fx_tracer().graph
        last = next(iter(reversed(made.nodes)), None)
        result = super().run_node(n)
        row = self.rows[n.name]
        for node in reversed(made.nodes):
            if node is last:
                break
            if row.autograd_node is not None:
                node.meta.update(self._meta(row.autograd_node))
                node.meta[META] = {**node.meta[META], "graph_node": row.ordinal}
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call; where a node takes numbers alone for its sizes, they are that from here on, and guarded."""
        try:
            return super().call_function(target, args, kwargs)
        except RuntimeError as error:
            if NUMBERS_ALONE not in str(error):
                raise
        return super().call_function(target, *torch_adapter.with_concrete_sizes((args, kwargs)))

    def _meta(self, number: int) -> dict[str, Any]:
        if number not in self._metas:
            self._metas[number] = _meta(self.record, self.record.by_number[number])
        return self._metas[number]


def _meta(record: CaptureRecord, node: AutogradNode) -> dict[str, Any]:
    """What the ops of an autograd node carry."""
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
