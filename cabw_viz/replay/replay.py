"""Running a captured graph again, at any target, by any interpreter."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from cabw_viz.errors import CabwError
from cabw_viz.record.kinds import HookKind
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.options import HOOK_POLICIES, HookPolicy
from cabw_viz.replay.framework_checks import check_frameworks
from cabw_viz.replay.input_checks import check_inputs
from cabw_viz.replay.interpreter import GradientCollector, leaf_gradients
from cabw_viz.replay.placement.compiled import run_compiled
from cabw_viz.replay.placement.device_dtype_map import is_out_of_memory
from cabw_viz.replay.placement.inductor_random import check_draws
from cabw_viz.replay.placement.out_of_memory import oom_as_cabw_error
from cabw_viz.replay.placement.placed_graph import PlacedGraph, place
from cabw_viz.replay.placement.target import AS_CAPTURED, Target
from cabw_viz.replay.progress import Progress
from cabw_viz.runtime.capture_state import Captured

ALWAYS_ALLOWED_HOOKS: frozenset[HookKind] = frozenset({"unpack_hook", "cpp_tensor_pre_hook"})
"""Unpacking is part of the backward. The only hook in C++ that compiled autograd traces is that of `retain_grad()`,
which changes no gradient (CppFunctionSingleTensorPreHook; all others raise in FunctionPreHook::compiled_args)."""


@dataclass(frozen=True)
class ReplayResult:
    """Gradients of a replay, and how they were computed."""

    gradients: dict[int, torch.Tensor]
    """By index of the leaf; a leaf without gradient is absent."""
    graph_count: int | None = None
    """How many graphs `torch.compile` made of the captured one; None where it was not asked."""
    decomposed: tuple[str, ...] = ()
    """Operators without a kernel at the target, which were computed by their formula."""


class Replay:
    """A captured graph that runs again, as often as wanted.

    Nothing is written: gradients are collected instead of accumulated, hooks that follow an accumulation and those of
    training frameworks are left out, the random state comes back. Other hooks run again, unless `hooks="drop"`; what
    they change of the user's modules and leaves is put back (`user_state.guard`).

    Replay(captured, target, hooks)    checks the hooks, and that there is a graph
    ├─ at(target)                      the same capture at another target
    ├─ graph, release()                placed at the target when first needed; placed graphs are shared with `at`
    ├─ run(interpreter)                op by op, whatever the target's backend
    └─ result(), gradients()           by the target's backend

    Args:
        captured: the capture.
        target: where, in which dtype, under which backend.
        hooks: `run`, `drop`, or `refuse` (an error if there are any but unpack hooks and those of `retain_grad()`).

    Raises:
        CabwError: the session is closed, the trace failed, there are hooks and they are refused, or the run has drawn
            numbers that cannot be drawn again. `graph`, and what
            needs it: an input was changed in place since, or something in the graph cannot go to the target. `run`,
            `result`, `gradients`: PyTorch or the backend cannot run the graph outside of the engine.
    """

    def __init__(self, captured: Captured, target: Target = AS_CAPTURED, hooks: HookPolicy = "run") -> None:
        check_hooks(captured.record, hooks)
        self.target = target
        self._hooks: HookPolicy = hooks
        self.capture = captured.runnable()
        check_frameworks(self.capture, hooks)
        check_draws(captured.record, self.capture.graph)
        self._placed: dict[Target, PlacedGraph] = {}

    def at(self, target: Target) -> Replay:
        """The same capture at another target."""
        other = copy.copy(self)
        other.target = target
        return other

    @property
    def graph(self) -> PlacedGraph:
        """The graph and what it runs on, at the target; placed again where a run has written to its inputs."""
        check_inputs(self.capture)  # each time: hooks of an earlier run may have changed them
        key = self.target.placement
        placed = self._placed.get(key)
        if placed is None or (key.moves and placed.arguments.is_changed()):
            placed = self._placed[key] = place(self.capture, key, self._hooks)
        return placed

    def release(self) -> None:
        """Drop the inputs that were moved to the target."""
        self._placed.pop(self.target.placement, None)

    def run(self, interpreter: GradientCollector, *, last: bool = False) -> dict[int, torch.Tensor]:
        """Run an interpreter of this graph.

        Args:
            interpreter: of a placed graph.
            last: whether it is placed for this run alone: what was moved goes as it is used.

        Returns:
            Gradient of each leaf by its index in the record, at the target, without history; a leaf without gradient
            is absent.
        """
        graph, record = interpreter.placed, interpreter.record
        with (
            oom_as_cabw_error(lambda: f"{interpreter.location()} was running", graph.target.device),
            Progress(len(record.graph_nodes), "replay") as interpreter.progress,
            graph.execution_context(),
        ):
            call_args = graph.call_args
            if last and graph.target.moves:
                self._placed.pop(graph.target, None)
                graph.arguments.inputs.clear()
            try:
                returned = interpreter.run(*call_args)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                raise interpreter.failure(error) from error
        return _without_history(leaf_gradients(record, interpreter.collected, returned))

    def result(self) -> ReplayResult:
        """Run the graph by the target's backend; it is placed anew for a further run."""
        graph = self.graph
        if self.target.compiles:
            run = run_compiled(graph, self.target)
            gradients = _without_history(leaf_gradients(graph.record, run.collected, run.returned))
            return ReplayResult(gradients, run.graph_count, graph.decomposed)
        return ReplayResult(self.run(GradientCollector(graph), last=True), None, graph.decomposed)

    def gradients(self) -> dict[int, torch.Tensor]:
        """Gradient of each leaf by its index in the record, at the target; a leaf without gradient is absent."""
        return self.result().gradients


def _without_history(gradients: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    return {index: gradient.detach() for index, gradient in gradients.items()}


# ------------------------------------------------------------------------------------------------------------- checks


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
        hook = next((hook for hook in node.hooks if hook.kind not in ALWAYS_ALLOWED_HOOKS), None)
        if hook is not None:
            raise CabwError(
                f"{record.label(node)} (#{node.number}) carries a {hook.kind} {hook.name}; hooks were to be refused",
                expected="no hooks",
                try_='hooks="run", or hooks="drop", which leaves hooks out; gradients then lack what they changed',
            )
