"""The state of the random number generators that a step may draw from without being given one."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable
from typing import Any

import torch


class RandomState:
    """The state at the moment it was made: Python's, NumPy's where it is loaded, torch's on the CPU and accelerators.

    A generator of the step's own is none of these.
    """

    def __init__(self) -> None:
        readers = [_python(), _torch_cpu(), *_numpy(), *_accelerator()]
        self._states = [(read(), write) for read, write in readers]

    def restore(self) -> None:
        """Set all generators back."""
        for state, write in self._states:
            write(state)

    def digest(self) -> bytes:
        """Equal for equal states."""
        return pickle.dumps([_without_tensors(state) for state, _ in self._states])


def _without_tensors(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return bytes(state.cpu().numpy())
    return [_without_tensors(each) for each in state] if isinstance(state, list) else state


Access = tuple[Callable[[], Any], Callable[[Any], Any]]


def _python() -> Access:
    return random.getstate, random.setstate


def _torch_cpu() -> Access:
    return torch.get_rng_state, torch.set_rng_state


def _numpy() -> list[Access]:
    numpy = sys.modules.get("numpy")
    return [(numpy.random.get_state, numpy.random.set_state)] if numpy is not None else []


def _accelerator() -> list[Access]:
    """The generators of all devices of the accelerator; of one that is not in use yet there is nothing to keep."""
    current = torch.accelerator.current_accelerator(check_available=True)
    if current is None:
        return []
    module: Any = torch.get_device_module(current)
    if not getattr(module, "is_initialized", lambda: True)():
        return []
    if hasattr(module, "get_rng_state_all"):
        return [(module.get_rng_state_all, module.set_rng_state_all)]
    return [(module.get_rng_state, module.set_rng_state)] if hasattr(module, "get_rng_state") else []
