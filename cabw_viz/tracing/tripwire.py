"""Stand-ins that tell who reads them during the initial trace.

The tracer computes with FakeTensors: dummies of shape [0, 123456789], results of custom Functions, clones for hooks,
and what it lifts. Each is handed out as a `WatchedFake`, a FakeTensor too, which holds the tracer's own one, its
`plain` twin. Proxies are bound to the twin, and ops run on the twin: below the dummies a trace is what it always is,
and what PyTorch's machinery reads there is its own affair. What is read of a dummy itself comes here:

    C++ or Python asks for size, stride, device, ...    ─► Mode ─► Tripwire.dispatch   noted, the twin's answer
    an op is called on it                               ─► Mode ─► Tripwire.dispatch   noted, run on the twin
    Python reads .dtype, .device, .is_sparse, ...       ─► a property of WatchedFake         noted, the twin's answer

What this cannot see: dtype, is_sparse, element size and storage read by C++, which asks nobody; and lifted tensors
that are views or have a history, which stay as they are.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.record.kinds import Toucher
from cabw_viz.record.model import Touch
from cabw_viz.runtime.stack_frames import responsible_frame
from cabw_viz.torch_adapter import EngineCall, FakeTensor
from cabw_viz.tracing.tracer import Read, TraceNotes

_ENGINE_CALL = EngineCall.run.__code__
"""The frame that called the engine for a capture: frames outside of it read no dummies."""

_READERS: dict[str, Toucher] = {"user": "user", "torch": "tracer", "C++": "kernel"}


class Tripwire:
    """One trace's: hands out dummies, and takes down what is read of them while it is open."""

    def __init__(self) -> None:
        self._notes: TraceNotes | None = None
        self._muted = False

    def open(self, notes: TraceNotes) -> None:
        """From here on reads count."""
        self._notes = notes

    def close(self) -> None:
        """The trace is over; dummies may live on, unwatched."""
        self._notes = None

    @property
    def is_open(self) -> bool:
        """Whether the trace is under way."""
        return self._notes is not None

    @contextmanager
    def muted(self) -> Iterator[None]:
        """What is read inside does not count."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def dummy(self, value: Any, origin: torch.fx.Node | None = None) -> Any:
        """A stand-in, watched; anything else as it is.

        Args:
            value: what the tracer hands out, or what an op on a dummy has made.
            origin: the graph node that stands for it as long as it has no proxy of its own.
        """
        if not torch_adapter.can_be_watched(value):
            return value
        made: WatchedFake = torch_adapter.alias_asking_python(WatchedFake, value)
        made.plain, made.wire, made.origin = value, self, origin
        return made

    def note(self, attribute: str, dummy: WatchedFake) -> None:
        """Something was read of a dummy now."""
        notes = self._notes
        if notes is None or self._muted or notes.error is not None:
            return
        whose, where = responsible_frame(sys._getframe(1), _ENGINE_CALL, torch_adapter.is_dispatch_code)  # noqa: SLF001  # documented
        number = notes.node[0] if notes.node is not None else None
        notes.reads[Read(attribute, number, self._node_of(dummy), _READERS[whose], where)] += 1

    def _node_of(self, dummy: WatchedFake) -> torch.fx.Node | None:
        """The graph node whose output a dummy is at this moment."""
        tracer = self._notes.tracer if self._notes is not None else None
        found = torch_adapter.graph_node_of(tracer, dummy.plain) if tracer is not None else None
        return found if found is not None else dummy.origin

    def dispatch(self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answer a query, or run an op."""
        if WatchedFake not in types and torch_adapter.is_operator(func):
            return func(*args, **kwargs)  # the tracer at work on stand-ins of its own
        if func not in torch_adapter.QUERIES or torch_adapter.is_called_by_name(func, sys._getframe(2)):  # noqa: SLF001
            return self._run(func, args, kwargs)
        return self._answer(func, args)

    def _answer(self, query: Any, args: Sequence[Any]) -> Any:
        attribute, answer = torch_adapter.QUERIES[query]
        self.note(attribute, args[0])
        with torch_adapter.below_modes():
            value = answer(args[0].plain, *args[1:])
        if query in torch_adapter.CONCRETE_QUERIES and torch_adapter.is_symbolic(value):
            name = torch_adapter.CONCRETE_QUERIES[query]
            raise RuntimeError(f"Cannot call {name}() on tensor with symbolic sizes/strides")  # as C++ says it
        return value

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an op on the twins: its arguments stay who they are, and what it makes is watched."""
        leaves = [leaf for leaf in torch_adapter.tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor)]
        same = {id(plain(leaf)): leaf for leaf in leaves}
        dummies = [leaf for leaf in same.values() if isinstance(leaf, WatchedFake)]
        args, kwargs = torch_adapter.tree_map_only(WatchedFake, plain, (args, kwargs))
        self._note_op(func, args, dummies)
        origin = self._node_of(dummies[0]) if dummies else None
        tracer = torch_adapter.active_fx_tracer()  # may be another than ours: make_fx of a function of a dummy
        _share(tracer, [(dummy, dummy.plain) for dummy in dummies])

        def watched(fake: FakeTensor) -> Any:
            return same[id(fake)] if id(fake) in same else self.dummy(fake, origin)

        result = func(*args, **kwargs)
        if not dummies:
            return result
        result = torch_adapter.tree_map_only(FakeTensor, watched, result)
        made = [leaf for leaf in torch_adapter.tree_leaves(result) if isinstance(leaf, WatchedFake)]
        _share(tracer, [(dummy.plain, dummy) for dummy in (*dummies, *made)])
        return result

    def _note_op(self, func: Any, args: Sequence[Any], dummies: Sequence[WatchedFake]) -> None:
        name, _ = torch_adapter.QUERIES.get(func, (str(func), None))
        for attribute in (name, "data") if torch_adapter.reads_data(func, args) else (name,):
            for dummy in dummies:
                self.note(attribute, dummy)


def _share(tracer: Any, pairs: Sequence[tuple[FakeTensor, FakeTensor]]) -> None:
    """Let the second of each pair have the proxy of the first."""
    if tracer is not None:
        for source, target in pairs:
            torch_adapter.share_proxy(tracer, source, target)


class Mode(torch_adapter.InfraMode):
    """Stands above the tracer's own modes, and brings everything to a tripwire."""

    def __init__(self, wire: Tripwire) -> None:
        super().__init__()
        self._wire = wire

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._wire.dispatch(func, types, args, kwargs or {})


class WatchedFake(FakeTensor):
    """A stand-in that reports to a tripwire, and is otherwise like its `plain` twin."""

    plain: FakeTensor
    wire: Tripwire
    origin: torch.fx.Node | None

    def __getattr__(self, name: str) -> Any:
        """What a FakeTensor carries with it: its mode, its device, what the user hung on it."""
        if name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)

    @property
    def data(self) -> torch.Tensor:
        """The tensor without history; set, it becomes another."""
        return super().data

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        self.plain.data = plain(other)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the twin: what else a dummy holds belongs to the trace."""
        self.wire.note("aten.clone.default", self)
        made = memo[id(self)] = self.wire.dummy(copy.deepcopy(self.plain, memo), self.origin)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # FakeTensor's is annotated more closely
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Where no mode was asked before: the trace is over, or the modes are off."""
        first = next(leaf for leaf in torch_adapter.tree_leaves((args, kwargs)) if isinstance(leaf, WatchedFake))
        return first.wire.dispatch(func, types, args, kwargs or {})


def _reported(attribute: str, name: str) -> property:
    """A property or method of tensors that asks no dispatcher."""

    def read(self: WatchedFake) -> Any:
        self.wire.note(attribute, self)
        return getattr(self.plain, name)

    return property(read)


for _word, _names in {
    "dtype": ("dtype", "itemsize", "element_size", "is_floating_point", "is_complex", "is_signed", "is_quantized"),
    "device": ("device", "get_device", "is_cpu", "is_cuda", "is_xpu", "is_mps", "is_meta"),
    "layout": ("is_sparse", "is_sparse_csr", "is_mkldnn"),
}.items():
    for _name in _names:
        setattr(WatchedFake, _name, _reported(_word, _name))

# A traced program is to be the same with us and without: errors, too, name the class.
WatchedFake.__name__, WatchedFake.__qualname__, WatchedFake.__module__ = (
    FakeTensor.__name__,
    FakeTensor.__qualname__,
    FakeTensor.__module__,
)


def plain(value: Any) -> Any:
    """The tracer's own stand-in behind a dummy; anything else as it is."""
    return value.plain if isinstance(value, WatchedFake) else value


class Tripwired:
    """Hands out dummies that report; a mixin in front of a tracer class, behind `WatchingTracer`."""

    notes: TraceNotes
    stack: Any
    fx_tracer: Any

    def __init__(self, compiler_fn: Any) -> None:
        super().__init__(compiler_fn)  # type: ignore[call-arg]  # the tracer class behind this mixin
        self.wire = Tripwire()

    def begin_capture(self, *args: Any) -> Any:
        """Reads count from the end of this until the tracer leaves its modes."""
        result = super().begin_capture(*args)  # type: ignore[misc]  # as above
        self.stack.callback(self.wire.close)
        self.stack.enter_context(Mode(self.wire))
        self._hand_out(result[1])
        with torch_adapter.without_proxies():
            _keep_grads(result[1])
        self.wire.open(self.notes)
        return result

    def allocate_dummy(self) -> Any:
        """A dummy, watched."""
        return self.wire.dummy(super().allocate_dummy())  # type: ignore[misc]  # as above

    def allocate_dummy_like(self, like: Any) -> Any:
        """A dummy for a new `.grad`, watched; it is made after the twin, which nobody calls a read."""
        return self.wire.dummy(super().allocate_dummy_like(plain(like)))  # type: ignore[misc]  # as above

    def accumulate_grad(self, *args: Any) -> Any:
        """Setting a dummy's `.grad` compares the two; that is the tracer's bookkeeping, and reads no gradient."""
        with self.wire.muted():
            return super().accumulate_grad(*args)  # type: ignore[misc]  # as above

    def bind_objects_to_proxies(self, objects: Any, *args: Any) -> Any:
        """Bind the twins. Where the tracer binds a list, it hands out that list: let it hand out dummies."""
        proxies = super().bind_objects_to_proxies([plain(value) for value in objects], *args)  # type: ignore[misc]
        if isinstance(objects, list) and self.wire.is_open:  # what is lifted waits for the tracer's modes
            self._hand_out(objects)
        else:
            self._share(objects)
        return proxies

    def to_proxy(self, value: Any) -> Any:
        """The proxy is the twin's, whoever else may have worked on that."""
        return super().to_proxy(plain(value))  # type: ignore[misc]  # as above

    def _hand_out(self, values: list[Any]) -> None:
        values[:] = [self.wire.dummy(value) for value in values]
        self._share(values)

    def _share(self, values: Sequence[Any]) -> None:
        _share(self.fx_tracer, [(value.plain, value) for value in values if isinstance(value, WatchedFake)])


def _keep_grads(inputs: Sequence[Any]) -> None:
    """A lifted leaf's `.grad` is the lifted gradient, for dummies as for their twins."""
    dummies = {id(value.plain): value for value in inputs if isinstance(value, WatchedFake)}
    for dummy in dummies.values():
        grad = dummy.plain.grad
        if grad is not None:
            dummy.grad = dummies.get(id(grad), grad)


def tripwired(base: type[Any]) -> type[Any]:
    """A subclass of a tracer class that hands out dummies which report."""
    return type("Tripwired", (Tripwired, base), {})


def touches(reads: Counter[Read], nodes: Sequence[torch.fx.Node]) -> tuple[Touch, ...]:
    """Reads as the record has them, in order of first reading.

    Args:
        reads: of one trace.
        nodes: those of its finished graph; a read of one that is not there any more has no node.
    """
    ordinals = {node: ordinal for ordinal, node in enumerate(nodes)}
    found: Counter[tuple[str, int | None, int | None, Toucher, str]] = Counter()
    for read, count in reads.items():
        ordinal = ordinals.get(read.node) if read.node is not None else None
        found[read.attribute, read.autograd_node, ordinal, read.by, read.where] += count
    return tuple(Touch("initial_trace", *key, count) for key, count in found.items())
