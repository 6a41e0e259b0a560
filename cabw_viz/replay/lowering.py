"""Making a graph of aten ops of a captured backward.

lower ── _Tracing: interprets the captured graph on stand-ins, while PyTorch's tracer notes each op
  ├─ _refusal: why that did not work, in words
  ├─ _Assembling: a graph of its own with plain names; inputs that the backward writes to are copied first
  └─ Lowered
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.live import Arguments, LiveCapture
from cabw_viz.record.model import AutogradNode, CaptureRecord
from cabw_viz.replay.brought import brought
from cabw_viz.replay.guards import Expected, Guards
from cabw_viz.replay.lowered import META, Constant, Lowered, Origin, Parts
from cabw_viz.replay.progress import Progress
from cabw_viz.replay.runner import Collecting, HookPolicy, check_hooks, check_versions, gradients, runnable, said
from cabw_viz.replay.signature import Slot, put_back, slots


def lower(
    record: CaptureRecord, live: LiveCapture, *, hooks: HookPolicy = "run", symbolic: bool = True, tied: bool = True
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
    trace = torch_adapter.SymbolicTrace(symbolic=symbolic, tied=tied)
    stand_ins = [_stand_in(trace, slot, tied=tied) for slot in given]
    tracing = _Tracing(graph, record, hooks)
    indices: list[int] = []

    def backward(*values: Any) -> list[Any]:
        found = tracing.gradients(put_back(arguments, given, _merged(stand_ins, values)))
        indices[:] = found
        return list(found.values())

    assert live.surroundings is not None  # set together with the arguments
    symbols = [each.value for each in stand_ins if _is_traced(each.value)]
    with (
        live.surroundings.restored(),
        torch_adapter.compiled_autograd_off(),
        torch_adapter.no_nested_accumulation(_nested),
        Progress(len(record.graph_nodes), "lowering") as tracing.progress,
    ):
        try:
            traced = trace.run(backward, symbols)
        except Exception as error:
            raise _refusal(tracing, error, symbolic=symbolic) from error
    names = [slot.name for slot, each in zip(given, stand_ins, strict=True) if _is_traced(each.value)]
    assembling = _Assembling(traced, names, given, tracing)
    guards = Guards(tuple(map(_expected, given, stand_ins)), trace.guards, tied and symbolic)
    leaves = tuple(record.leaves[index].label for index in indices)
    parts = Parts(leaves, tuple(indices), guards, assembling.constants(), brought(record, live), Origin(record, live))
    return Lowered(traced, assembling.graph, parts)


def _is_traced(value: Any) -> bool:
    return isinstance(value, torch.Tensor | torch.SymInt)


def _merged(stand_ins: Sequence[torch_adapter.StandIn], values: Sequence[Any]) -> list[Any]:
    """The traced values, and between them the numbers that are none."""
    rest = iter(values)
    return [next(rest) if _is_traced(each.value) else each.value for each in stand_ins]


def _stand_in(trace: torch_adapter.SymbolicTrace, slot: Slot, *, tied: bool) -> torch_adapter.StandIn:
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


def _expected(slot: Slot, stand_in: torch_adapter.StandIn) -> Expected:
    if not isinstance(slot.value, torch.Tensor):
        return Expected(slot.name, slot.label, value=stand_in.text)
    tensor = slot.value
    return Expected(slot.name, slot.label, stand_in.shape, stand_in.strides, tensor.dtype, tensor.device)


def _check_inputs(given: Sequence[Slot]) -> None:
    for slot in given:
        if torch_adapter.is_subclass(slot.value):
            raise CabwError(
                f"this backward cannot be lowered: {slot.name} ({slot.label}) is a {type(slot.value).__name__}, whose "
                "class decides what each op does",
                expected="plain tensors",
                try_="cap.replay(), which runs on the tensors as they are",
            )


# -- the trace -----------------------------------------------------------------------------------------------


class _Tracing(Collecting):
    """Interprets a captured graph on stand-ins.

    run_node   the ops that were noted meanwhile get the autograd node, module and line in their `meta`
    └─ Collecting   as in a replay
    """

    def __init__(self, graph: torch.fx.GraphModule, record: CaptureRecord, hooks: HookPolicy) -> None:
        super().__init__(graph, record, hooks)
        self._metas: dict[int | None, dict[str, Any]] = {}

    def gradients(self, arguments: Arguments) -> dict[int, Any]:
        """Gradients by index of the leaf."""
        given = (list(arguments.inputs), list(arguments.sizes), list(arguments.scalars), arguments.hooks)
        return gradients(self.record, self.collected, self.run(*given, arguments.packed_data))

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one node of the captured graph."""
        made = torch_adapter.tracer_at_work().graph
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
        return super().call_function(target, *torch_adapter.with_numbers((args, kwargs)))

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


# -- refusals ------------------------------------------------------------------------------------------------


def _nested() -> CabwError:
    return CabwError(
        "a backward of its own accumulates into .grad (a reentrant checkpoint does)",
        expected="nothing but gradients that are returned",
        try_="torch.utils.checkpoint(..., use_reentrant=False)",
    )


def _refusal(tracing: _Tracing, error: Exception, *, symbolic: bool) -> CabwError:
    """Why a trace failed, at which autograd node."""
    head = f"this backward cannot be lowered: {tracing.place()}"
    text = said(error)
    if isinstance(error, CabwError):
        return CabwError(f"{head}: {error.seen}", expected=error.expected, try_=error.try_)
    if isinstance(error, torch_adapter.UNTRACEABLE) or "data-dependent" in text:
        return CabwError(
            f"{head} asks for a tensor's values, on which the graph would hang ({_first_line(error)})",
            expected="ops whose shapes and Python code do not hang on values",
            try_='hooks="drop" where it is a hook; cap.replay(), which runs on real tensors',
        )
    if isinstance(error, torch_adapter.NO_STAND_IN):
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
            f"{head} insists on sizes that are numbers: {type(error).__name__}: {_first_line(error)}",
            expected="ops that take symbolic sizes",
            try_="cap.lower(symbolic=False), for the captured sizes alone",
        )
    return CabwError(
        f"{head} raised {type(error).__name__} on stand-ins: {text}",
        expected="a graph that PyTorch can run again, and code in it that takes stand-ins for tensors",
        try_="cap.replay(), which runs on real tensors: where it fails too, it is not the lowering",
    )


COMPILED = "symbolically trace a dynamo-optimized function"
"""What Dynamo says where a compiled function is called in a trace."""

NUMBERS_ALONE = "isIntList()"
"""What PyTorch says where C++ unpacks a node's arguments and takes no symbolic size (UpsampleBilinear2DBackward0)."""

LEAVES_TORCH = (
    "not supported for tensor subclasses",  # .numpy(), .tolist()
    "data pointer",
    "does not have storage",
    "doesn't have storage",
)
"""What PyTorch says where a stand-in is asked for its memory."""


def _first_line(error: Exception) -> str:
    return said(error).strip().partition("\n")[0]


# -- the graph -----------------------------------------------------------------------------------------------


class _Assembling:
    """The lowered graph, made of the traced one."""

    def __init__(
        self, traced: torch.fx.GraphModule, names: Sequence[str], given: Sequence[Slot], tracing: _Tracing
    ) -> None:
        self._traced, self._tracing = traced, tracing
        self.graph = torch.fx.Graph()
        self._made: dict[torch.fx.Node, torch.fx.Node] = {}
        self._check_ops()
        inputs = dict(zip(names, traced.graph.find_nodes(op="placeholder"), strict=True))
        self._inputs(inputs, given)
        self._body()
        self.graph.eliminate_dead_code()

    def constants(self) -> tuple[Constant, ...]:
        """The tensors that the graph holds."""
        found: dict[str, Constant] = {}
        for node in self.graph.find_nodes(op="get_attr"):
            value = getattr(self._traced, str(node.target))
            user = next(iter(node.users), node)
            found.setdefault(
                str(node.target),
                Constant(
                    str(node.target),
                    tuple(value.shape),
                    str(value.dtype),
                    self._label(user),
                    isinstance(value, torch.nn.Parameter),
                    torch_adapter.is_literal(node),
                ),
            )
        return tuple(found.values())

    def _label(self, node: torch.fx.Node) -> str:
        meta = node.meta.get(META)
        return "the graph" if meta is None else f"{meta['name']} (#{meta['autograd_node']})"

    def _check_ops(self) -> None:
        """Refuse what is no op of the dispatcher."""
        for node in self._traced.graph.nodes:
            if node.op in ("placeholder", "output", "get_attr") or node.target is operator.getitem:
                continue
            if torch_adapter.is_aten_call(node.target) or torch_adapter.is_size_arithmetic(node.target):
                continue
            raise CabwError(
                f"this backward cannot be lowered: {self._label(node)} calls {node.target}, which is no aten op",
                expected="ops of the dispatcher; a higher-order op has graphs of its own inside",
                try_="cap.replay(), which runs it as it is",
            )

    def _inputs(self, inputs: dict[str, torch.fx.Node], given: Sequence[Slot]) -> None:
        written = self._written()
        for slot in given:
            node = self.graph.placeholder(slot.name)
            old = inputs.get(slot.name)
            if old is None:
                node.meta["val"] = slot.value
                continue
            node.meta.update({key: value for key, value in old.meta.items() if key in ("val", "tensor_meta")})
            self._made[old] = node
        values = {slot.name: slot.value for slot in given}
        for old, by in written.items():
            self._check_alone(self._made[old].name, values, by)
            copy = self.graph.call_function(torch.ops.aten.clone.default, (self._made[old],))
            copy.meta.update({key: value for key, value in by.meta.items() if key != "tensor_meta"})
            copy.meta["val"] = old.meta.get("val")
            self._made[old] = copy

    def _check_alone(self, name: str, values: dict[str, Any], by: torch.fx.Node) -> None:
        """Refuse a write that another input would see, for each run writes to a copy."""
        for other, value in values.items():
            if other != name and isinstance(value, torch.Tensor) and torch_adapter.share_storage(values[name], value):
                raise CabwError(
                    f"this backward cannot be lowered: {self._label(by)} writes to {name}, and {other} lies in the "
                    "same memory",
                    expected="writes to tensors that no other input is a part of",
                    try_="hooks and Functions that write to copies",
                )

    def _written(self) -> dict[torch.fx.Node, torch.fx.Node]:
        """Inputs that the backward writes to, and the first node that does.

        Raises:
            CabwError: it writes to what is no input and was not made here.
        """
        found: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self._traced.graph.nodes:
            for place, name in torch_adapter.written_arguments(node.target):
                target = node.args[place] if place < len(node.args) else node.kwargs.get(name)
                for each in target if isinstance(target, list | tuple) else (target,):
                    root = _root(each)
                    if root is not None and root.op == "placeholder":
                        found.setdefault(root, node)
                    elif root is not None and root.op == "get_attr" and not torch_adapter.is_literal(root):
                        raise CabwError(
                            f"this backward cannot be lowered: {self._label(node)} writes to a tensor that is none of "
                            f"its inputs ({node.target}): a side effect, which each run of the graph would repeat",
                            expected="hooks and Functions that return what they compute",
                            try_='hooks="drop" where it is a hook',
                        )
        return found

    def _body(self) -> None:
        for node in self._traced.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                results = [self._made[_undetached(each)] for each in node.args[0]]
                self.graph.output(results)
                continue
            self._made[node] = self.graph.node_copy(node, self._made.__getitem__)


def _root(value: Any) -> torch.fx.Node | None:
    """The input, constant or op that a tensor is a view of, or is itself."""
    node = value if isinstance(value, torch.fx.Node) else None
    while node is not None:
        before = torch_adapter.viewed_argument(node) if node.op == "call_function" else None
        if before is None:
            return node
        node = before
    return None


def _undetached(node: torch.fx.Node) -> torch.fx.Node:
    """A result without the `detach` that a replay ends with: the graph has no history anyway."""
    detach = node.target is torch.ops.aten.detach.default and META not in node.meta
    return node.args[0] if detach and isinstance(node.args[0], torch.fx.Node) else node
