"""What a capture without a graph notes of its forward, for `cap.nonfinite()`.

A graph keeps the saved tensors as its inputs. Without one they are freed while the backward runs; so they are read
before it where the loss is not finite, and else when a node makes a gradient NaN or infinite. A backward in which all
is finite costs one look at its loss, and one at each gradient that is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import warn
from cabw_viz.runtime.capture_state import CaptureState
from cabw_viz.runtime.forward_values import SavedField
from cabw_viz.runtime.gradient_snapshots import detached_copy
from cabw_viz.runtime.value_ranges import has_numbers, is_finite, value_range
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes

MOST_NOTED = 3
"""Of how many nodes that make NaN or infinity of finite gradients the saved tensors are kept."""


def note_forward(state: CaptureState, numbering: NumberedNodes) -> None:
    """Note the figures of all saved tensors and leaves, where the loss is not finite and no graph keeps them."""
    if state.arguments is not None:
        return
    try:
        with torch_adapter.unseen_operators():
            losses = [root.value.value for root in state.forward_values.roots if root.value is not None]
            if any(loss is not None and is_finite(loss) is False for loss in losses):
                _note(state, numbering)
    except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must be made
        warn(f"the saved tensors of this backward were noted in part ({type(error).__name__}: {error})")


def _note(state: CaptureState, numbering: NumberedNodes) -> None:
    values = state.forward_values
    values.has_forward = True
    for number, node in enumerate(numbering.nodes):
        if node is ROOT:
            continue
        for name, tensor in _saved(node):
            if (figures := value_range(tensor)) is not None:
                values.ranges[number, name] = figures
        if (figures := value_range(getattr(node, "variable", None))) is not None:
            values.leaves[number] = figures


def _saved(node: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(field, tensor) of what an autograd node has saved, packed tensors left out."""
    fields = [(name, value) for name, value, _ in torch_adapter.saved_values(node)]
    if torch_adapter.is_python_function(node):
        fields += torch_adapter.ctx_tensors(node)
    yield from ((name, value) for name, value in fields if has_numbers(value))


@dataclass
class SavedOfOrigins:
    """Keeps the saved tensors of the first nodes that make NaN or infinity of finite gradients."""

    numbering: NumberedNodes
    tensors: dict[SavedField, torch.Tensor]
    _count: int = field(default=0)

    def look(self, number: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Look at what flowed into and out of a node that has just run; its saved tensors are freed after this."""
        if self._count == MOST_NOTED or not any(map(_is_bad, outputs)) or any(map(_is_bad, inputs)):
            return
        self._count += 1
        for name, tensor in _saved(self.numbering.nodes[number]):
            self.tensors[number, name] = detached_copy(tensor)


def _is_bad(gradient: Any) -> bool:
    return isinstance(gradient, torch.Tensor) and not _has_finite_sum(gradient) and is_finite(gradient) is False


def _has_finite_sum(gradient: torch.Tensor) -> bool:
    """Whether the sum of the elements is finite, so that all of them are: quicker than a look at each."""
    if type(gradient) is not torch.Tensor or gradient.dtype not in _SUMMED or gradient.layout is not torch.strided:
        return False
    try:
        total = gradient.detach().sum().item()
    except RuntimeError:  # one of vmap's, or a nested one: each element is looked at then
        return False
    return total - total == 0.0


_SUMMED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
