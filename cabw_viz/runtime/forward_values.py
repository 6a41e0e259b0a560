"""What a backward call begins with, and what a capture without a graph notes of its saved tensors.

A capture with a graph keeps the saved tensors themselves, as inputs of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cabw_viz.record.nonfinite import ValueRange
from cabw_viz.runtime.gradient_snapshots import SMALL, detached_copy
from cabw_viz.runtime.tensor_state import version_of

SavedField = tuple[int, str]
"""An autograd node's number, and the name of the field in which it has saved a tensor."""


@dataclass(frozen=True)
class KeptTensor:
    """A tensor as it was at one moment: a copy of a small one, and itself with its version else."""

    tensor: torch.Tensor
    version: int | None

    @classmethod
    def of(cls, tensor: Any) -> KeptTensor | None:
        """A tensor of the user's; None for anything else, and where it cannot be copied (functorch's wrappers)."""
        if not isinstance(tensor, torch.Tensor):
            return None
        try:
            is_small = tensor.layout is torch.strided and tensor.numel() * tensor.element_size() <= SMALL
            kept = detached_copy(tensor) if is_small else tensor.detach()
            return cls(kept, version_of(kept))
        except Exception:  # noqa: BLE001  # whatever tensor it is, the user's backward must be made
            return None

    @property
    def value(self) -> torch.Tensor | None:
        """The tensor; None where it was changed in place since."""
        return self.tensor if version_of(self.tensor) == self.version else None


@dataclass(frozen=True)
class Root:
    """One root of a backward call."""

    value: KeptTensor | None
    """The loss; None where the call begins at a GradientEdge, or it could not be read."""
    gradient: KeptTensor | None
    """The gradient that the user has passed for it; None where the engine begins with ones."""


def roots_of(tensors: Sequence[Any], gradients: Sequence[Any]) -> tuple[Root, ...]:
    """The roots of a call, and the gradients that were passed for them."""
    padded = (*gradients, *[None] * (len(tensors) - len(gradients)))
    return tuple(Root(KeptTensor.of(each), KeptTensor.of(padded[at])) for at, each in enumerate(tensors))


@dataclass
class ForwardValues:
    """What was noted of a call's forward."""

    roots: tuple[Root, ...] = ()
    ranges: dict[SavedField, ValueRange] = field(default_factory=dict)
    """Of the saved tensors, where the loss is not finite and no graph keeps them."""
    leaves: dict[int, ValueRange] = field(default_factory=dict)
    """The same of the leaves, by the number of the node that accumulates into them."""
    tensors: dict[SavedField, torch.Tensor] = field(default_factory=dict)
    """What the first nodes have saved that make a gradient infinite or NaN, where no graph keeps it."""
    has_forward: bool = False
    """Whether `ranges` and `leaves` were read."""
