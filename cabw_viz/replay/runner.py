"""Running a captured graph again: gradients are collected, nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.kinds import HookKind
from cabw_viz.record.model import CaptureRecord, LiftedInput
from cabw_viz.record.options import HOOK_POLICIES, HookPolicy
from cabw_viz.replay.placement.compiled import run_compiled
from cabw_viz.replay.placement.device_dtype_map import is_out_of_memory
from cabw_viz.replay.placement.labels import input_label
from cabw_viz.replay.placement.out_of_memory import oom_as_cabw_error
from cabw_viz.replay.placement.runnable_graph import RunnableGraph, prepared_at
from cabw_viz.replay.placement.target import AS_CAPTURED, Target
from cabw_viz.replay.progress import NO_PROGRESS, Progress
from cabw_viz.runtime.capture_state import Arguments, CaptureState, storage_location, version_of

UNREFUSED: frozenset[HookKind] = frozenset({"unpack_hook", "cpp_tensor_pre_hook"})
"""Unpacking is part of the backward. The only hook in C++ that compiled autograd traces is that of `retain_grad()`,
which changes no gradient (CppFunctionSingleTensorPreHook; all others raise in FunctionPreHook::compiled_args)."""


class GradientCollector(torch.fx.Interpreter):
    """Interprets a captured graph.

    run_node               an error becomes a CabwError that names graph node and autograd node
    └─ call_function
       ├─ accumulate_grad  gradient collected under its autograd node's number; `.grad` untouched
       ├─ call_hook        post-accumulate hooks left out; the others run, or are left out with hooks="drop"
       ├─ C++ hooks        left out: they are those of retain_grad(), which only look
       └─ everything else  as PyTorch would
    """

    def __init__(self, graph: torch.fx.GraphModule, record: CaptureRecord, hooks: HookPolicy) -> None:
        super().__init__(graph)
        self.record, self.hooks = record, hooks
        self.rows = dict(zip((node.name for node in graph.graph.nodes), record.graph_nodes, strict=True))
        self.current: torch.fx.Node | None = None
        self.progress = NO_PROGRESS
        self.target = AS_CAPTURED
        self.collected: dict[int, Any] = {}
        """Gradient by number of the accumulate node, or of the node whose entering gradient was wanted."""

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one graph node."""
        self.current = n
        self.progress.step()
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call; see the class for what is treated apart."""
        if target is torch_adapter.call_accumulate_grad:
            return self._collect(torch_adapter.accumulated_gradient(args))
        if target is torch_adapter.call_cpp_tensor_pre_hooks:
            return self._collect(torch_adapter.hook_input(args))
        kind = torch_adapter.hook_type(target, kwargs)
        if kind == "post_acc_grad_hook" or (kind not in (None, "unpack_hook") and self.hooks == "drop"):
            return torch_adapter.hook_input(args)
        return super().call_function(target, args, kwargs)

    def place(self) -> str:
        """The autograd node and the graph node at which the run is."""
        row = self.rows[self.current.name] if self.current is not None else self.record.graph_nodes[0]
        node = self.record.by_number.get(row.autograd_node) if row.autograd_node is not None else None
        graph_node = f"graph node {row.name}"
        return graph_node if node is None else f"{self.record.label(node)} (#{node.number}), {graph_node}"

    def failure(self, error: Exception) -> CabwError:
        """What to raise for an error of the run."""
        if self.target.moves:
            return CabwError(
                f"this graph cannot be run {self.target.words}: "
                f"{self.place()} raised {type(error).__name__}: {said(error)}",
                expected="kernels for that device and dtype, and code that uses no tensors but those that it saved: "
                "what a custom Function or a hook takes from elsewhere stays as it is",
                try_="cap.replay(), which runs it where and as it was captured",
            )
        return CabwError(
            "PyTorch cannot run this graph again outside of the engine: "
            f"{self.place()} raised {type(error).__name__}: {said(error)}",
            expected="a graph that needs neither a live engine nor state that its first run has used up",
            try_='hooks="drop" where it is a hook; for used-up checkpoints there is no second run',
        )

    def _collect(self, gradient: Any) -> Any:
        number = self.rows[self.current.name].autograd_node if self.current is not None else None
        if number is not None:
            self.collected[number] = gradient
        return gradient


def replay(
    record: CaptureRecord, live: CaptureState, *, hooks: HookPolicy = "run", target: Target = AS_CAPTURED
) -> dict[int, torch.Tensor]:
    """Run a captured graph again, op by op on eager kernels unless the target has another backend.

    Nothing is written: gradients are collected instead of accumulated, post-accumulate hooks are left out, the
    random state comes back. Other hooks run again and may have effects of their own, unless `hooks="drop"`.

    Args:
        record: the capture.
        live: what it keeps alive.
        hooks: `run`, `drop`, or `refuse` (an error if there are any but unpack hooks and those of `retain_grad()`).
        target: where, in which dtype, under which backend.

    Returns:
        Gradient of each leaf by its index in the record, at the target; a leaf without gradient is absent.

    Raises:
        CabwError: the session is closed, the trace failed, an input was changed in place since, or PyTorch
            itself cannot run the graph outside of the engine.
    """
    return replayed(record, live, hooks=hooks, target=target).gradients


@dataclass(frozen=True)
class Replayed:
    """What a replay gave, and how."""

    gradients: dict[int, torch.Tensor]
    """By index of the leaf."""
    graphs: int | None = None
    """How many graphs `torch.compile` made of the captured one; None where it was not asked."""
    computed: tuple[str, ...] = ()
    """Operators without a kernel at the target, which were computed by their formula."""


def replayed(
    record: CaptureRecord, live: CaptureState, *, hooks: HookPolicy = "run", target: Target = AS_CAPTURED
) -> Replayed:
    """Run a captured graph again at a target, by its backend; see `replay`."""
    ready = prepared(record, live, target, hooks)
    if target.compiles:
        ran = run_compiled(record, ready, hooks=hooks == "run")
        return Replayed(gradients(record, ran.collected, ran.returned), ran.graphs, ready.computed)
    return Replayed(interpreted(record, ready, GradientCollector, hooks), None, ready.computed)


def prepared(
    record: CaptureRecord, live: CaptureState, target: Target = AS_CAPTURED, hooks: HookPolicy = "run"
) -> RunnableGraph:
    """The graph and what to run it on, at a target: nodes by the same names in the same order as in the record.

    Raises:
        CabwError: there is none, or no longer; or something in it cannot go there.
    """
    check_hooks(record, hooks)
    graph, arguments = runnable(record, live)
    check_versions(record, arguments)
    return prepared_at(record, live, graph, arguments, target, hooks=hooks == "run")


def run(
    record: CaptureRecord,
    live: CaptureState,
    interpreter_type: Callable[[torch.fx.GraphModule, CaptureRecord, HookPolicy], GradientCollector],
    hooks: HookPolicy,
    target: Target = AS_CAPTURED,
) -> dict[int, torch.Tensor]:
    """Run a captured graph in an interpreter of some kind, at a target; see `replay`. The backend is not looked at."""
    return interpreted(record, prepared(record, live, target, hooks), interpreter_type, hooks)


def interpreted(
    record: CaptureRecord,
    ready: RunnableGraph,
    interpreter_type: Callable[[torch.fx.GraphModule, CaptureRecord, HookPolicy], GradientCollector],
    hooks: HookPolicy,
) -> dict[int, torch.Tensor]:
    """Run a graph that is ready in an interpreter of some kind."""
    interpreter = interpreter_type(ready.graph, record, hooks)
    interpreter.target = ready.target
    with (
        oom_as_cabw_error(lambda: f"{interpreter.place()} was running", ready.target.device),
        Progress(len(record.graph_nodes), "replay") as interpreter.progress,
        ready.execution_context(),
    ):
        try:
            returned = interpreter.run(*ready.given)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise interpreter.failure(error) from error
    return gradients(record, interpreter.collected, returned)


def gradients(record: CaptureRecord, collected: dict[int, Any], returned: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Gradients by index of the leaf, without history."""
    return {index: gradient.detach() for index, gradient in by_leaf(record, collected, returned).items()}


def by_leaf(record: CaptureRecord, collected: dict[int, Any], returned: Sequence[Any]) -> dict[int, Any]:
    """What the run made for each leaf, by its index, as it is."""
    found = {}
    for index, leaf in enumerate(record.leaves):
        source = collected.get(leaf.autograd_node or -1) if leaf.output is None else returned[leaf.output]
        if isinstance(source, list | tuple):
            source = source[leaf.input]
        if source is not None:
            found[index] = source
    return found


def runnable(record: CaptureRecord, live: CaptureState) -> tuple[torch.fx.GraphModule, Arguments]:
    """The graph and what to run it on.

    Raises:
        CabwError: there is none, or no longer.
    """
    if live.released:
        raise CabwError(
            "the session was closed, and with it the captured tensors were let go",
            expected="a session that is still open",
            try_="compute parity before session.close()",
        )
    if live.graph is None or live.arguments is None:
        raise CabwError(
            f"this backward has no complete graph: {record.failure}",
            expected="a backward that compiled autograd can trace",
            try_="cap.error and session.events, which say what stopped the trace",
        )
    return live.graph, live.arguments


BEFORE_THE_STEP = "parity before optimizer.step(), or capture(..., snapshot=True), which copies the inputs"


def check_versions(record: CaptureRecord, arguments: Arguments) -> None:
    """Refuse to run on tensors that were changed in place, or given other memory, since the capture.

    Old gradients are let through: accumulation changes them, and a replay does not read them.

    Raises:
        CabwError: names the tensor.
    """
    for row in record.inputs:
        tensor, before = arguments.inputs[row.index], arguments.versions[row.index]
        _check_memory(record, row, arguments)
        if before is None or version_of(tensor) == before or is_old_gradient(record, row):
            continue
        raise CabwError(
            f"{input_label(record, row)} was changed in place since the backward was captured "
            f"(version {before} then, {version_of(tensor)} now)",
            expected="inputs as they were, or the replay would give other gradients",
            try_=BEFORE_THE_STEP,
        )


def _check_memory(record: CaptureRecord, row: LiftedInput, arguments: Arguments) -> None:
    before, now = arguments.storage_locations[row.index], storage_location(arguments.inputs[row.index])
    if before is not None and now is not None and now != before and not is_old_gradient(record, row):
        raise CabwError(
            f"{input_label(record, row)} has other memory than when the backward was captured: somebody has assigned "
            "its .data, as model.to() does",
            expected="inputs as they were, or the replay would give other gradients",
            try_=BEFORE_THE_STEP,
        )


def is_old_gradient(record: CaptureRecord, row: LiftedInput) -> bool:
    """Whether an input is a `.grad` from before, used by nothing but the accumulation into it.

    Up to torch 2.12 an accumulation reads it from the leaf, and nothing at all uses what was lifted.
    """
    users = [record.graph_nodes[user] for user in record.graph_nodes[row.graph_node].users]
    # The first argument of an accumulation is the leaf, the second its old gradient.
    return all(u.kind == "accumulate_grad" and u.inputs[0] != row.graph_node for u in users)


def check_hooks(record: CaptureRecord, hooks: str) -> None:
    """Refuse hooks where that was asked for.

    Raises:
        CabwError: names node and hook.
    """
    if hooks not in HOOK_POLICIES:
        raise CabwError(
            f"hooks={hooks!r}", expected="one of " + ", ".join(map(repr, HOOK_POLICIES)), try_='hooks="run"'
        )
    if hooks != "refuse":
        return
    for node in record.autograd_nodes:
        hook = next((hook for hook in node.hooks if hook.kind not in UNREFUSED), None)
        if hook is not None:
            raise CabwError(
                f"{record.label(node)} (#{node.number}) carries a {hook.kind} {hook.name}; hooks were to be refused",
                expected="no hooks",
                try_='hooks="run", or hooks="drop", which leaves hooks out; gradients then lack what they changed',
            )


def said(error: Exception) -> str:
    """An error's message without what the interpreter adds to it."""
    return str(error).partition("\n\nWhile executing")[0]
