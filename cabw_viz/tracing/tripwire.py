"""Fake tensors that report reads of their metadata during the initial trace.

The tracer computes with FakeTensors: dummies of shape [0, 123456789], results of custom Functions, clones for hooks,
and the inputs that it lifts. A program gets each of them as a `WatchedFake`, a FakeTensor that wraps the tracer's own
one, its `inner_fake`. Proxies are bound to the wrapped FakeTensor, and ops run on it: below the watched ones a trace
is as without them, and reads by PyTorch's own machinery there do not count. A read of a watched one:

    C++ or Python asks for size, stride, device, ...    ─► TripwireMode ─► dispatch   noted, answered by the wrapped one
    an op is called on it                               ─► TripwireMode ─► dispatch   noted, run on the wrapped one
    Python reads .dtype, .device, .is_sparse, ...       ─► a property of WatchedFake  noted, answered by the wrapped one

What this cannot see: dtype, is_sparse, element size and storage read by C++, which are not dispatched; and lifted
tensors that are views or have a history, which are not wrapped.
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
    """The tripwire of one trace: wraps fake tensors, and notes reads of them while it is open."""

    def __init__(self) -> None:
        self._notes: TraceNotes | None = None
        self._muted = False

    def open(self, notes: TraceNotes) -> None:
        """Count reads from here on."""
        self._notes = notes

    def close(self) -> None:
        """Stop counting: the trace is over. Watched fake tensors may live on."""
        self._notes = None

    @property
    def is_open(self) -> bool:
        """Whether the trace is under way."""
        return self._notes is not None

    @contextmanager
    def muted(self) -> Iterator[None]:
        """A context in which reads do not count."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def wrapper_of(self, value: Any, origin: torch.fx.Node | None = None) -> Any:
        """A fake tensor as a `WatchedFake`; anything else as it is.

        Args:
            value: what the tracer returns, or the result of an op on watched fake tensors.
            origin: the graph node that a read counts for while the value has no proxy.
        """
        if not torch_adapter.can_be_watched(value):
            return value
        fake: WatchedFake = torch_adapter.alias_asking_python(WatchedFake, value)
        fake.inner_fake, fake.tripwire, fake.origin = value, self, origin
        return fake

    def note(self, attribute: str, fake: WatchedFake) -> None:
        """Note a read."""
        notes = self._notes
        if notes is None or self._muted or notes.error is not None:
            return
        whose, where = responsible_frame(sys._getframe(1), _ENGINE_CALL, torch_adapter.is_dispatch_code)  # noqa: SLF001  # documented
        number = notes.node[0] if notes.node is not None else None
        notes.reads[Read(attribute, number, self._node_of(fake), _READERS[whose], where)] += 1

    def _node_of(self, fake: WatchedFake) -> torch.fx.Node | None:
        """The graph node whose output a watched fake tensor is now."""
        tracer = self._notes.tracer if self._notes is not None else None
        node = torch_adapter.graph_node_of(tracer, fake.inner_fake) if tracer is not None else None
        return node if node is not None else fake.origin

    def dispatch(self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answer a query, or run an op."""
        if not any(issubclass(each, WatchedFake) for each in types) and torch_adapter.is_operator(func):
            return func(*args, **kwargs)  # the tracer's own op on unwatched fake tensors
        if func not in torch_adapter.QUERIES or torch_adapter.is_called_by_name(func, sys._getframe(2)):  # noqa: SLF001
            return self._run(func, args, kwargs)
        return self._answer(func, args)

    def _answer(self, query: Any, args: Sequence[Any]) -> Any:
        attribute, answer = torch_adapter.QUERIES[query]
        self.note(attribute, args[0])
        inner = args[0].inner_fake
        with torch_adapter.below_modes():
            value = answer(inner, *args[1:])
        if query in torch_adapter.CONCRETE_QUERIES and torch_adapter.is_symbolic(value):
            name = torch_adapter.CONCRETE_QUERIES[query]
            raise RuntimeError(f"Cannot call {name}() on tensor with symbolic sizes/strides")  # as C++ says it
        return value

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an op on the wrapped tensors. A result that is an argument stays that object; others are wrapped."""
        leaves = [leaf for leaf in torch_adapter.tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor)]
        arguments = {id(inner_of(leaf)): leaf for leaf in leaves}
        watched = [leaf for leaf in arguments.values() if isinstance(leaf, WatchedFake)]
        args, kwargs = torch_adapter.tree_map_only(WatchedFake, inner_of, (args, kwargs))
        self._note_op(func, args, watched)
        origin = self._node_of(watched[0]) if watched else None
        tracer = torch_adapter.active_fx_tracer()  # may be another than ours: make_fx of a function of a dummy
        _share_proxies(tracer, [(fake, fake.inner_fake) for fake in watched])

        def outer(fake: FakeTensor) -> Any:
            return arguments[id(fake)] if id(fake) in arguments else self.wrapper_of(fake, origin)

        result = func(*args, **kwargs)
        if not watched:
            return result
        result = torch_adapter.tree_map_only(FakeTensor, outer, result)
        results = [leaf for leaf in torch_adapter.tree_leaves(result) if isinstance(leaf, WatchedFake)]
        _share_proxies(tracer, [(fake.inner_fake, fake) for fake in (*watched, *results)])
        return result

    def _note_op(self, func: Any, args: Sequence[Any], watched: Sequence[WatchedFake]) -> None:
        name, _ = torch_adapter.QUERIES.get(func, (str(func), None))
        for attribute in (name, "data") if torch_adapter.reads_data(func, args) else (name,):
            for fake in watched:
                self.note(attribute, fake)


def _share_proxies(tracer: Any, pairs: Sequence[tuple[FakeTensor, FakeTensor]]) -> None:
    """Give the second of each pair the proxy of the first."""
    if tracer is not None:
        for source, target in pairs:
            torch_adapter.share_proxy(tracer, source, target)


class TripwireMode(torch_adapter.InfraMode):
    """Stands above the tracer's own modes, and dispatches every op through a tripwire."""

    def __init__(self, tripwire: Tripwire) -> None:
        super().__init__()
        self._tripwire = tripwire

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._tripwire.dispatch(func, types, args, kwargs or {})


class WatchedFake(FakeTensor):
    """A fake tensor that reports reads to a tripwire, and is otherwise like the one that it wraps."""

    inner_fake: FakeTensor
    tripwire: Tripwire
    origin: torch.fx.Node | None

    def __getattr__(self, name: str) -> Any:
        """Attributes of the wrapped FakeTensor: its mode, its device, what the user has set on it."""
        if name == "inner_fake":
            raise AttributeError(name)
        return getattr(self.inner_fake, name)

    @property
    def data(self) -> torch.Tensor:
        """The tensor without history; setting it sets that of the wrapped FakeTensor."""
        return super().data

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        self.inner_fake.data = inner_of(other)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the wrapped FakeTensor: tripwire and origin belong to the trace."""
        self.tripwire.note("aten.clone.default", self)
        result = memo[id(self)] = self.tripwire.wrapper_of(copy.deepcopy(self.inner_fake, memo), self.origin)
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.inner_fake.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # FakeTensor's is annotated more closely
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called where no mode got the op: the trace is over, or the modes are off."""
        first = next(leaf for leaf in torch_adapter.tree_leaves((args, kwargs)) if isinstance(leaf, WatchedFake))
        return first.tripwire.dispatch(func, types, args, kwargs or {})


def _reported(attribute: str, name: str) -> property:
    """A property of tensors that is not dispatched, as one that notes its reads."""

    def read(self: WatchedFake) -> Any:
        self.tripwire.note(attribute, self)
        return getattr(self.inner_fake, name)

    return property(read)


for _word, _names in {
    "dtype": ("dtype", "itemsize", "element_size", "is_floating_point", "is_complex", "is_signed", "is_quantized"),
    "device": ("device", "get_device", "is_cpu", "is_cuda", "is_xpu", "is_mps", "is_meta"),
    "layout": ("is_sparse", "is_sparse_csr", "is_mkldnn"),
}.items():
    for _name in _names:
        setattr(WatchedFake, _name, _reported(_word, _name))

# A traced program must be the same with the tripwire and without: errors, too, name the class.
WatchedFake.__name__, WatchedFake.__qualname__, WatchedFake.__module__ = (
    FakeTensor.__name__,
    FakeTensor.__qualname__,
    FakeTensor.__module__,
)


def inner_of(value: Any) -> Any:
    """The FakeTensor that a `WatchedFake` wraps; anything else as it is."""
    return value.inner_fake if isinstance(value, WatchedFake) else value


class TripwireTracer:
    """Wraps the fake tensors that a tracer returns; a mixin in front of a tracer class, behind `WatchingTracer`."""

    notes: TraceNotes
    stack: Any
    fx_tracer: Any

    def __init__(self, compiler_fn: Any) -> None:
        super().__init__(compiler_fn)  # type: ignore[call-arg]  # the tracer class behind this mixin
        self.tripwire = Tripwire()

    def begin_capture(self, *args: Any) -> Any:
        """Begin to count reads; the tracer ends it when it leaves its modes."""
        result = super().begin_capture(*args)  # type: ignore[misc]  # as above
        self.stack.callback(self.tripwire.close)
        self.stack.enter_context(TripwireMode(self.tripwire))
        self._wrap_items(result[1])
        with torch_adapter.without_proxies():
            _keep_grads(result[1])
        self.tripwire.open(self.notes)
        return result

    def allocate_dummy(self) -> Any:
        """A watched dummy."""
        return self.tripwire.wrapper_of(super().allocate_dummy())  # type: ignore[misc]  # as above

    def allocate_dummy_like(self, like: Any) -> Any:
        """A watched dummy for a new `.grad`. Copying the metadata of the wrapped tensor does not count as a read."""
        return self.tripwire.wrapper_of(super().allocate_dummy_like(inner_of(like)))  # type: ignore[misc]  # as above

    def accumulate_grad(self, *args: Any) -> Any:
        """As the tracer does; that setting a `.grad` compares its metadata with the leaf's does not count as reads."""
        with self.tripwire.muted():
            return super().accumulate_grad(*args)  # type: ignore[misc]  # as above

    def bind_objects_to_proxies(self, objects: Any, *args: Any) -> Any:
        """Bind the wrapped fake tensors. A list that the tracer binds is one that it returns: wrap its items."""
        proxies = super().bind_objects_to_proxies([inner_of(value) for value in objects], *args)  # type: ignore[misc]
        if (
            isinstance(objects, list) and self.tripwire.is_open
        ):  # lifted inputs are wrapped later, under the tracer's modes
            self._wrap_items(objects)
        else:
            self._share(objects)
        return proxies

    def to_proxy(self, value: Any) -> Any:
        """The proxy of the wrapped fake tensor."""
        return super().to_proxy(inner_of(value))  # type: ignore[misc]  # as above

    def _wrap_items(self, values: list[Any]) -> None:
        values[:] = [self.tripwire.wrapper_of(value) for value in values]
        self._share(values)

    def _share(self, values: Sequence[Any]) -> None:
        _share_proxies(
            self.fx_tracer, [(value.inner_fake, value) for value in values if isinstance(value, WatchedFake)]
        )


def _keep_grads(inputs: Sequence[Any]) -> None:
    """Let the `.grad` of a watched leaf be the watched gradient, as that of its wrapped tensor is the lifted one."""
    watched = {id(value.inner_fake): value for value in inputs if isinstance(value, WatchedFake)}
    for fake in watched.values():
        grad = fake.inner_fake.grad
        if grad is not None:
            fake.grad = watched.get(id(grad), grad)


def tripwire_tracer(base: type[Any]) -> type[Any]:
    """A subclass of a tracer class with a tripwire."""
    return type("TripwireTracer", (TripwireTracer, base), {})


def touches(reads: Counter[Read], nodes: Sequence[torch.fx.Node]) -> tuple[Touch, ...]:
    """Reads as rows of the record, in order of first reading.

    Args:
        reads: of one trace.
        nodes: those of its finished graph; a read of a node that was removed from it has no node.
    """
    ordinals = {node: ordinal for ordinal, node in enumerate(nodes)}
    counts: Counter[tuple[str, int | None, int | None, Toucher, str]] = Counter()
    for read, count in reads.items():
        ordinal = ordinals.get(read.node) if read.node is not None else None
        counts[read.attribute, read.autograd_node, ordinal, read.by, read.where] += count
    return tuple(Touch("initial_trace", *key, count) for key, count in counts.items())
