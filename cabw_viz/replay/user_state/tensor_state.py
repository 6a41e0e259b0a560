"""The state of one tensor of the user's: compared and put back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.runtime.gradient_snapshots import equal_bits
from cabw_viz.runtime.tensor_state import version_of

COPIED_BYTES = 4 * 2**30
"""How many bytes of values are copied before a run that could write to them without telling; the first tensors count.

Beyond it a write shows in a tensor's version alone, and cannot be put back.
"""


class CopyBudget:
    """How many bytes may still be copied; 0 where nothing in the run can write without a version telling."""

    def __init__(self, left: int) -> None:
        self.left = left

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is copied; counts it."""
        size = tensor.numel() * tensor.element_size()
        if tensor.device.type == "meta" or size > self.left or torch_adapter.is_freed(tensor):
            return False
        self.left -= size
        return True


class PartState:
    """A strided tensor's memory, version and values."""

    def __init__(self, part: torch.Tensor, budget: CopyBudget) -> None:
        self.part = part
        self.alias = part.detach()
        """Another tensor of the same memory, whatever `.data` is assigned to the first."""
        self.location = _location(part)
        self.bytes = _storage_bytes(part)
        self.version = version_of(part)
        # Not on an accelerator, where the memory may be needed.
        self.value = self.alias.detach().to("cpu", copy=True) if budget.takes(part) else None

    def restore(self) -> Iterator[str]:
        """Put everything back; yields what differed, in words."""
        if _location(self.part) != self.location:
            _assign_data(self.part, self.alias)
            yield "has other memory: its .data was assigned"
        if _storage_bytes(self.alias) != self.bytes:
            self.alias.untyped_storage().resize_(self.bytes)
            yield "has a storage of another size" + ("" if self.value is not None else "; its values are lost")
        if self.value is not None and not _has_value(self.alias, self.value):
            self.alias.data.copy_(self.value)
            yield "has other values"
        elif self.value is None and version_of(self.part) != self.version:
            yield "was written to in place; its values could not be put back, for they were not copied"
        if self.version is not None and version_of(self.part) != self.version:
            torch_adapter.set_version(self.part, self.version)


def _location(part: torch.Tensor) -> tuple[Any, ...]:
    storage = part.untyped_storage()
    return (
        torch_adapter.storage_identity(storage), part.storage_offset(), tuple(part.size()), tuple(part.stride()),
        part.dtype, part.device,
    )  # fmt: skip


def _storage_bytes(part: torch.Tensor) -> int:
    return int(part.untyped_storage().nbytes())


def _has_value(part: torch.Tensor, value: torch.Tensor) -> bool:
    return equal_bits(part, value.to(part.device))


def _assign_data(part: torch.Tensor, alias: torch.Tensor) -> None:
    """Give a tensor the memory of another; one on another kind of device does not take it by `.data`."""
    try:
        part.data = alias
    except RuntimeError:
        torch.utils.swap_tensors(part, torch.nn.Parameter(alias) if isinstance(part, torch.nn.Parameter) else alias)


class TensorState:
    """Class, attributes, `requires_grad`, `.grad`, memory and values of a tensor."""

    def __init__(self, label: str, tensor: torch.Tensor, budget: CopyBudget) -> None:
        self.label, self.tensor = label, tensor
        self.cls, self.requires_grad = type(tensor), tensor.requires_grad
        self.inner = dict(torch_adapter.inner_tensors(tensor))
        """What a wrapper subclass is made of, by attribute."""
        self.parts = [PartState(part, budget) for part in _plain_parts(tensor)]
        self.has_grad_field = tensor.is_leaf
        self.grad = tensor.grad if self.has_grad_field else None
        self.grad_state = None if self.grad is None else TensorState(f"{label}.grad", self.grad, budget)

    def restore(self) -> Iterator[str]:
        """Put everything back; yields what differed, in words."""
        tensor = self.tensor
        if type(tensor) is not self.cls:
            yield f"{self.label} is a {type(tensor).__name__} and was a {self.cls.__name__}"
            tensor.__class__ = self.cls
        for name, before in self.inner.items():
            if getattr(tensor, name, None) is not before:
                setattr(tensor, name, before)
                yield f"{self.label} has another {name}"
        for part in self.parts:
            yield from (f"{self.label} {difference}" for difference in part.restore())
        if tensor.requires_grad != self.requires_grad:
            yield f"{self.label}.requires_grad was {self.requires_grad}"
            tensor.requires_grad_(self.requires_grad)
        if self.has_grad_field and tensor.grad is not self.grad:
            yield f"{self.label}.grad is another tensor"
            tensor.grad = self.grad
        if self.grad_state is not None:
            yield from self.grad_state.restore()


def _plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Those whose memory can be compared."""
    return [part for part in torch_adapter.plain_parts(tensor) if torch_adapter.storages_of(part)]
