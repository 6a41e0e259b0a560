"""Everything that the next training step of a model depends on, as plain data that can be compared.

Nothing of the package is used, so that a fault in its own comparison does not hide a change.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def bits_of(tensor: Any) -> Any:
    """The bits of a tensor's memory as a digest, a subclass' by its parts; `freed` where the memory is gone."""
    if hasattr(tensor, "_local_tensor"):
        return bits_of(tensor._local_tensor)
    storage = tensor.untyped_storage()
    if not tensor.numel() or storage.nbytes() < tensor.numel() * tensor.element_size():
        return "freed"
    dense = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(bytes(dense.tolist())).hexdigest()[:16]


def tensor_state(tensor: Any, *, identity: bool) -> dict[str, Any]:
    """A tensor, with its gradient.

    Args:
        tensor: a parameter or a buffer.
        identity: whether the objects and their memory count too, which are other ones in another run.
    """
    local = getattr(tensor, "_local_tensor", tensor)
    state: dict[str, Any] = {
        "class": type(tensor).__name__, "bits": bits_of(tensor), "shape": tuple(tensor.shape),
        "dtype": str(tensor.dtype), "device": str(tensor.device), "requires_grad": tensor.requires_grad,
        "bytes": local.untyped_storage().nbytes(),
    }  # fmt: skip
    if identity:
        state |= {"object": id(tensor), "memory": local.untyped_storage()._cdata, "version": local._version}
    grad = tensor.grad
    state["grad"] = None if grad is None else tensor_state(grad, identity=identity)
    return state


PLAIN = (bool, int, float, str, type(None), torch.dtype)


def state_of(model: torch.nn.Module, optimizer: Any = None, *, identity: bool = False) -> dict[str, Any]:
    """The state of a model, its optimizer, random numbers and PyTorch's settings.

    Args:
        model: the model, wrapped as the user has it.
        optimizer: theirs; None where there is none to look at.
        identity: see `tensor_state`.
    """
    state: dict[str, Any] = {}
    for path, module in model.named_modules():
        held = [*module._parameters.items(), *module._buffers.items()]
        for name, tensor in held:
            if tensor is not None:
                state[f"{path}.{name}"] = tensor_state(tensor, identity=identity)
        plain = {name: value for name, value in vars(module).items() if isinstance(value, PLAIN)}
        hooks = {name: len(value) for name, value in vars(module).items() if name.endswith("_hooks")}
        children = {name: id(child) if identity else None for name, child in module._modules.items()}
        state[f"module {path}"] = (type(module).__name__, plain, hooks, children)
    for index, values in enumerate(optimizer.state.values() if optimizer is not None else ()):
        tensors = {name: bits_of(value) for name, value in values.items() if isinstance(value, torch.Tensor)}
        state[f"optimizer {index}"] = tensors
    numpy_state = str(np.random.get_state())  # the one that models draw from
    generators = repr((torch.get_rng_state().tolist(), random.getstate(), numpy_state))
    state["random"] = hashlib.sha256(generators.encode()).hexdigest()
    state["settings"] = (
        torch.is_grad_enabled(), str(torch.get_default_dtype()), torch.is_anomaly_enabled(),
        torch.is_autocast_enabled("cpu"), len(_get_current_dispatch_mode_stack()),
        torch._C._len_torch_function_stack(), torch._dynamo.config.get_config_copy(),
    )  # fmt: skip
    return state


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs, as `name: before | after`."""
    return [
        f"{name}: {before.get(name)} | {after.get(name)}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]
