"""What a step works on: its parameters and buffers by name, kept before a run and put back after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from cabw_viz.errors import CabwError
from cabw_viz.numerics.compare import bitwise_equal
from cabw_viz.runtime.capture_state import copy_of

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Only these are put back in a module's place of them: who swaps others (FSDP) keeps books on it."""


@dataclass(frozen=True)
class Subject:
    """A step and what it works on."""

    step: Callable[[], Any]
    params: Any
    """An nn.Module, or a mapping of names to leaf tensors; `check` says whether it is."""

    def check(self) -> None:
        """Raise a CabwError where the parameters are not a module or leaf tensors by name."""
        if isinstance(self.params, torch.nn.Module):
            return
        if not isinstance(self.params, Mapping):
            raise _no_params(f"a {type(self.params).__name__}")
        for name, tensor in self.params.items():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise _no_params(f"a mapping with the entry {name!r}: {type(tensor).__name__}")
            if not tensor.is_leaf:
                raise _no_params(f"{name!r}, which is no leaf but the result of {tensor.grad_fn}")

    def places(self) -> Iterator[Place]:
        """Each parameter and buffer as it stands now, a shared one once, under its first name."""
        seen = set()
        for place in _all_places(self.params):
            if id(place.tensor) not in seen:
                seen.add(id(place.tensor))
                yield place


def _no_params(seen: str) -> CabwError:
    return CabwError(
        f"compare() got {seen} as its parameters",
        expected="an nn.Module, or a mapping of names to leaf tensors",
        try_="compare(step, model), or compare(step, {'w': w})",
    )


@dataclass(frozen=True)
class Place:
    """A tensor where it stands: in a module under an attribute, or in a mapping."""

    name: str
    tensor: torch.Tensor
    is_buffer: bool
    owner: torch.nn.Module | None = None
    attribute: str = ""


def _all_places(params: Any) -> Iterator[Place]:
    if not isinstance(params, torch.nn.Module):
        for name, tensor in params.items():
            wants = tensor.requires_grad or isinstance(tensor, torch.nn.Parameter)
            yield Place(name, tensor, not wants)
        return
    for path, module in params.named_modules():
        prefix = f"{path}." if path else ""
        for is_buffer, tensors in (False, module.named_parameters), (True, module.named_buffers):
            for attribute, tensor in tensors(recurse=False):
                name = (prefix + attribute).replace("_orig_mod.", "")  # what torch.compile(model) puts in between
                yield Place(name, tensor, is_buffer, module, attribute)


@dataclass
class Kept:
    """What a tensor was before a run."""

    place: Place
    value: torch.Tensor | None = field(init=False)
    """A copy; None of a lazy parameter that has no value yet."""
    grad: torch.Tensor | None = field(init=False)
    grad_value: torch.Tensor | None = field(init=False)
    requires_grad: bool = field(init=False)

    def __post_init__(self) -> None:
        tensor = self.place.tensor
        self.value = None if torch.nn.parameter.is_lazy(tensor) else copy_of(tensor.detach())
        self.grad = tensor.grad
        self.grad_value = None if self.grad is None else copy_of(self.grad.detach())
        self.requires_grad = tensor.requires_grad

    def put_back(self) -> None:
        """Give the tensor its value, `.grad` and wish for a gradient again, and its module the tensor."""
        place, tensor = self.place, self.place.tensor
        if self.value is not None:
            write(tensor, self.value)
        if tensor.requires_grad != self.requires_grad:
            tensor.requires_grad_(self.requires_grad)
        if self.grad is not None and self.grad_value is not None:
            write(self.grad, self.grad_value)
        tensor.grad = self.grad
        if place.owner is not None:
            now = getattr(place.owner, place.attribute, None)
            if now is not tensor and type(now) in (*PLAIN, type(None)) and type(tensor) in PLAIN:
                setattr(place.owner, place.attribute, tensor)


class State:
    """The parameters, buffers, gradients and training flags of a subject, as they were when this was made."""

    def __init__(self, subject: Subject) -> None:
        self.kept = [Kept(place) for place in subject.places()]
        params = subject.params
        modules = list(params.modules()) if isinstance(params, torch.nn.Module) else []
        self._training = [(module, module.training) for module in modules]

    def values(self) -> dict[str, torch.Tensor]:
        """The values by name."""
        return {kept.place.name: kept.value for kept in self.kept if kept.value is not None}

    def load(self, values: Mapping[str, torch.Tensor]) -> None:
        """Give the tensors of these names these values, as far as the shapes are the same."""
        for kept in self.kept:
            value = values.get(kept.place.name)
            if value is not None and kept.value is not None and value.shape == kept.value.shape:
                with torch.no_grad():
                    write(kept.place.tensor, value.to(kept.value.device, kept.value.dtype))

    def put_back(self) -> None:
        """Make everything as it was."""
        for kept in self.kept:
            kept.put_back()
        for module, training in self._training:
            module.training = training


def write(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Give a tensor this value where it has another.

    Through `.data`, and only where needed: a graph that saved the tensor before is not told of a change that is none.
    """
    if (tensor.shape, tensor.dtype, tensor.device) != (value.shape, value.dtype, value.device):
        tensor.data = copy_of(value)
    elif not _same(tensor.detach(), value):
        tensor.data.copy_(value)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors surely hold the same; a subclass that cannot tell is taken to differ."""
    if one.layout is not torch.strided:
        return False
    try:
        return bitwise_equal(one, other)
    except Exception:  # noqa: BLE001  # whatever an operator of a subclass raises, writing is always right
        return False
