"""Settings and modes of PyTorch that code run on the user's behalf could leave changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import compiled_autograd, eval_frame
from torch.utils import _python_dispatch


@dataclass(frozen=True)
class Setting:
    """One setting of the process or of the thread."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]


def settings() -> Iterator[Setting]:
    """Every setting that is compared."""
    yield Setting("the grad mode", torch.is_grad_enabled, torch.set_grad_enabled)
    yield Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype)
    yield Setting("deterministic algorithms", _deterministic, _set_deterministic)
    yield Setting("anomaly detection", _anomaly, lambda value: torch.autograd.set_detect_anomaly(*value))
    yield Setting("autocast", _autocast, _set_autocast)
    yield Setting("the TorchFunctionModes", _function_modes, _set_function_modes)
    yield Setting("the TorchDispatchModes", _python_dispatch._get_current_dispatch_mode_stack, _set_dispatch_modes)
    yield Setting("Dynamo's settings", _dynamo_config, _set_dynamo_config)
    yield Setting("torch.compiler's stance", lambda: eval_frame._stance, _set_stance)
    yield Setting("compiled autograd's marks", _marks, _set_marks)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    mode, warn_only = value
    torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


_AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")


def _autocast() -> tuple[Any, ...]:
    devices = [name for name in _AUTOCAST_DEVICES if torch.amp.autocast_mode.is_autocast_available(name)]
    states = ((name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in devices)
    return torch.is_autocast_cache_enabled(), *states


def _set_autocast(value: tuple[Any, ...]) -> None:
    cache, *states = value
    torch.set_autocast_cache_enabled(cache)
    for name, enabled, dtype in states:
        torch.set_autocast_enabled(name, enabled)
        torch.set_autocast_dtype(name, dtype)


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def _set_function_modes(modes: list[Any]) -> None:
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def _set_dispatch_modes(modes: list[Any]) -> None:
    while torch._C._len_torch_dispatch_stack():
        _python_dispatch._pop_mode()
    for mode in modes:
        _python_dispatch._push_mode(mode)


def _dynamo_config() -> dict[str, Any]:
    return dict(torch._dynamo.config.get_config_copy())


def _set_dynamo_config(value: dict[str, Any]) -> None:
    now = _dynamo_config()
    for name, before in value.items():
        if now.get(name) != before:
            setattr(torch._dynamo.config, name, before)


def _set_stance(stance: Any) -> None:
    eval_frame._stance = stance


_MARKS = ("compiled_autograd_enabled", "in_compiled_autograd_region", "active_disable_ctx", "depth")


def _marks() -> dict[str, Any]:
    return {name: getattr(compiled_autograd, name) for name in _MARKS if hasattr(compiled_autograd, name)}


def _set_marks(value: dict[str, Any]) -> None:
    for name, before in value.items():
        setattr(compiled_autograd, name, before)
