"""Devices, dtypes and compilers by name; an unknown name is refused with a list of those that are there."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cabw_viz.errors import CabwError

Compiler = Callable[..., Any]


def resolve_device(name: str | torch.device) -> torch.device:
    """The device of this name; `auto` is the current accelerator.

    Raises:
        CabwError: it is not there; lists the devices that are.
    """
    try:
        device = _accelerator() if name == "auto" else torch.device(name)
    except TypeError:
        raise _absent(name, f"a device is named by a text, not by a {type(name).__name__}") from None
    except RuntimeError as error:
        unknown = "device type at start of device string" in str(error)  # followed by some twenty names
        raise _absent(name, "torch knows none of this name" if unknown else str(error).partition("\n")[0]) from None
    if device is None:
        raise _absent(name, "this torch finds no accelerator")
    if device.type == "meta":
        raise _absent(name, "tensors on it have no values")
    if ":" in str(device) and str(device) not in available_devices() and device.type in _counted():
        raise _absent(name, f"there is no number {device.index} of it")
    try:
        torch.empty(0, device=device)
    except Exception as error:  # noqa: BLE001  # each backend has its own way to say that it is not there
        raise _absent(name, str(error).partition("\n")[0]) from None
    return device


def _accelerator() -> torch.device | None:
    return torch.accelerator.current_accelerator(check_available=True)


def _counted() -> set[str]:
    """The kinds of devices of which all are listed."""
    return {name.partition(":")[0] for name in available_devices()} - {"cpu"}


def _absent(name: object, why: str) -> CabwError:
    devices = available_devices()
    return CabwError(
        f"there is no device {str(name)!r} here: {why.rstrip('.')}",
        expected="one of " + ", ".join(devices),
        try_=f"device={devices[-1]!r}, or none, for where it was captured",
    )


def available_devices() -> list[str]:
    """The devices of this machine, as torch names them."""
    accelerator = _accelerator()
    count = torch.accelerator.device_count() if accelerator is not None else 0
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(count) if accelerator is not None)]


def resolve_dtype(name: str | torch.dtype) -> torch.dtype:
    """The dtype of this name, with or without `torch.`.

    Raises:
        CabwError: it is none that gradients can have.
    """
    dtype = name if isinstance(name, torch.dtype) else getattr(torch, str(name).removeprefix("torch."), None)
    if isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex):
        return dtype
    raise CabwError(
        f"{name!r} is no dtype for gradients",
        expected="float64, float32, bfloat16, float16 or another",
        try_="dtype='float64'",
    )


def resolve_backend(name: str | Compiler) -> str | Compiler:
    """A backend that a captured graph can be run with; `eager` interprets it.

    Raises:
        CabwError: there is none of this name; lists those that are.
    """
    return resolve_compiler(name, also=("eager",))


def resolve_compiler(name: str | Compiler, also: Sequence[str] = ()) -> str | Compiler:
    """A backend that torch.compile takes: one of its names, or any callable.

    Args:
        name: the backend.
        also: further names to list, which the caller knows.

    Raises:
        CabwError: there is none of this name; lists those that are.
    """
    backends = torch.compiler.list_backends(exclude_tags=())
    if callable(name) or name in backends:
        return name
    names = dict.fromkeys([*also, *(backend for backend in backends if "TESTING" not in backend)])
    near = difflib.get_close_matches(str(name), names, n=1)
    raise CabwError(
        f"there is no backend {name!r} here",
        expected="a callable, or one of " + ", ".join(names),
        try_=f"backend={near[0] if near else 'aot_eager'!r}",
    )
