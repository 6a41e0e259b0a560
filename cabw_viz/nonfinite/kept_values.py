"""The saved tensors and the leaves of a captured backward, read when they are asked for.

A graph keeps them as its inputs. Of a capture without a graph there is what `tracing/saved_values.py` has noted.
What was written to since the backward is not read: it would show what came later.
"""

from __future__ import annotations

from functools import cached_property

import torch

from cabw_viz.record.model import AutogradNode, LiftedInput, SavedTensor
from cabw_viz.record.nonfinite import ValueRange
from cabw_viz.runtime.bit_sums import bit_sums, has_same_bits
from cabw_viz.runtime.capture_state import Arguments, Captured
from cabw_viz.runtime.forward_values import SavedField
from cabw_viz.runtime.tensor_state import storage_location, version_of
from cabw_viz.runtime.value_ranges import has_numbers, is_finite, value_range


class KeptValues:
    """What is kept of the forward of a captured backward."""

    def __init__(self, captured: Captured) -> None:
        self.record, self._state = captured.record, captured.state
        self._noted = captured.state.forward_values
        self._ranges: dict[int, ValueRange | None] = {}
        self._finite: dict[int, bool | None] = {}
        self.changed: set[int] = set()
        """Indices of the inputs that were written to since the backward."""
        self._fields = {
            (node.number, row.field): row for node in self.record.autograd_nodes for row in node.saved if not row.packed
        }

    @property
    def _arguments(self) -> Arguments | None:
        return self._state.arguments

    @cached_property
    def _leaf_inputs(self) -> dict[tuple[str, ...], LiftedInput]:
        return {row.names: row for row in self.record.inputs if row.names}

    # -- saved tensors -----------------------------------------------------------------------------------------

    def saved_is_finite(self, number: int, row: SavedTensor) -> bool | None:
        """Whether a saved tensor is finite; None where it was not kept, or was written to since."""
        if (number, row.field) in self._noted.ranges:
            return self._noted.ranges[number, row.field].is_finite
        index = self._index(number, row)
        if index is not None:
            return self._input_is_finite(index)
        tensor = self._noted.tensors.get((number, row.field))
        return None if tensor is None else is_finite(tensor)

    def saved_range(self, number: int, row: SavedTensor) -> ValueRange | None:
        """The figures of a saved tensor; None as above."""
        if (number, row.field) in self._noted.ranges:
            return self._noted.ranges[number, row.field]
        index = self._index(number, row)
        if index is not None:
            return self._input_range(index)
        tensor = self._noted.tensors.get((number, row.field))
        return None if tensor is None else value_range(tensor)

    def saved_tensor(self, number: int, row: SavedTensor) -> torch.Tensor | None:
        """A saved tensor itself; None as above."""
        index = self._index(number, row)
        if index is not None:
            return self._input(index)
        return self._noted.tensors.get((number, row.field))

    def saved_mask(self, number: int, row: SavedTensor) -> torch.Tensor | None:
        """A saved tensor of truth values; None where it was not kept, or was written to since."""
        index = self._index(number, row)
        tensor = self._arguments.inputs[index] if index is not None and self._arguments is not None else None
        is_mask = isinstance(tensor, torch.Tensor) and tensor.dtype is torch.bool
        return tensor if is_mask and index is not None and self._is_unchanged(index) else None

    def field(self, node: AutogradNode, *names: str) -> ValueRange | None:
        """The figures of the first of these fields that an autograd node has."""
        rows = (self._fields.get((node.number, name)) for name in names)
        return next((self.saved_range(node.number, row) for row in rows if row is not None), None)

    def _index(self, number: int, row: SavedTensor) -> int | None:
        if self._arguments is None or _is_running_statistic(self.record.by_number[number], row):
            return None
        if row.input is not None:
            return row.input
        named = self._leaf_inputs.get(row.names) if row.names else None
        return None if named is None else named.index

    # -- leaves ------------------------------------------------------------------------------------------------

    def leaf_range(self, node: AutogradNode) -> ValueRange | None:
        """The figures of the leaf into whose `.grad` a node accumulates; None as above."""
        if node.number in self._noted.leaves:
            return self._noted.leaves[node.number]
        leaf = None if node.leaf is None else self.record.leaves[node.leaf]
        row = None if leaf is None or self._arguments is None else self._leaf_inputs.get(leaf.names)
        return None if row is None else self._input_range(row.index)

    # -- inputs of the graph -----------------------------------------------------------------------------------

    def _input(self, index: int) -> torch.Tensor | None:
        """An input of the graph as it was in the backward; None where it is not a tensor of numbers, or was changed."""
        arguments = self._arguments
        assert arguments is not None  # `_index` gives no number then
        tensor = arguments.inputs[index]
        return tensor if has_numbers(tensor) and self._is_unchanged(index) else None

    def _is_unchanged(self, index: int) -> bool:
        arguments = self._arguments
        assert arguments is not None  # as above
        tensor, version = arguments.inputs[index], arguments.versions[index]
        before, now = arguments.storage_locations[index], storage_location(tensor)
        if (version is not None and version_of(tensor) != version) or (before and now and before != now):
            self.changed.add(index)
        return index not in self.changed

    def _input_is_finite(self, index: int) -> bool | None:
        if index not in self._finite:
            tensor = self._input(index)
            finite = None if tensor is None else is_finite(tensor)
            if finite is False and tensor is not None and not self._has_same_bits(index, tensor):
                self.changed.add(index)  # a write that no version counts
                finite = None
            self._finite[index] = finite
        return self._finite[index]

    def _has_same_bits(self, index: int, tensor: torch.Tensor) -> bool:
        assert self._arguments is not None  # it is one of its inputs
        before = self._arguments.bits
        return index >= len(before) or has_same_bits(before[index], bit_sums([tensor])[0])

    def _input_range(self, index: int) -> ValueRange | None:
        if index not in self._ranges:
            tensor = None if self._input_is_finite(index) is None else self._input(index)
            self._ranges[index] = None if tensor is None else value_range(tensor)
        return self._ranges[index]

    # -- what there is -----------------------------------------------------------------------------------------

    def nonfinite_saved(self) -> list[tuple[SavedField, SavedTensor]]:
        """The saved tensors that are known to hold NaN or infinity."""
        return [(key, row) for key, row in self._fields.items() if self.saved_is_finite(key[0], row) is False]

    @property
    def readable(self) -> int:
        """How many saved tensors can be read."""
        return sum(self.saved_is_finite(number, row) is not None for (number, _), row in self._fields.items())

    @property
    def unreadable(self) -> int:
        """How many saved tensors of floating or complex numbers cannot be read, running statistics not counted."""
        return sum(
            self.saved_is_finite(number, row) is None
            and not _is_running_statistic(self.record.by_number[number], row)
            and row.dtype.removeprefix("torch.").startswith(("float", "bfloat", "complex"))
            for (number, _), row in self._fields.items()
        )


def _is_running_statistic(node: AutogradNode, row: SavedTensor) -> bool:
    """Whether it is a statistic that a batch normalization in training updates and does not read.

    It then saves the mean and the variance of the batch, too; else these are empty.
    """
    if row.field not in ("running_mean", "running_var"):
        return False
    return any(each.field == "result1" and each.shape != (0,) for each in node.saved)
