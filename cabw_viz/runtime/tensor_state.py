"""Where a tensor lies, how often it was written to, and copies of it."""

from __future__ import annotations

from typing import Any

import torch

from cabw_viz import torch_adapter


def copy_of(tensor: Any) -> Any:
    """A copy that later in-place changes do not reach, strides kept; a tensor whose memory is freed as it is."""
    if isinstance(tensor, torch.Tensor) and torch_adapter.is_freed(tensor):
        return tensor
    return tensor.detach().clone().requires_grad_(tensor.requires_grad) if isinstance(tensor, torch.Tensor) else tensor


def version_of(tensor: Any) -> int | None:
    """How often a tensor was changed in place; None for inference tensors, which keep no count."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_inference():
        return None
    return torch_adapter.version(tensor)


def storage_location(tensor: Any) -> tuple[Any, ...] | None:
    """The address, offset, dtype and device of a tensor's elements: assigning `.data` changes these, and no version.

    None for tensors of other classes or layouts, and for tensors without elements.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return None
    try:
        address = tensor.untyped_storage().data_ptr()
    except RuntimeError:  # functorch's wrappers have none
        return None
    return (address, tensor.storage_offset(), tensor.dtype, tensor.device) if address else None
