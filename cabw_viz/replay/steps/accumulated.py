"""Gradients as the engine accumulates them, for steps that clear `.grad` themselves."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import torch

from cabw_viz import torch_adapter
from cabw_viz.runtime.gradient_snapshots import Gradient, detached_copy, strides_of


class AccumulatedGradients:
    """A context that copies each `.grad` when the engine has accumulated into it, before any hook of the user's.

    A step that clips and updates in hooks, or that calls its optimizer and sets `.grad` to None, leaves none to read.

    Args:
        tensors: the leaves; those that need no gradient are left alone.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = [each for each in tensors if each.requires_grad and each.is_leaf]
        self._copies: dict[int, Gradient] = {}
        self._undo: list[torch_adapter.FirstAccumulateHook] = []

    def __enter__(self) -> AccumulatedGradients:
        self._undo = [torch_adapter.FirstAccumulateHook(tensor, self._copy) for tensor in self._tensors]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for hook in self._undo:
            hook.remove()

    def __bool__(self) -> bool:
        return bool(self._copies)

    def of(self, tensor: torch.Tensor) -> Gradient | None:
        """The gradient of a leaf after its last accumulation; None where there was none."""
        return self._copies.get(id(tensor))

    def _copy(self, tensor: torch.Tensor) -> None:
        if tensor.grad is not None:
            self._copies[id(tensor)] = Gradient(detached_copy(tensor.grad), strides_of(tensor.grad))
