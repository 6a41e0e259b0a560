"""The plain state of Python objects: a module's counters, an optimizer's tables; backed up and restored.

Plain are numbers, texts, tensors, and the lists, dicts, sets and deques that hold them. Of any other object that an
attribute holds, which object it is is restored, and not the state inside of it.
"""

from __future__ import annotations

import gc
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from cabw_viz.runtime.tensor_state import copy_of

DEEPEST = 8
"""Containers that are nested deeper are not looked into."""
LARGEST = 10_000
"""Nor are the elements of one with more than this many: a data set, not a state."""

TRAINERS = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
"""What belongs to a training step and has a state that a step changes."""


def trainers_of(tensors: Iterable[torch.Tensor]) -> list[Any]:
    """All optimizers in this process that hold any of these tensors, their schedulers, and all gradient scalers.

    A step keeps them in a closure or a global name, where only the garbage collector knows of all.
    """
    ids = set(map(id, tensors))
    objects = gc.get_objects()
    classes = dict(zip(map(id, map(type, objects)), map(type, objects), strict=True))  # far fewer than objects
    wanted = {number for number, cls in classes.items() if issubclass(cls, TRAINERS)}
    trainers = [each for each in objects if id(type(each)) in wanted] if wanted else []
    optimizers = {id(each) for each in trainers if isinstance(each, torch.optim.Optimizer) and _holds(each, ids)}
    return [
        each
        for each in trainers
        if id(each) in optimizers
        or isinstance(each, torch.amp.GradScaler)
        or id(getattr(each, "optimizer", None)) in optimizers
    ]


def parameters_of(trainer: Any) -> list[torch.Tensor]:
    """All tensors that an optimizer updates; none for anything else."""
    if not isinstance(trainer, torch.optim.Optimizer):
        return []
    groups = getattr(trainer, "param_groups", ())  # absent while one is being made
    return [tensor for group in groups for tensor in group["params"]]


def _holds(optimizer: torch.optim.Optimizer, ids: Collection[int]) -> bool:
    return any(id(tensor) in ids for tensor in parameters_of(optimizer))


def has_state(module: torch.nn.Module) -> bool:
    """Whether the attributes of a module are state of its own: those of classes outside of PyTorch are.

    PyTorch's own layers have none; its wrappers (FSDP, DDP) keep attributes in step with state elsewhere.
    """
    return type(module).__module__.partition(".")[0] != "torch"


class ObjectState:
    """The attributes of objects, and what plain containers and tensors among them hold.

    Args:
        objects: whose attributes to keep.
        write: writes a value to a tensor that may hold another.
        known: tensors that are restored elsewhere.
    """

    def __init__(
        self,
        objects: Iterable[Any],
        write: Callable[[torch.Tensor, torch.Tensor], None],
        known: Iterable[torch.Tensor] = (),
    ) -> None:
        self._write = write
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._containers: list[tuple[Any, list[Any]]] = []
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._ids = set(map(id, known))
        for each in objects:
            # Parameters and buffers are restored elsewhere: FSDP swaps its own, and keeps track of them.
            self._ids |= {id(vars(each).get(name)) for name in ("_parameters", "_buffers")} - {id(None)}
            self._keep(vars(each), 0)

    def restore(self) -> None:
        """Restore everything, each container and tensor being the same object as before."""
        for current, before in self._dicts:
            if list(map(id, current.values())) != list(map(id, before.values())) or current.keys() != before.keys():
                current.clear()
                current.update(before)
        for container, elements in self._containers:
            if list(map(id, container)) != list(map(id, elements)):
                container.clear()
                (container.update if isinstance(container, set) else container.extend)(elements)
        for tensor, value in self._tensors:
            self._write(tensor, value)

    def _keep(self, value: Any, depth: int) -> None:
        """Keep a value, if it is a plain container or a tensor that is not yet kept."""
        if id(value) in self._ids or depth > DEEPEST:
            return
        if isinstance(value, torch.Tensor):
            self._ids.add(id(value))
            if not torch.nn.parameter.is_lazy(value):
                self._tensors.append((value, copy_of(value.detach())))
        elif type(value) in (dict, OrderedDict, defaultdict):
            self._ids.add(id(value))
            self._dicts.append((value, dict(value)))
            self._keep_all(value.values(), depth)
        elif type(value) in (list, set, deque):
            self._ids.add(id(value))
            self._containers.append((value, list(value)))
            self._keep_all(value, depth)
        elif type(value) is tuple:
            self._keep_all(value, depth)

    def _keep_all(self, values: Collection[Any], depth: int) -> None:
        if len(values) <= LARGEST:
            for value in values:
                self._keep(value, depth + 1)
