"""Two subclasses of compiled autograd's tracer.

`WatchingTracer` fills `TraceNotes` and lets errors pass: for calls that run through compiled autograd.
`GuardingTracer` also keeps every exception inside its callback: for the trace before a user's eager call.
The reason: for each node C++ swaps the saved sizes for symbols, calls the tracer, and swaps them back
(`SwapSavedVariables` in torch/csrc/dynamo/compiled_autograd.h). An exception in between skips the second swap, and
the user's own call then fails on the damaged node. So the tracer keeps the first error, answers the remaining
callbacks with dummies, and raises the error when C++ has restored the last node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.record.kinds import Toucher


class TraceStopped(Exception):  # noqa: N818  # a signal within the package, not an error
    """Raised in the engine by this package to end a trace; never reaches the user."""


class ReleasableCallable:
    """A callable whose function can be released.

    C++ never drops its reference to what `end_capture` returns (`_compiled_autograd_impl` keeps the tuple in a bare
    pointer). Each capture would keep its graph, and all that the graph refers to, for the life of the process.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function: Callable[..., Any] | None = function

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        assert self._function is not None  # released only together with the cache that could call it
        return self._function(*args)

    def release(self) -> None:
        """Drop the function."""
        self._function = None


class Read(NamedTuple):
    """A read of a dummy's metadata during the trace, or an op run on it."""

    attribute: str
    autograd_node: int | None
    node: torch.fx.Node | None
    """The graph node whose output the dummy was; it may be gone from the finished graph."""
    by: Toucher
    where: str


@dataclass
class TraceNotes:
    """What a tracer records beside the graph."""

    tracer: Any = None
    node: tuple[int, str] | None = None
    """The autograd node in whose call the tracer is: number and name."""
    error: BaseException | None = None
    error_node: tuple[int, str] | None = None
    input_origins: tuple[int, ...] = ()
    size_origins: tuple[int, ...] = ()
    """NodeCall number that lifted each input and size, before unused sizes are dropped."""
    used_sizes: tuple[int, ...] = ()
    """Indices of the sizes that are used in the graph, ascending."""
    pasted: dict[torch.fx.Node, int] = field(default_factory=dict)
    """Graph nodes of compiled regions' backwards, whose own stack traces are the forward's: NodeCall number."""
    hooked: dict[torch.fx.Node, int] = field(default_factory=dict)
    """Graph nodes that call hooks on tensors: index, in their autograd node, of the gradient that the hook sees."""
    reads: Counter[Read] = field(default_factory=Counter)
    """Number of each read, in order of first reading."""
    callables: tuple[ReleasableCallable, ...] = ()
    """What C++ keeps of the trace; to be released when the cache is cleared."""
    at_begin: Callable[[], None] | None = None
    """Called once, when a trace begins after a cache miss and before C++ touches any node."""

    def follow(self, copies: Mapping[torch.fx.Node, torch.fx.Node]) -> None:
        """Replace the graph nodes in these notes by their copies."""
        self.pasted = {copies[node]: number for node, number in self.pasted.items() if node in copies}
        self.hooked = {copies[node]: index for node, index in self.hooked.items() if node in copies}
        reads = Counter[Read]()
        for read, count in self.reads.items():
            reads[read._replace(node=copies.get(read.node) if read.node is not None else None)] += count
        self.reads = reads


class WatchingTracer:
    """Fills `notes` and changes nothing else; a mixin in front of a tracer class."""

    notes: TraceNotes
    stack: Any
    fx_tracer: Any

    def __init__(self, compiler_fn: Callable[..., Any]) -> None:
        super().__init__(compiler_fn)  # type: ignore[call-arg]  # the tracer class behind this mixin
        self.notes.tracer, self._has_begun, self._is_closed = self, False, False
        self.close = self._close

    def _close(self) -> None:
        """Called by C++ at the end of the trace, after an error too."""
        if self._has_begun and not self._is_closed:
            self._is_closed = True
            torch_adapter.close_unfinished(self)

    def begin_capture(self, inputs: Any, sizes: Any, scalars: Any, origins: Any, *rest: Any) -> Any:
        """Note the nodes that lifted inputs and sizes; on an error, the node of the input that cannot become fake."""
        at_begin, self.notes.at_begin = self.notes.at_begin, None
        if at_begin is not None:
            at_begin()
        input_origins, size_origins, _ = origins
        self.notes.input_origins = tuple(number for number, _ in input_origins)
        self.notes.size_origins = tuple(number for number, _ in size_origins)
        self._has_begun = True
        try:
            return super().begin_capture(inputs, sizes, scalars, origins, *rest)  # type: ignore[misc]  # as above
        except Exception:
            # Inputs become fake one by one, in place: the first real one is the one that cannot.
            real = next((i for i, tensor in enumerate(inputs) if not torch_adapter.is_fake(tensor)), len(inputs))
            self.notes.node = input_origins[real] if real < len(input_origins) else None
            self.notes.error_node = self.notes.node
            raise

    def set_node_origin(self, node_name: str, nodecall_index: int, pyobj: Any) -> Any:
        """Note the autograd node whose call begins."""
        self.notes.node = (nodecall_index, node_name)
        return super().set_node_origin(node_name, nodecall_index, pyobj)  # type: ignore[misc]  # as above

    def proxy_call_backward(self, *args: Any) -> Any:
        """Note the graph nodes that are pasted in for a compiled region's backward."""
        graph = self.fx_tracer.graph
        last = next(iter(reversed(graph.nodes)), None)
        result = super().proxy_call_backward(*args)  # type: ignore[misc]  # as above
        if self.notes.node is not None and torch_adapter.is_aot_context(torch_adapter.ctx_of_backward(args)):
            for node in reversed(graph.nodes):
                if node is last:
                    break
                self.notes.pasted[node] = self.notes.node[0]
        return result

    def tensor_pre_hook(self, inputs: Any, hook: int, index: int) -> Any:
        """Note the gradient that the hook sees."""
        return self._note_hook(super().tensor_pre_hook(inputs, hook, index), index)  # type: ignore[misc]  # as above

    def cpp_tensor_pre_hook(self, inputs: Any, hook: int, index: int) -> Any:
        """Note the gradient that the hook sees."""
        return self._note_hook(super().cpp_tensor_pre_hook(inputs, hook, index), index)  # type: ignore[misc]  # as above

    def _note_hook(self, inputs: Any, index: int) -> Any:
        self.notes.hooked[next(iter(reversed(self.fx_tracer.graph.nodes)))] = index  # the call of the hook
        return inputs

    def remove_unused_sizes(self) -> Any:
        """Note the sizes that are used."""
        used = super().remove_unused_sizes()  # type: ignore[misc]  # as above
        self.notes.used_sizes = tuple(sorted(used))
        return used

    def end_capture(self, outputs: Any) -> Any:
        """Keep the result releasable. From here on PyTorch itself leaves what `begin_capture` entered."""
        self._is_closed = True
        result = super().end_capture(outputs)  # type: ignore[misc]  # as above
        self.notes.callables = tuple(ReleasableCallable(function) for function in result)
        return self.notes.callables


class GuardingTracer(WatchingTracer):
    """Watches, and lets no callback raise before C++ has restored the last node."""

    nan_checker: Any

    def end_capture(self, outputs: Any) -> Any:
        """End the trace; raises if a callback has failed."""
        if self.notes.error is not None:
            raise TraceStopped
        # Anomaly mode's check belongs to the user's eager run; the graph does not run here.
        self.nan_checker = None
        return super().end_capture(outputs)


def watching(base: type[Any], notes: TraceNotes) -> type[Any]:
    """A watching subclass of a tracer class."""
    cls = type("WatchingTracer", (WatchingTracer, base), {"notes": notes})
    for name in torch_adapter.GUARDED_CALLBACKS:
        # C++ may look a callback up with an exception pending (a freed node's). Python then finds only names in the
        # class's own dictionary, and else hides the true error behind an AttributeError.
        if hasattr(cls, name):  # the user's own tracer class may lack some
            setattr(cls, name, getattr(cls, name))
    return cls


def guarding(base: type[Any], notes: TraceNotes) -> type[Any]:
    """A guarding subclass of a tracer class."""
    cls = type("GuardingTracer", (GuardingTracer, base), {"notes": notes})
    for name in torch_adapter.GUARDED_CALLBACKS:
        setattr(cls, name, _guarded(name, getattr(cls, name), notes))
    return cls


def _guarded(name: str, inner: Callable[..., Any], notes: TraceNotes) -> Callable[..., Any]:
    """A callback that keeps the first error in `notes`, and after it returns fallback answers."""

    def callback(self: Any, *args: Any) -> Any:
        if notes.error is None:
            try:
                with _aot_backward_context(name, args):
                    return inner(self, *args)
            except BaseException as error:  # noqa: BLE001  # KeyboardInterrupt too: the recorder raises it again
                notes.error, notes.error_node = error, notes.node
        return torch_adapter.fallback_answer(name, self, args)

    return callback


def _aot_backward_context(name: str, args: Sequence[Any]) -> AbstractContextManager[None]:
    """A context for the callback that pastes a compiled region's backward; no context for all others."""
    if name == "proxy_call_backward" and torch_adapter.is_aot_context(torch_adapter.ctx_of_backward(args)):
        return torch_adapter.traceable_aot_backward(torch_adapter.ctx_of_backward(args))
    return nullcontext()
