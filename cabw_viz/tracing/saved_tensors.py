"""The tensors that each autograd node has saved for its backward, as plain data: read before the backward frees them.

No hook is called and no tensor is kept: a key of numbers finds a tensor again among the graph's inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.record.changed import changed
from cabw_viz.record.model import AutogradNode, GradientSpec, LiftedInput, SavedTensor
from cabw_viz.torch_adapter import PACKED
from cabw_viz.tracing.extract import ReadGraph
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes

TensorKey = tuple[Any, ...]
"""Identifies a tensor by its memory: storages, shape, strides, offset and dtype."""


@dataclass
class SavedTensorIndex:
    """The memory of each saved tensor."""

    keys: dict[tuple[int, str], TensorKey] = field(default_factory=dict)
    """By node and field."""

    def link_to_inputs(
        self,
        nodes: Sequence[AutogradNode],
        inputs: Sequence[LiftedInput],
        keys: Sequence[TensorKey | None],
        graph: ReadGraph,
    ) -> tuple[AutogradNode, ...]:
        """Autograd nodes with the input of the graph that each of their saved tensors is.

        Args:
            nodes: with their saved tensors.
            inputs: the graph's inputs.
            keys: of the tensors that the graph runs on, by index.
            graph: the traced graph.
        """
        by_use: dict[tuple[int, TensorKey], int] = {}
        for row in reversed(inputs):
            key = keys[row.index] if row.index < len(keys) else None
            for user in graph.nodes[row.graph_node].users if key is not None else ():
                number = graph.nodes[user].autograd_node
                if number is not None and key is not None:
                    by_use[number, key] = row.index
        return tuple(
            changed(node, saved=tuple(self._link_to_input(node.number, by_use, row) for row in node.saved))
            for node in nodes
        )

    def _link_to_input(self, number: int, by_use: dict[tuple[int, TensorKey], int], row: SavedTensor) -> SavedTensor:
        key = self.keys.get((number, row.field))
        index = None if key is None else by_use.get((number, key))
        return row if index is None else changed(row, input=index)


def read(
    nodes: Sequence[AutogradNode], numbering: NumberedNodes, names: Names
) -> tuple[SavedTensorIndex, tuple[AutogradNode, ...]]:
    """The memory of the saved tensors, and the nodes with them as records."""
    with torch_adapter.below_modes_and_functions():
        reader = _Reader(numbering, names)
        return reader.index, tuple(reader.read(node) for node in nodes)


def tensor_keys(inputs: Sequence[Any]) -> list[TensorKey | None]:
    """Keys of the tensors that a graph is about to run on; empty where they cannot be read."""
    with torch_adapter.below_modes_and_functions():
        try:
            return [_tensor_key(tensor) if isinstance(tensor, torch.Tensor) else None for tensor in inputs]
        except Exception:  # noqa: BLE001  # whatever tensor it is, the user's backward must go on
            return []


class _Reader:
    def __init__(self, numbering: NumberedNodes, names: Names) -> None:
        self.index = SavedTensorIndex()
        self._numbering, self._names = numbering, names
        self._storages: dict[tuple[int, ...], int] = {}
        self._specs: dict[Any, tuple[GradientSpec | None, ...]] = {}
        """What is expected of the gradients that enter each node."""
        self._named: dict[tuple[int, ...], list[tuple[TensorKey, tuple[str, ...]]]] = {}
        for names_of_tensor, tensor in names.named_tensors():
            key = _tensor_key(tensor)
            self._named.setdefault(key[0], []).append((key, names_of_tensor))

    def read(self, node: AutogradNode) -> AutogradNode:
        fn = self._numbering.nodes[node.number]
        saved = () if fn is ROOT else tuple(self._rows(node, fn))
        return changed(node, saved=saved, gradients_in=self._specs_in(fn), gradients_out=self._specs_out(fn))

    def _rows(self, node: AutogradNode, fn: Any) -> Iterator[SavedTensor]:
        aot_nodes = iter(torch_adapter.aot_placeholders(fn) if node.kind == "aot_backward" else ())
        for name, value, maker in torch_adapter.saved_values(fn):
            aot_node = next(aot_nodes, "")
            if value is PACKED:
                yield SavedTensor(name, packed=True, aot_node=aot_node)
            elif isinstance(value, torch.Tensor):
                made_by = None if maker is None else self._numbering.number_of(maker)
                yield changed(self._row(node.number, name, value), made_by=made_by, aot_node=aot_node)
        if torch_adapter.is_python_function(fn):
            yield from (self._row(node.number, name, value) for name, value in torch_adapter.ctx_tensors(fn))

    def _row(self, number: int, name: str, tensor: torch.Tensor) -> SavedTensor:
        key = _tensor_key(tensor)
        self.index.keys[number, name] = key
        storages = torch_adapter.storages_of(tensor)
        names, view_of = self._names_of(tensor, key)
        return SavedTensor(
            name,
            torch_adapter.shape_of(tensor),
            str(tensor.dtype),
            str(tensor.device),
            torch_adapter.bytes_of_elements(tensor),
            self._storages.setdefault(key[0], len(self._storages)) if storages else None,
            sum(size for _, size in storages),
            names,
            view_of,
        )

    def _names_of(self, tensor: torch.Tensor, key: TensorKey) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of a tensor, and of the one parameter or buffer that it is another view of."""
        own_names = self._names.names_of(tensor)
        same_storage = self._named.get(key[0], []) if not own_names else []
        names = next((other_names for other, other_names in same_storage if other == key), own_names)
        return names, same_storage[0][1] if not names and len(same_storage) == 1 else ()

    def _specs_out(self, fn: Any) -> tuple[GradientSpec | None, ...]:
        specs = ((self._specs_in(node), nr) for node, nr in self._numbering.targets(fn))
        return tuple(inputs[nr] if nr < len(inputs) else None for inputs, nr in specs)

    def _specs_in(self, fn: Any) -> tuple[GradientSpec | None, ...]:
        if fn is ROOT:
            return ()
        if fn not in self._specs:
            specs = torch_adapter.gradient_specs(fn)
            self._specs[fn] = tuple(None if spec is None else GradientSpec(*spec) for spec in specs)
        return self._specs[fn]


def _tensor_key(tensor: torch.Tensor) -> TensorKey:
    storages = tuple(identity for identity, _ in torch_adapter.storages_of(tensor))
    shape = torch_adapter.shape_of(tensor)
    if tensor.layout is not torch.strided or tensor.is_nested or not storages:
        return storages or (id(tensor),), shape, str(tensor.dtype)
    return storages, shape, tensor.stride(), tensor.storage_offset(), str(tensor.dtype)
