"""Tracer classes: compiled autograd's own, watched, and in two temperaments.

`watching(base)` records beside PyTorch's tracer and lets errors pass, for calls that run through compiled
autograd. `guarding(base)` is for the trace that goes before a user's eager call: it never lets an exception out
of a callback. The reason: for each node C++ swaps the saved sizes for symbols, calls us, and swaps them back
(`SwapSavedVariables` in torch/csrc/dynamo/compiled_autograd.h); an exception in between skips the second swap
and marks, and the user's own call then fails on the damaged node. So the first error is kept, the remaining
callbacks answer with dummies, and the error is raised when the last node has been put back.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from cabw_viz import torch_adapter


class TraceStopped(Exception):
    """Raised by ours in the engine to end a trace; never reaches the user."""


@dataclass
class TraceNotes:
    """What a tracer noticed beside the graph."""

    tracer: Any = None
    node: tuple[int, str] | None = None
    """The autograd node in whose call the tracer is: number and name."""
    error: BaseException | None = None
    error_node: tuple[int, str] | None = None
    input_origins: tuple[int, ...] = ()
    size_origins: tuple[int, ...] = ()
    """NodeCall number that lifted each input and size, before unused sizes are dropped."""
    used_sizes: tuple[int, ...] = ()
    """Which sizes are left in the graph, ascending."""
    pasted: dict[torch.fx.Node, int] = field(default_factory=dict)
    """Graph nodes of compiled regions' backwards, whose own stack traces are the forward's: NodeCall number."""


def _last(graph: torch.fx.Graph) -> torch.fx.Node | None:
    return next(iter(reversed(graph.nodes)), None)


def watching(base: type[Any], notes: TraceNotes) -> type[Any]:
    """A subclass of a tracer class that fills `notes` and changes nothing else."""

    class Watching(base):  # type: ignore[misc]  # the base is the user's, known only now
        def __init__(self, compiler_fn: Callable[..., Any]) -> None:
            super().__init__(compiler_fn)
            notes.tracer, self._begun, self._closed = self, False, False
            self.close = self._close

        def _close(self) -> None:
            """Called by C++ when it is done with the tracer, whatever happened."""
            if self._begun and not self._closed:
                self._closed = True
                torch_adapter.end_unfinished(self)

        def begin_capture(self, inputs: Any, sizes: Any, scalars: Any, origins: Any, *rest: Any) -> Any:
            of_inputs, of_sizes, _ = origins
            notes.input_origins = tuple(number for number, _ in of_inputs)
            notes.size_origins = tuple(number for number, _ in of_sizes)
            self._begun = True
            try:
                return super().begin_capture(inputs, sizes, scalars, origins, *rest)
            except Exception:
                # Inputs become fake one by one, in place: the first that is not is the one that could not.
                bad = next((i for i, tensor in enumerate(inputs) if not torch_adapter.is_fake(tensor)), None)
                notes.node = of_inputs[bad] if bad is not None and bad < len(of_inputs) else None
                notes.error_node = notes.node
                raise

        def set_node_origin(self, node_name: str, nodecall_index: int, pyobj: Any) -> Any:
            notes.node = (nodecall_index, node_name)
            return super().set_node_origin(node_name, nodecall_index, pyobj)

        def proxy_call_backward(self, *args: Any) -> Any:
            ctx, graph = args[4], self.fx_tracer.graph
            before = _last(graph)
            result = super().proxy_call_backward(*args)
            if notes.node is not None and hasattr(ctx._forward_cls, "_aot_id"):
                for node in reversed(graph.nodes):
                    if node is before:
                        break
                    notes.pasted[node] = notes.node[0]
            return result

        def remove_unused_sizes(self) -> Any:
            used = super().remove_unused_sizes()
            notes.used_sizes = tuple(sorted(used))
            return used

        def end_capture(self, outputs: Any) -> Any:
            self._closed = True  # from here on PyTorch takes back itself what begin_capture entered
            return super().end_capture(outputs)

    return Watching


def _dummies(tracer: Any, metadata: Any) -> list[Any]:
    return [tracer.allocate_dummy() for _ in metadata]


# What a callback answers once the trace has failed: as many tensors as C++ expects, of no meaning.
FALLBACKS: dict[str, Callable[..., Any]] = {
    "set_node_origin": lambda tracer, *args: None,
    "apply_functional": lambda tracer, name, grads, args, metadata: _dummies(tracer, metadata),
    "proxy_call_backward": lambda tracer, inputs, metadata, *rest: tuple(
        None if entry is None else tracer.allocate_dummy() for entry in metadata
    ),
    "call_copy_slices_prologue": lambda tracer, *args: _dummies(tracer, range(3)),
    "call_copy_slices_epilogue": lambda tracer, needs_input_grad, *rest: _dummies(tracer, needs_input_grad),
    "validate_outputs": lambda tracer, _, outputs, *rest: outputs,
    "accumulate": lambda tracer, *args: tracer.allocate_dummy(),
    "accumulate_grad": lambda tracer, variable, *rest: tracer.allocate_dummy_like(variable),
    "tensor_pre_hook": lambda tracer, inputs, *rest: inputs,
    "cpp_tensor_pre_hook": lambda tracer, inputs, *rest: inputs,
    "pre_hook": lambda tracer, inputs, *rest: inputs,
    "post_hook": lambda tracer, outputs, *rest: outputs,
    "post_acc_grad_hook": lambda tracer, variable, *rest: [variable],
    "unpack_hook": lambda tracer, *args: tracer.allocate_dummy(),
}


def guarding(base: type[Any], notes: TraceNotes) -> type[Any]:
    """A watching tracer class whose callbacks never raise before the last node has been put back."""

    def guard(name: str) -> Callable[..., Any]:
        inner, fallback = getattr(Guarding, name), FALLBACKS[name]

        @functools.wraps(inner)
        def callback(self: Any, *args: Any) -> Any:
            if notes.error is None:
                try:
                    with _aot_unchanged(name, args):
                        return inner(self, *args)
                except BaseException as error:  # also KeyboardInterrupt: raised again in end_capture
                    notes.error, notes.error_node = error, notes.node
            return fallback(self, *args)

        return callback

    class Guarding(watching(base, notes)):  # type: ignore[misc]  # a class made at run time
        def end_capture(self, outputs: Any) -> Any:
            if notes.error is not None:
                raise TraceStopped
            # Anomaly mode's check belongs to the user's eager run; the graph does not run here.
            self.nan_checker = None
            return super().end_capture(outputs)

    for name in FALLBACKS:
        if inspect.isfunction(getattr(Guarding, name, None)):
            setattr(Guarding, name, guard(name))
    return Guarding


def _aot_unchanged(name: str, args: tuple[Any, ...]) -> Any:
    """For the callback that pastes a compiled region's backward: leave that backward's own graph as it was."""
    if name == "proxy_call_backward" and hasattr(args[4]._forward_cls, "_aot_id"):
        return torch_adapter.unchanged_aot_graph(args[4])
    return nullcontext()
