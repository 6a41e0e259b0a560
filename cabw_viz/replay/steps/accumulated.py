"""Gradients as the engine accumulates them, for steps that clear `.grad` themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from cabw_viz import torch_adapter
from cabw_viz.runtime.gradient_snapshots import Gradient, detached_copy, strides_of


@contextmanager
def accumulated_gradients(tensors: Iterable[torch.Tensor]) -> Iterator[dict[int, Gradient]]:
    """A context that copies each `.grad` when the engine has accumulated into it, before any hook of the user's.

    A step that updates parameters in hooks, or that calls its optimizer and then sets `.grad` to None, leaves none to
    read. Gives the gradients after the last accumulation, by the `id` of their leaf.

    Args:
        tensors: the leaves; those that need no gradient are left alone.
    """
    copies: dict[int, Gradient] = {}

    def keep(tensor: torch.Tensor) -> None:
        if tensor.grad is not None:
            copies[id(tensor)] = Gradient(detached_copy(tensor.grad), strides_of(tensor.grad))

    leaves = [each for each in tensors if each.requires_grad and each.is_leaf]
    hooks = [torch_adapter.FirstAccumulateHook(tensor, keep) for tensor in leaves]
    try:
        yield copies
    finally:
        for hook in hooks:
            hook.remove()
