"""What a step works on: parameters and buffers by name, modules, optimizers; backed up before a run, restored after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from cabw_viz.errors import CabwError
from cabw_viz.numerics.compare import bitwise_equal
from cabw_viz.replay.steps.object_state import ObjectState, has_state, parameters_of, trainers_of
from cabw_viz.runtime.reached_state import ReachedState
from cabw_viz.runtime.tensor_state import copy_of

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Only tensors of these classes are set as attributes of a module again: FSDP swaps its own and keeps track of them."""


@dataclass(frozen=True)
class StepUnderTest:
    """A step and what it works on."""

    function: Callable[[], Any]
    params: Any
    """An nn.Module, or a mapping of names to leaf tensors; `check` raises for anything else."""
    is_fresh: bool = False
    """Whether it was built for one run, with optimizers of its own."""

    @cached_property
    def _reached(self) -> ReachedState:
        """What else of the user's the function reaches, and so may change."""
        reached = ReachedState()
        if not self.is_fresh:
            reached.add(self.function)
        return reached

    @cached_property
    def trainers(self) -> list[Any]:
        """The optimizers of its parameters, their schedulers, and gradient scalers."""
        return [] if self.is_fresh else trainers_of(slot.tensor for slot in (*self.slots(), *self._reached_slots()))

    @property
    def modules(self) -> list[torch.nn.Module]:
        """All its modules, and those that the function reaches besides."""
        own = list(self.params.modules()) if isinstance(self.params, torch.nn.Module) else []
        return list(dict.fromkeys([*own, *(module for _, module in self._reached.modules.values())]))

    def other_slots(self) -> Iterator[TensorSlot]:
        """Each parameter, buffer and leaf that a call may change and `slots` has not: restored, and not compared.

        Those that the function reaches, and those that its optimizers update, or set `.grad` of to None.
        """
        ids = {id(slot.tensor) for slot in self.slots()}
        optimized = (tensor for each in self.trainers for tensor in parameters_of(each))
        for slot in (*self._reached_slots(), *(TensorSlot("", tensor, is_buffer=False) for tensor in optimized)):
            if id(slot.tensor) not in ids:
                ids.add(id(slot.tensor))
                yield slot

    def _reached_slots(self) -> Iterator[TensorSlot]:
        for path, module in self._reached.modules.values():
            yield from _slots_of(module, f"{path}.")
        for name, tensor in self._reached.tensors.values():
            if tensor.requires_grad and tensor.is_leaf:
                yield TensorSlot(name, tensor, is_buffer=False)

    def check(self) -> None:
        """Raise a CabwError where the parameters are not a module or leaf tensors by name."""
        if isinstance(self.params, torch.nn.Module):
            return
        if not isinstance(self.params, Mapping):
            raise _params_error(f"a {type(self.params).__name__}")
        for name, tensor in self.params.items():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise _params_error(f"a mapping with the entry {name!r}: {type(tensor).__name__}")
            if not tensor.is_leaf:
                raise _params_error(f"{name!r}, which is no leaf but the result of {tensor.grad_fn}")

    def slots(self) -> Iterator[TensorSlot]:
        """Each parameter and buffer as it is now. A shared one is given once, under its first name."""
        ids = set()
        for slot in _all_slots(self.params):
            if id(slot.tensor) not in ids:
                ids.add(id(slot.tensor))
                yield slot


def _params_error(seen: str) -> CabwError:
    return CabwError(
        f"compare() got {seen} as its parameters",
        expected="an nn.Module, or a mapping of names to leaf tensors",
        try_="compare(step, model), or compare(step, {'w': w})",
    )


@dataclass(frozen=True)
class TensorSlot:
    """A tensor with its name, and the module and attribute that hold it; a mapping's tensor has no module."""

    name: str
    tensor: torch.Tensor
    is_buffer: bool
    module: torch.nn.Module | None = None
    attribute: str = ""


def _all_slots(params: Any) -> Iterator[TensorSlot]:
    if not isinstance(params, torch.nn.Module):
        for name, tensor in params.items():
            is_parameter = tensor.requires_grad or isinstance(tensor, torch.nn.Parameter)
            yield TensorSlot(name, tensor, not is_parameter)
        return
    for path, module in params.named_modules():
        yield from _slots_of(module, f"{path}." if path else "")


def _slots_of(module: torch.nn.Module, prefix: str) -> Iterator[TensorSlot]:
    """A module's own parameters and buffers."""
    for is_buffer, tensors in (False, module.named_parameters), (True, module.named_buffers):
        for attribute, tensor in tensors(recurse=False):
            name = (prefix + attribute).replace("_orig_mod.", "")  # which torch.compile(model) inserts
            yield TensorSlot(name, tensor, is_buffer, module, attribute)


@dataclass
class TensorBackup:
    """The state of one tensor before a run."""

    slot: TensorSlot
    value: torch.Tensor | None = field(init=False)
    """A copy; None of a lazy parameter that has no value yet."""
    grad: torch.Tensor | None = field(init=False)
    grad_value: torch.Tensor | None = field(init=False)
    requires_grad: bool = field(init=False)

    def __post_init__(self) -> None:
        tensor = self.slot.tensor
        self.value = None if torch.nn.parameter.is_lazy(tensor) else copy_of(tensor.detach())
        self.grad = tensor.grad
        self.grad_value = None if self.grad is None else copy_of(self.grad.detach())
        self.requires_grad = tensor.requires_grad

    def restore(self) -> None:
        """Restore the tensor's value, `.grad` and `requires_grad`, and the attribute of its module."""
        slot, tensor = self.slot, self.slot.tensor
        if self.value is not None:
            write(tensor, self.value)
        if tensor.requires_grad != self.requires_grad:
            tensor.requires_grad_(self.requires_grad)
        if self.grad is not None and self.grad_value is not None:
            write(self.grad, self.grad_value)
        tensor.grad = self.grad
        if slot.module is not None:
            current = getattr(slot.module, slot.attribute, None)
            if current is not tensor and type(current) in (*PLAIN, type(None)) and type(tensor) in PLAIN:
                setattr(slot.module, slot.attribute, tensor)


class ParameterState:
    """The state of a step when this was made: parameters, buffers, gradients, modules, optimizers, schedulers.

    Those of modules and leaves that the step reaches besides its own are kept too.
    """

    def __init__(self, step: StepUnderTest) -> None:
        self._backups = [TensorBackup(slot) for slot in step.slots()]
        self._others = [TensorBackup(slot) for slot in step.other_slots()]
        self._training = [(module, module.training) for module in step.modules]
        objects = [*filter(has_state, step.modules), *step.trainers]
        tensors = [backup.slot.tensor for backup in (*self._backups, *self._others)]
        self._objects = ObjectState(objects, write, tensors)

    def values(self) -> dict[str, torch.Tensor]:
        """The values by name."""
        return {backup.slot.name: backup.value for backup in self._backups if backup.value is not None}

    def load(self, values: Mapping[str, torch.Tensor]) -> None:
        """Write these values to the tensors of these names that have the same shape."""
        for backup in self._backups:
            value = values.get(backup.slot.name)
            if value is not None and backup.value is not None and value.shape == backup.value.shape:
                with torch.no_grad():
                    write(backup.slot.tensor, value.to(backup.value.device, backup.value.dtype))

    def restore(self) -> None:
        """Restore everything."""
        self._objects.restore()
        for backup in (*self._backups, *self._others):
            backup.restore()
        for module, training in self._training:
            module.training = training


def write(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write a value to a tensor that holds another.

    Through `.data`, and only where the value differs: a graph that saved the tensor before must see no new version
    where nothing changes.
    """
    if (tensor.shape, tensor.dtype, tensor.device) != (value.shape, value.dtype, value.device):
        tensor.data = copy_of(value)
    elif not _is_same(tensor.detach(), value):
        tensor.data.copy_(value)


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors certainly hold the same; tensors of a subclass that cannot be compared count as different."""
    if one.layout is not torch.strided:
        return False
    try:
        return bitwise_equal(one, other)
    except Exception:  # noqa: BLE001  # whatever an operator of a subclass raises, writing is always right
        return False
