"""Tensors that report the code that reads their metadata.

A `WatchedTensor` holds a real tensor and looks like it. Every query of size, stride, storage offset, numel, dim,
device, layout or contiguity goes to Python, from C++ callers too, and so does every op; Python's own reads of dtype
are seen as well. Ops run on the real tensors, so values, views and in-place writes are what they always are.

What this cannot see: dtype, is_sparse and element size read by C++, which calls no Python for them; tensors that never
came through the graph (kept in a closure or on a ctx, packed by the user's hooks, made by a factory function).

What it changes: `type(x)` is another, and some formulas of PyTorch's compute differently for subclasses
(`isTensorSubclassLike` in ATen/TensorSubclassLikeUtils.h; so do the engine's device check and `reshape`). Then the ops
of that computation are recorded: those of `masked_fill` and `prod` read no data there, unlike the plain ones. Of all of
PyTorch's OpInfos, in float64, bfloat16 and complex64, the gradients of these two alone differ from a replay's, in the
last bits; those of `ormqr` in their strides.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.kinds import Toucher
from cabw_viz.record.model import Touch
from cabw_viz.runtime.stack_frames import responsible_frame

if TYPE_CHECKING:
    from typing_extensions import Self

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Watch:
    """Records the reads of one run, each with the graph node in whose call it happens."""

    def __init__(self) -> None:
        self.active = False
        """Whether a graph node's call runs: reads between calls do not count."""
        self.over = False
        """Watched tensors that outlive the run act as the real ones."""
        self._node: tuple[int | None, int] = (None, 0)
        self._stop: CodeType | None = None
        self._reads: Counter[tuple[int | None, int, str, Toucher, str]] = Counter()

    @contextmanager
    def reading(self, node: int, autograd_node: int | None, stop: CodeType) -> Iterator[None]:
        """A graph node's call; frames outside of `stop` are not searched for the code that reads."""
        self._node, self._stop, self.active = (autograd_node, node), stop, True
        try:
            yield
        finally:
            self.active = False

    def record(self, *attributes: str) -> None:
        """Record a read that happens now."""
        if not self.active or self._stop is None:
            return
        owner, location = responsible_frame(sys._getframe(1), self._stop, torch_adapter.is_call_wrapper)  # noqa: SLF001  # documented
        by: Toucher = "user" if owner == "user" else "kernel"
        for attribute in attributes:
            self._reads[(*self._node, attribute, by, location)] += 1

    def touches(self) -> tuple[Touch, ...]:
        """All reads, in order of first reading."""
        return tuple(
            Touch("execution", attribute, autograd_node, node, by, where, count)
            for (autograd_node, node, attribute, by, where), count in self._reads.items()
        )

    def watched(self, value: Any) -> Any:
        """A value with its tensors watched; one tensor in two places stays one.

        Raises:
            CabwError: a tensor of a subclass, whose own behaviour would be lost.
        """
        return _mapped(value, self._wrapper({}))

    def _wrapper(self, known: dict[int, WatchedTensor]) -> Callable[[Any], Any]:
        def wrap(tensor: torch.Tensor) -> torch.Tensor:
            if isinstance(tensor, WatchedTensor):
                return tensor
            if id(tensor) not in known:
                known[id(tensor)] = WatchedTensor(tensor, self)
            return known[id(tensor)]

        return wrap

    def run(self, operator: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Run an op on the real tensors; its results are watched, and its arguments keep their identity."""
        known: dict[int, WatchedTensor] = {}

        def unwrap(tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, WatchedTensor):
                return tensor
            known[id(tensor.real_tensor)] = tensor
            return tensor.real_tensor

        with torch_adapter.as_below_autograd():
            result = operator(*_mapped(args, unwrap), **_mapped(options, unwrap))
        for place, name in torch_adapter.written_arguments(operator):
            _count_write(args[place] if place < len(args) else options.get(name))
        return result if self.over else _mapped(result, self._wrapper(known))


class WatchedTensor(torch.Tensor):
    """A tensor that reports to a `Watch`."""

    real_tensor: torch.Tensor
    reports_to: Watch

    @staticmethod
    def __new__(cls, real: torch.Tensor, watch: Watch) -> Self:  # noqa: D102  # see the class
        if type(real) not in _PLAIN:
            raise CabwError(
                f"a tensor of class {type(real).__qualname__} cannot be watched",
                expected="plain tensors: a subclass has a behaviour of its own, which watching would replace",
                try_="cap.replay() and cap.parity(), which run on the tensors as they are",
            )
        wrapper: Self = torch_adapter.wrapper_tensor(cls, real)
        wrapper.real_tensor, wrapper.reports_to = real, watch
        return wrapper

    def __getattr__(self, name: str) -> Any:
        """Attributes that the user has set on the real tensor."""
        return getattr(object.__getattribute__(self, "real_tensor"), name)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Python's reads that do not reach the dispatcher, and functions that need the real tensor's memory."""
        del types
        watch = _watch_of(args, kwargs)
        with torch_adapter.without_torch_function():
            if watch is not None and (func in TAKES_MEMORY or watch.over):
                watch.record("data")
                return func(*_mapped(args, real), **_mapped(kwargs or {}, real))
            if watch is not None and func in UNDISPATCHED:
                watch.record(UNDISPATCHED[func])
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub writes it as if it were no class method
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Queries of metadata, and ops."""
        del types
        query = torch_adapter.QUERIES.get(func)
        if query is not None:
            attribute, answer = query
            args[0].reports_to.record(attribute)
            return answer(args[0].real_tensor, *args[1:])
        watch = _watch_of(args, kwargs)
        assert watch is not None  # or the dispatcher would not have come here
        reads = ("data",) if torch_adapter.reads_data(func, args) else ()
        watch.record(str(func), *reads)
        return watch.run(func, args, kwargs or {})


def real(value: Any) -> Any:
    """The real tensor behind a watched one; anything else as it is."""
    return value.real_tensor if isinstance(value, WatchedTensor) else value


def unwatched(value: Any) -> Any:
    """A value with the real tensors in it."""
    return _mapped(value, real)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with every tensor in its lists, tuples and dicts changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list) or type(value) is tuple:
        changed = [_mapped(item, change) for item in value]
        return changed if isinstance(value, list) else tuple(changed)
    if type(value) is dict:
        return {key: _mapped(item, change) for key, item in value.items()}
    return value


def _count_write(written: Any) -> None:
    """Count an in-place write where autograd does, above us and not below."""
    for value in written if isinstance(written, list | tuple) else (written,):
        tensor = real(value)
        if isinstance(value, WatchedTensor) and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def _watch_of(*values: Any) -> Watch | None:
    """The watch of the first watched tensor among arguments."""
    for value in values:
        if isinstance(value, WatchedTensor):
            return value.reports_to
        inner = value.values() if isinstance(value, dict) else value
        watch = _watch_of(*inner) if isinstance(value, list | tuple | dict) else None
        if watch is not None:
            return watch
    return None


_T = torch.Tensor

UNDISPATCHED: dict[Any, str] = {
    _T.dtype.__get__: "dtype",  # type: ignore[attr-defined]  # a property, for which torch's stub writes its type
    _T.is_floating_point: "dtype",
    torch.is_floating_point: "dtype",
    _T.is_complex: "dtype",
    torch.is_complex: "dtype",
    _T.is_signed: "dtype",
    torch.is_signed: "dtype",
    _T.element_size: "dtype",
    _T.itemsize.__get__: "dtype",  # type: ignore[attr-defined]  # as above
    _T.nbytes.__get__: "dtype",  # type: ignore[attr-defined]  # as above; its numel is dispatched
    _T.type: "dtype",
    _T.is_sparse.__get__: "layout",  # type: ignore[attr-defined]  # as above
    _T.is_sparse_csr.__get__: "layout",  # type: ignore[attr-defined]  # as above
    _T.is_mkldnn.__get__: "layout",  # type: ignore[attr-defined]  # as above
    _T.is_quantized.__get__: "dtype",  # type: ignore[attr-defined]  # as above
}
"""Reads of metadata that do not reach the dispatcher: the attribute."""

TAKES_MEMORY = frozenset(
    {
        _T.numpy,
        _T.tolist,
        _T.__array__,
        _T.__dlpack__,
        _T.data_ptr,
        _T.untyped_storage,
        _T.storage,
        _T.__repr__,
        _T.__format__,
        _T.__reduce_ex__,
        _T.data.__set__,  # type: ignore[attr-defined]  # as above
    }
)
"""Functions that read a tensor's memory past the dispatcher, or turn it into something else."""
