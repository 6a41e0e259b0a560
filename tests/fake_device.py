"""A second device without hardware: tensors on `cabw` keep their values in CPU tensors.

Importing this module registers the device for the life of the process, so tests do that in a process of its own. It is
made of PyTorch's Python-only backend (`_setup_privateuseone_for_python_backend`, torch 2.10 and later). Every operator
runs on the CPU tensors behind, but a device it is: `.device` says so, operands on two devices are refused as CUDA
refuses them, and kernels that only the CPU has are not there. What it does not have: operators that change a tensor's
geometry in place (`resize_`), storages of its own, random numbers of its own.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "cabw"
CPU_ONLY = frozenset(
    {"aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention_for_cpu_backward"}
)
CALLED: set[str] = set()
"""Operators that ran on the device."""


class _Backend:
    """What torch asks of `torch.cabw`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def synchronize(self, device: Any = None) -> None:
        pass


_setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
DEVICE = torch.device(NAME, 0)


class DeviceTensor(torch.Tensor):
    """A tensor on the device."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=DEVICE,
        )
        made.raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        known = (torch.Tensor, torch.nn.Parameter)
        if any(not issubclass(kind, DeviceTensor) and kind not in known for kind in types):
            return NotImplemented
        return _run(func, *args, **(kwargs or {}))

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.raw!r}, device='{NAME}')"


def _run(operator, *args, **kwargs):
    """Any operator with a tensor on the device, or for a new one there."""
    leaves = _pytree.tree_leaves((args, kwargs))
    if any(isinstance(leaf, torch.Tensor) and _is_stand_in(leaf) for leaf in leaves):
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)):
            return operator(*args, **kwargs)
    name = operator._schema.name
    CALLED.add(name)
    if name in CPU_ONLY:
        raise NotImplementedError(f"Could not run '{name}' with arguments from the '{NAME}' backend")
    _same_device(operator, leaves)
    if name == "aten::_copy_from":  # (self, dst), to, from or on the device
        source, target = args[:2]
        _raw(target).copy_(_raw(source))
        return target
    plain_args, plain_kwargs = _pytree.tree_map(_raw, (args, kwargs))
    if plain_kwargs.get("pin_memory"):
        plain_kwargs["pin_memory"] = False
    if name in ("aten::to", "aten::_to_copy"):
        wanted = kwargs.get("device")
        out = operator(*plain_args, **{**plain_kwargs, "device": torch.device("cpu")})
        out = out.clone() if out is plain_args[0] else out
        return DeviceTensor(out) if wanted is None or torch.device(wanted).type == NAME else out
    out = operator(*plain_args, **plain_kwargs)
    if name == "aten::_local_scalar_dense":
        return out
    wrapped = {id(leaf.raw): leaf for leaf in leaves if isinstance(leaf, DeviceTensor)}
    for leaf in wrapped.values():
        if leaf.shape != leaf.raw.shape:
            raise NotImplementedError(f"{operator} changed a tensor's geometry in place")
    return _pytree.tree_map_only(torch.Tensor, lambda t: wrapped[id(t)] if id(t) in wrapped else DeviceTensor(t), out)


def _is_stand_in(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of another kind that carries the device's key: a FakeTensor."""
    ours = torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.PrivateUse1)
    return ours and not isinstance(tensor, DeviceTensor)


def _same_device(operator, leaves) -> None:
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    others = [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor) and tensor.dim()]
    copies = operator._schema.name.startswith(("aten::_copy_from", "aten::copy_", "aten::set_"))
    if others and len(others) < len(tensors) and not copies:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{DEVICE} and {others[0].device}! (when checking {operator})"
        )


def _raw(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return value.raw
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


_EVERYTHING = torch.library.Library("_", "IMPL")
_EVERYTHING.fallback(_run, "PrivateUse1")
_EVERYTHING.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
_ATEN = torch.library.Library("aten", "IMPL")
for _name in ("arange", "arange.start", "arange.start_step", "empty.memory_format", "empty_strided", "_copy_from"):
    # These have kernels that would be found before the fallback.
    _packet, _, _overload = _name.partition(".")
    _operator = getattr(getattr(torch.ops.aten, _packet), _overload or "default")
    _ATEN.impl(_name, functools.partial(_run, _operator), "PrivateUse1")
