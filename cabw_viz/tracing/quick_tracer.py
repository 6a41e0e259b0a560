"""A tracer that builds the graph of compiled autograd's own, several times quicker, where nothing compiles it.

Most of the time of PyTorch's trace goes into what only a compiler needs: a symbol with guards for each lifted size, a
FakeTensor with symbolic sizes for each lifted tensor, proxies that record each op on them, generated code. The
initial trace proxies opaque calls, so hardly anything of it is ever asked for. Here PyTorch's callbacks run as they
are, on quicker parts, and each part that is asked for is made then:

    lifted sizes          numbers with a symbol's interface (`torch_adapter.QuickSizes`)
    lifted tensors,       tensors without memory; the FakeTensor that PyTorch would have made stands behind each and
    dummies               is made on the first read of it (`LazyFake`)
    proxies               nodes found by the identity of what they stand for (`torch_adapter.QuickFxTracer`)
    code of the graph     generated on the first use

Reads of metadata have the same answers, and count as with PyTorch's tracer. What might lead to another graph is
refused: an op that PyTorch would record, a computed size in the graph, tensors of a kind that it may not take. Then
the trace ends as a failed one does, with every node put back, and PyTorch's tracer traces the call (`trace_only`).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.torch_adapter import FakeTensor
from cabw_viz.tracing.tracer import TraceNotes
from cabw_viz.tracing.tripwire import Tripwire, TripwireMode, WatchedFake

SWITCH = "CABW_VIZ_QUICK_TRACE"
"""The environment variable that has PyTorch's own tracer used where it is 0."""


class QuickTraceRefused(Exception):  # noqa: N818  # a signal within the package, not an error
    """The quick trace might not build PyTorch's graph; never reaches the user."""


def is_quick_trace_possible() -> bool:
    """Whether the tracer is PyTorch's own, unpatched, and the user has not switched the quick one off."""
    return os.environ.get(SWITCH, "1") != "0" and torch_adapter.is_unpatched_tracer()


@contextmanager
def _refused_on_error() -> Iterator[None]:
    """A context for callbacks before the first node and after the last: an error there leaves no node damaged."""
    try:
        yield
    except Exception as error:
        raise QuickTraceRefused(f"{type(error).__name__}: {error}") from error


class LazyFake(WatchedFake):
    """A watched fake tensor whose wrapped one is made when somebody asks for it."""

    make: Callable[[], FakeTensor] | None
    """None once the trace is over."""
    looks: tuple[torch.dtype, torch.device]

    @property
    def inner_fake(self) -> FakeTensor:  # type: ignore[override]  # an attribute of the base, made on first use here
        """The FakeTensor that PyTorch's tracer would have handed out."""
        attributes = self.__dict__
        if "made" not in attributes:
            if self.make is None:
                raise RuntimeError("a tensor of a trace that is over")
            attributes["made"] = self.make()
        fake: FakeTensor = attributes["made"]
        return fake

    @property
    def grad(self) -> Any:
        """The gradient that the trace has set, or that C++ has."""
        return self.__dict__["traced_grad"] if "traced_grad" in self.__dict__ else super().grad

    @grad.setter
    def grad(self, value: Any) -> None:
        self.__dict__["traced_grad"] = value


LazyFake.__name__, LazyFake.__qualname__, LazyFake.__module__ = (
    FakeTensor.__name__,
    FakeTensor.__qualname__,
    FakeTensor.__module__,
)


class QuickTripwire(Tripwire):
    """A tripwire that refuses the trace where an op would be recorded, or depends on quick sizes."""

    def __init__(self, tracer: Any) -> None:
        super().__init__()
        self.tracer = tracer

    def _node_of(self, fake: WatchedFake) -> torch.fx.Node | None:
        node = self.tracer.nodes.get(id(fake)) if self.tracer is not None else None
        return node if node is not None else fake.origin

    def dispatch(self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answer a query, or run an op that PyTorch would not record either."""
        if func in torch_adapter.QUERIES or self.tracer is None:
            return super().dispatch(func, types, args, kwargs)
        has_sizes = any(map(torch_adapter.is_quick_size, torch_adapter.tree_leaves((args, kwargs))))
        is_recorded = torch_adapter.active_fx_tracer() is not None
        if torch_adapter.is_empty(func) and not is_recorded:
            return self.tracer.new_tensor(func, args, kwargs)
        if not (has_sizes or is_recorded):
            return super().dispatch(func, types, args, kwargs)
        self.tracer.refuse(f"{func} on traced tensors")
        args, kwargs = torch_adapter.tree_map(torch_adapter.quick_value, (args, kwargs))
        with torch_adapter.without_proxies():
            return super().dispatch(func, types, args, kwargs)


class QuickTracer(torch_adapter.TracerBase):
    """Compiled autograd's tracer on quicker parts."""

    notes: TraceNotes
    notes_reads: bool
    """Whether reads of metadata are noted."""

    def __init__(self, compiler_fn: Callable[..., Any]) -> None:
        super().__init__(compiler_fn)
        self.nodes: dict[int, torch.fx.Node] = {}
        """The graph nodes of tensors by identity."""
        self.alive: list[torch.Tensor] = []
        """The tensors in `nodes`."""
        self.lazy: list[weakref.ref[LazyFake]] = []
        """All that have been made. A further reference would have `torch.empty` return a detached copy."""
        self.lifted: list[tuple[torch.Tensor, Any]] = []
        """The user's tensors that the graph takes as inputs, and the sources of their symbols."""
        self.tripwire = QuickTripwire(self)
        self.stack_trace_around = ("", "")
        torch_adapter.use_quick_parts(self, self.node_of)

    def refuse(self, reason: str) -> None:
        """Keep the trace from becoming a capture. It goes on: an exception would leave the user's node damaged."""
        if self.notes.error is None:
            self.notes.error = QuickTraceRefused(reason)

    def forget(self) -> None:
        """Drop the traced tensors: the trace is over, and C++ keeps some of the fake ones alive."""
        for reference in self.lazy:
            if (fake := reference()) is not None:
                fake.make = None
        self.alive, self.nodes, self.lifted, self.lazy, self.tripwire.tracer = [], {}, [], [], None

    # -- what the callbacks are made of ------------------------------------------------------------------------

    def begin_capture(self, inputs: Any, sizes: Any, scalars: Any, origins: Any, *rest: Any) -> Any:
        """As PyTorch's tracer does, on quick parts; refused before anything is touched for tensors of other kinds."""
        if scalars or not all(map(torch_adapter.is_plain_input, inputs)):
            raise QuickTraceRefused("inputs of other kinds than plain tensors and sizes")
        with _refused_on_error():
            result = super().begin_capture(inputs, sizes, scalars, origins, *rest)
        self.stack.callback(self.tripwire.close)
        self.stack.enter_context(TripwireMode(self.tripwire))
        if self.notes_reads:
            self.tripwire.open(self.notes)
        return result

    def wrap_fake(self, x: torch.Tensor, source: Any) -> Any:
        """A lifted tensor; PyTorch's FakeTensor stands behind it."""
        self.lifted.append((x, source))
        make = partial(self._fake_of, len(self.lifted) - 1)
        return self._lazy(make, x.dtype, x.device, requires_grad=x.requires_grad)

    def _fake_of(self, index: int) -> FakeTensor:
        with torch_adapter.without_modes():
            fake: FakeTensor = super().wrap_fake(*self.lifted[index])
        return fake

    def allocate_dummy(self) -> Any:
        """A dummy; PyTorch's stands behind it."""
        return self._lazy(super().allocate_dummy, torch.get_default_dtype(), torch.device("cpu"))

    def allocate_dummy_like(self, x: Any) -> Any:
        """A dummy for a new `.grad`; PyTorch's stands behind it."""
        if not isinstance(x, LazyFake):
            return super().allocate_dummy_like(x)
        return self._lazy(lambda: super(QuickTracer, self).allocate_dummy_like(x.inner_fake), *x.looks)

    def new_tensor(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a Function of Python returns; its symbolic sizes are refused when somebody asks for them."""

        def make() -> Any:
            self.refuse("sizes of what a Function returns")
            return func(*torch_adapter.tree_map(torch_adapter.quick_value, args), **kwargs)

        has_sizes = any(map(torch_adapter.is_quick_size, torch_adapter.tree_leaves(args)))
        if not has_sizes or kwargs.get("layout") not in (None, torch.strided):
            if has_sizes:
                return make()
            return func(*args, **kwargs)
        return self._lazy(make, kwargs["dtype"], kwargs["device"])

    def _lazy(
        self, make: Callable[[], Any], dtype: torch.dtype, device: torch.device, *, requires_grad: bool = False
    ) -> LazyFake:
        fake: LazyFake = torch_adapter.wrapper_without_memory(LazyFake, dtype, device, requires_grad)
        self.lazy.append(weakref.ref(fake))
        fake.make, fake.looks, fake.tripwire, fake.origin = make, (dtype, device), self.tripwire, None
        return fake

    def node_of(self, value: Any) -> torch.fx.Node:
        """The graph node of a tensor or a lifted size."""
        if isinstance(value, torch.Tensor):
            node = self.nodes.get(id(value))
        else:
            proxy = self.symnode_proxy_lookup.get(value.node)
            node = None if proxy is None else proxy.node
        if node is None:
            raise QuickTraceRefused(f"a {type(value).__name__} that no graph node stands for")
        return node

    def to_proxy(self, t: Any) -> Any:
        """The proxy of a traced value."""
        if isinstance(t, torch.Tensor):
            return torch.fx.Proxy(self.node_of(t), self.fx_tracer)
        return super().to_proxy(t)

    def bind_objects_to_proxies(self, objects: Any, proxies: Any, origins: Any = None) -> Any:
        """Note the graph nodes of tensors. A list is one that the tracer returns: its FakeTensors become watched."""
        if isinstance(proxies, torch.fx.Proxy):
            proxies = self._items(proxies, len(objects), origins)
        if len(objects) != len(proxies):
            raise QuickTraceRefused("a callback that binds other proxies than there are objects")
        if isinstance(objects, list) and self.tripwire.is_open:
            objects[:] = [self.tripwire.wrapper_of(value) for value in objects]
        for value, proxy in zip(objects, proxies, strict=True):
            if isinstance(value, torch.Tensor):
                self.nodes[id(value)] = proxy.node
                self.alive.append(value)
            elif value is not None and not torch_adapter.is_quick_size(value):
                raise QuickTraceRefused(f"a {type(value).__name__} from a callback")
        return proxies

    def _items(self, proxy: Any, count: int, origins: Any) -> list[Any]:
        """Proxies of the items of a proxied list, each with the stack trace of its origin."""
        items = []
        for index in range(count):
            if origins:
                number, name = origins[index]
                self.set_node_origin(name, number, None)
            items.append(proxy[index])
        return items

    def set_node_origin(self, node_name: str, nodecall_index: int, pyobj: Any) -> None:
        """Set the stack trace of new nodes: PyTorch's, which differs by name and number alone."""
        code = f"{node_name} (NodeCall {nodecall_index})"
        if pyobj is None and any(self.stack_trace_around):
            text = code.join(self.stack_trace_around)
            torch_adapter.set_stack_trace(text)
        else:
            super().set_node_origin(node_name, nodecall_index, pyobj)
            text = torch_adapter.current_stack_trace()
            before, separator, after = text.rpartition(code)
            if separator:  # the backward of a compiled region has a number behind its name
                self.stack_trace_around = (before, after)
        self.fx_tracer.stack_trace = text  # type: ignore[attr-defined]  # the tracer is a QuickFxTracer

    # -- callbacks that would walk through their arguments several times -------------------------------------

    def proxy_call(self, fn: Any, args: Any, output_metadata: Sequence[Any]) -> Any:
        """A call and its results."""
        call = self.fx_tracer.create_proxy("call_function", fn, args, {})
        result = [self.allocate_dummy() for _ in output_metadata]
        self.bind_objects_to_proxies(result, call)
        return result

    def accumulate_grad(self, *args: Any) -> Any:
        """As PyTorch's tracer does; that setting a `.grad` compares metadata does not count as reads."""
        with self.tripwire.muted():
            return super().accumulate_grad(*args)

    def remove_unused_sizes(self) -> Any:
        """As PyTorch's tracer does."""
        with _refused_on_error():
            return super().remove_unused_sizes()

    def end_capture(self, outputs: Any) -> Any:
        """As PyTorch's tracer does."""
        with _refused_on_error():
            return super().end_capture(outputs)

    def create_graph_module(self, id: str) -> Any:  # noqa: A002  # PyTorch's name
        """The graph, whose code is generated when it is used."""
        return torch_adapter.lazy_graph_module(self.fx_tracer.root, self.fx_tracer.graph, id)


def quick_tracer(*, notes_reads: bool) -> type[Any]:
    """The quick tracer class, with or without notes of reads."""
    return type("QuickTracer", (QuickTracer,), {"notes_reads": notes_reads})
