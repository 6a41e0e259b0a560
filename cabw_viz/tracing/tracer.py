"""Tracer classes: compiled autograd's own, watched, and in two temperaments.

`Watching` records beside PyTorch's tracer and lets errors pass, for calls that run through compiled autograd.
`Guarding` is for the trace that goes before a user's eager call: it never lets an exception out of a callback.
The reason: for each node C++ swaps the saved sizes for symbols, calls us, and swaps them back
(`SwapSavedVariables` in torch/csrc/dynamo/compiled_autograd.h); an exception in between skips the second swap
and leaves marks, and the user's own call then fails on the damaged node. So the first error is kept, the remaining
callbacks answer with dummies, and the error is raised when the last node has been put back.
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


class TraceStopped(Exception):  # noqa: N818  # a signal to ourselves, not an error
    """Raised by ours in the engine to end a trace; never reaches the user."""


class Held:
    """A callable that can be let go of.

    C++ never drops its reference to what `end_capture` returns (`_compiled_autograd_impl` keeps the tuple in a bare
    pointer), so that each capture would keep its graph, and all that hangs on it, for the life of the process.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function: Callable[..., Any] | None = function

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        assert self._function is not None  # released only together with the cache that could call it
        return self._function(*args)

    def release(self) -> None:
        """Let go of the function."""
        self._function = None


class Read(NamedTuple):
    """A read of a stand-in's metadata during the trace, or an op run on it."""

    attribute: str
    autograd_node: int | None
    node: torch.fx.Node | None
    """The graph node whose output it was; it may be gone when the graph is finished."""
    by: Toucher
    where: str


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
    hooked: dict[torch.fx.Node, int] = field(default_factory=dict)
    """Graph nodes that call hooks on tensors: which of their autograd node's gradients they see."""
    reads: Counter[Read] = field(default_factory=Counter)
    """How often who read what, in order of first reading."""
    held: tuple[Held, ...] = ()
    """What the trace left with C++; to be released when the cache is cleared."""
    at_begin: Callable[[], None] | None = None
    """Called once, when a trace begins that no cache entry answers and before any node is touched."""

    def follow(self, copied: Mapping[torch.fx.Node, torch.fx.Node]) -> None:
        """Speak of the nodes of a copied graph from here on."""
        self.pasted = {copied[node]: number for node, number in self.pasted.items() if node in copied}
        self.hooked = {copied[node]: index for node, index in self.hooked.items() if node in copied}
        reads = Counter[Read]()
        for read, count in self.reads.items():
            reads[read._replace(node=copied.get(read.node) if read.node is not None else None)] += count
        self.reads = reads


class Watching:
    """Fills `notes` and changes nothing else; a mixin in front of a tracer class."""

    notes: TraceNotes
    stack: Any
    fx_tracer: Any

    def __init__(self, compiler_fn: Callable[..., Any]) -> None:
        super().__init__(compiler_fn)  # type: ignore[call-arg]  # the tracer class behind this mixin
        self.notes.tracer, self._begun, self._closed = self, False, False
        self.close = self._close

    def _close(self) -> None:
        """Called by C++ when it is done with the tracer, whatever happened."""
        if self._begun and not self._closed:
            self._closed = True
            torch_adapter.close_unfinished(self)

    def begin_capture(self, inputs: Any, sizes: Any, scalars: Any, origins: Any, *rest: Any) -> Any:
        """Note who lifted what; where an input cannot become fake, who lifted that."""
        begins, self.notes.at_begin = self.notes.at_begin, None
        if begins is not None:
            begins()
        of_inputs, of_sizes, _ = origins
        self.notes.input_origins = tuple(number for number, _ in of_inputs)
        self.notes.size_origins = tuple(number for number, _ in of_sizes)
        self._begun = True
        try:
            return super().begin_capture(inputs, sizes, scalars, origins, *rest)  # type: ignore[misc]  # as above
        except Exception:
            # Inputs become fake one by one, in place: the first that is not is the one that could not.
            bad = next((i for i, tensor in enumerate(inputs) if not torch_adapter.is_fake(tensor)), None)
            self.notes.node = of_inputs[bad] if bad is not None and bad < len(of_inputs) else None
            self.notes.error_node = self.notes.node
            raise

    def set_node_origin(self, node_name: str, nodecall_index: int, pyobj: Any) -> Any:
        """Note which autograd node's call begins."""
        self.notes.node = (nodecall_index, node_name)
        return super().set_node_origin(node_name, nodecall_index, pyobj)  # type: ignore[misc]  # as above

    def proxy_call_backward(self, *args: Any) -> Any:
        """Note which graph nodes are pasted in for a compiled region's backward."""
        graph = self.fx_tracer.graph
        before = next(iter(reversed(graph.nodes)), None)
        result = super().proxy_call_backward(*args)  # type: ignore[misc]  # as above
        if self.notes.node is not None and torch_adapter.is_aot_context(torch_adapter.ctx_of_backward(args)):
            for node in reversed(graph.nodes):
                if node is before:
                    break
                self.notes.pasted[node] = self.notes.node[0]
        return result

    def tensor_pre_hook(self, inputs: Any, hook: int, index: int) -> Any:
        """Note which gradient the hook sees."""
        return self._hooked(super().tensor_pre_hook(inputs, hook, index), index)  # type: ignore[misc]  # as above

    def cpp_tensor_pre_hook(self, inputs: Any, hook: int, index: int) -> Any:
        """Note which gradient the hook sees."""
        return self._hooked(super().cpp_tensor_pre_hook(inputs, hook, index), index)  # type: ignore[misc]  # as above

    def _hooked(self, inputs: Any, index: int) -> Any:
        self.notes.hooked[next(iter(reversed(self.fx_tracer.graph.nodes)))] = index  # the call was just written
        return inputs

    def remove_unused_sizes(self) -> Any:
        """Note which sizes stay."""
        used = super().remove_unused_sizes()  # type: ignore[misc]  # as above
        self.notes.used_sizes = tuple(sorted(used))
        return used

    def end_capture(self, outputs: Any) -> Any:
        """From here on PyTorch takes back itself what `begin_capture` entered."""
        self._closed = True
        result = super().end_capture(outputs)  # type: ignore[misc]  # as above
        self.notes.held = tuple(Held(function) for function in result)
        return self.notes.held


class Guarding(Watching):
    """Watches, and keeps every callback from raising before the last node has been put back."""

    nan_checker: Any

    def end_capture(self, outputs: Any) -> Any:
        """End the trace, with the error that was kept if there is one."""
        if self.notes.error is not None:
            raise TraceStopped
        # Anomaly mode's check belongs to the user's eager run; the graph does not run here.
        self.nan_checker = None
        return super().end_capture(outputs)


def watching(base: type[Any], notes: TraceNotes) -> type[Any]:
    """A watching subclass of a tracer class."""
    cls = type("Watching", (Watching, base), {"notes": notes})
    for name, inner in _callbacks(cls):
        # C++ may look a callback up with an exception pending (a freed node's). Python then finds only what stands
        # in the class's own dictionary, and else hides the true error behind an AttributeError.
        setattr(cls, name, inner)
    return cls


def guarding(base: type[Any], notes: TraceNotes) -> type[Any]:
    """A guarding subclass of a tracer class."""
    cls = type("Guarding", (Guarding, base), {"notes": notes})
    for name, inner in _callbacks(cls):
        setattr(cls, name, _guarded(name, inner, notes))
    return cls


def _callbacks(cls: type[Any]) -> list[tuple[str, Callable[..., Any]]]:
    return [(name, getattr(cls, name)) for name in torch_adapter.GUARDED_CALLBACKS]


def _guarded(name: str, inner: Callable[..., Any], notes: TraceNotes) -> Callable[..., Any]:
    def callback(self: Any, *args: Any) -> Any:
        if notes.error is None:
            try:
                with _aot_unchanged(name, args):
                    return inner(self, *args)
            except BaseException as error:  # noqa: BLE001  # KeyboardInterrupt too: the recorder raises it again
                notes.error, notes.error_node = error, notes.node
        return torch_adapter.fallback_answer(name, self, args)

    return callback


def _aot_unchanged(name: str, args: Sequence[Any]) -> AbstractContextManager[None]:
    """For the callback that pastes a compiled region's backward: leave that backward's own graph as it was."""
    if name == "proxy_call_backward" and torch_adapter.is_aot_context(torch_adapter.ctx_of_backward(args)):
        return torch_adapter.unchanged_aot_graph(torch_adapter.ctx_of_backward(args))
    return nullcontext()
