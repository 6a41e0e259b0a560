"""Dispatch modes, function modes and the tracer's proxies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.fx
from torch.fx.experimental import proxy_tensor
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes


def modes_are_on() -> bool:
    """Whether a TorchDispatchMode sees the ops of this thread."""
    return bool(torch._C._len_torch_dispatch_stack())


class _Unrecorded:
    """A context whose operators the profiler does not record: `at::enableRecordFunction`, a flag of the thread."""

    def __enter__(self) -> None:
        torch._C._autograd._enable_record_function(False)  # noqa: FBT003  # C++, positional only

    def __exit__(self, *exc: object) -> None:
        torch._C._autograd._enable_record_function(True)  # noqa: FBT003  # as above


@contextmanager
def _unseen() -> Iterator[None]:
    with _disable_current_modes(), _Unrecorded():
        yield


def unseen_operators() -> AbstractContextManager[None]:
    """A context whose operators neither dispatch modes nor the profiler see, while tensors of subclasses do."""
    return _unseen() if modes_are_on() else _Unrecorded()


def called_unseen(function: Callable[..., None], tensors: Iterable[Any], *args: Any) -> None:
    """Call a function whose operators nothing of the user's sees: no mode, no profiler, and no tensor's own class.

    Without the contexts where there is nobody: they cost more than what they surround, in a hook on each autograd node.

    Args:
        function: to call.
        tensors: on which it works; None among them is ignored.
        args: of the function.
    """
    has_modes = modes_are_on() or torch._C._len_torch_function_stack()
    if has_modes or not all(type(tensor) is torch.Tensor for tensor in tensors if tensor is not None):
        with torch._C.DisableTorchFunction(), unseen_operators():
            function(*args)
        return
    torch._C._autograd._enable_record_function(False)  # noqa: FBT003  # C++, positional only
    try:
        function(*args)
    finally:
        torch._C._autograd._enable_record_function(True)  # noqa: FBT003  # as above


without_torch_function = torch._C.DisableTorchFunctionSubclass
"""Context in which a subclass's `__torch_function__` is not called."""

_MARKED_TENSORS = (
    torch._C.DispatchKey.Conjugate,
    torch._C.DispatchKey.Negative,
    torch._C.DispatchKey.ZeroTensor,
)


@contextmanager
def as_below_autograd() -> Iterator[None]:
    """In `__torch_dispatch__`, let a kernel do what it does below autograd.

    The way to Python leaves everything above it switched off (`pythonFallback` in ATen/core/PythonFallbackKernel.cpp),
    and with it the handling of conjugated, negated and zero tensors, on which kernels count for what they call:
    `linalg.pinv` of a complex matrix comes out wrong without.
    """
    conjugate, negative, zero = (torch._C._SetExcludeDispatchKeyGuard(key, False) for key in _MARKED_TENSORS)  # noqa: FBT003
    with conjugate, negative, zero:
        yield


def call_below_autograd(operator: Any, args: Any, kwargs: Any) -> Any:
    """An operator called in `__torch_dispatch__`, as it would be called without the mode."""
    with as_below_autograd():
        return operator(*args, **kwargs)


below_modes = torch._C._DisableTorchDispatch
"""Context in which no mode and no subclass gets an op: C++ answers itself."""


@contextmanager
def below_modes_and_functions() -> Iterator[None]:
    """A context in which, beside `below_modes`, no `__torch_function__` is called: nothing of the user's sees an op."""
    with torch._C.DisableTorchFunction(), below_modes():
        yield


without_modes = _disable_current_modes
"""Context in which no dispatch mode of this thread gets an op; tensors of subclasses still do."""

without_proxies = proxy_tensor.disable_proxy_modes_tracing
"""Context in which the tracer records no ops, nor comparisons of symbolic sizes."""


class InfraMode(TorchDispatchMode):
    """A dispatch mode that PyTorch treats as its own: compiled regions and higher-order ops run as without it."""

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Not one of the user's."""
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """No reason for Dynamo to leave a function alone."""
        return True


def graph_node_of(tracer: Any, tensor: torch.Tensor) -> torch.fx.Node | None:
    """The graph node whose output a fake tensor is in a tracer; None where it has none."""
    slot = tracer.fx_tracer.tensor_tracker.get(tensor)
    return None if slot is None else slot.proxy.node


def share_proxy(tracer: Any, source: torch.Tensor, target: torch.Tensor) -> None:
    """Give a tensor the proxy that another has in an fx tracer, if that one has any."""
    slot = tracer.tensor_tracker.get(source)
    if slot is not None:
        tracer.tensor_tracker[target] = slot


def active_fx_tracer() -> Any:
    """The fx tracer that records this thread's ops now; None where none does."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return None if mode is None else mode.tracer


def push_mode_at_bottom(mode: Any) -> None:
    """Push a TorchFunctionMode below all others of this thread, so that they come and go independently of it.

    Torch's own device mode (`set_default_device`) stays below it, since it must be the lowest.
    """
    above = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    below = [above.pop()] if above and isinstance(above[-1], DeviceContext) else []
    for each in (*below, mode, *reversed(above)):
        torch._C._push_on_torch_function_stack(each)


def remove_mode(mode: Any) -> bool:
    """Remove a TorchFunctionMode from this thread's stack, wherever it stands; False where it is not in it."""
    stack = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    for each in reversed(stack):
        if each is not mode:
            torch._C._push_on_torch_function_stack(each)
    return any(each is mode for each in stack)


without_any_torch_function = torch._C.DisableTorchFunction
"""Context in which neither a TorchFunctionMode nor a subclass's `__torch_function__` is called."""


@contextmanager
def without_function_modes() -> Iterator[None]:
    """A context in which no TorchFunctionMode of this thread is called; tensor subclasses and proxies still are."""
    stack = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(stack):
            torch._C._push_on_torch_function_stack(mode)
