"""What each autograd node holds for its backward, as plain data: read before the backward frees it.

No hook is called and no tensor is kept: what is needed to find one again among the graph's inputs is kept as numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.record.model import AutogradNode, GradientSpec, LiftedInput, SavedTensor
from cabw_viz.torch_adapter import PACKED
from cabw_viz.tracing.extract import ReadGraph
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes

TensorKey = tuple[Any, ...]
"""Tells a tensor as a piece of memory: its storages, and how it lies in them."""


@dataclass
class SavedTensorIndex:
    """Which piece of memory each saved tensor is."""

    keys: dict[tuple[int, str], TensorKey] = field(default_factory=dict)
    """By node and field."""

    def link_to_inputs(
        self,
        nodes: Sequence[AutogradNode],
        inputs: Sequence[LiftedInput],
        keys: Sequence[TensorKey | None],
        view: ReadGraph,
    ) -> tuple[AutogradNode, ...]:
        """Autograd nodes whose saved tensors know which input of the graph they are.

        Args:
            nodes: with their saved tensors.
            inputs: the graph's inputs.
            keys: of the tensors that the graph runs on, by index.
            view: the graph.
        """
        by_use: dict[tuple[int, TensorKey], int] = {}
        for row in reversed(inputs):
            key = keys[row.index] if row.index < len(keys) else None
            for user in view.nodes[row.graph_node].users if key is not None else ():
                number = view.nodes[user].autograd_node
                if number is not None and key is not None:
                    by_use[number, key] = row.index
        return tuple(
            replace(node, saved=tuple(self._link_to_input(node.number, by_use, row) for row in node.saved))
            for node in nodes
        )

    def _link_to_input(self, number: int, by_use: dict[tuple[int, TensorKey], int], row: SavedTensor) -> SavedTensor:
        key = self.keys.get((number, row.field))
        found = None if key is None else by_use.get((number, key))
        return row if found is None else replace(row, input=found)


def read(
    nodes: Sequence[AutogradNode], walk: NumberedNodes, names: Names
) -> tuple[SavedTensorIndex, tuple[AutogradNode, ...]]:
    """Read what the nodes hold; they come back with it."""
    with torch_adapter.without_any_torch_function(), torch_adapter.below_modes():
        reader = _Reader(walk, names)
        return reader.holding, tuple(reader.read(node) for node in nodes)


def tensor_keys(inputs: Sequence[Any]) -> list[TensorKey | None]:
    """Keys of the tensors that a graph is about to run on."""
    with torch_adapter.without_any_torch_function(), torch_adapter.below_modes():
        try:
            return [_tensor_key(tensor) if isinstance(tensor, torch.Tensor) else None for tensor in inputs]
        except Exception:  # noqa: BLE001  # whatever tensor it is, the user's backward must go on
            return []


class _Reader:
    def __init__(self, walk: NumberedNodes, names: Names) -> None:
        self.holding = SavedTensorIndex()
        self._walk, self._names = walk, names
        self._storages: dict[tuple[int, ...], int] = {}
        self._named: dict[tuple[int, ...], list[tuple[TensorKey, tuple[str, ...]]]] = {}
        for given, tensor in names.named_tensors():
            key = _tensor_key(tensor)
            self._named.setdefault(key[0], []).append((key, given))

    def read(self, node: AutogradNode) -> AutogradNode:
        live = self._walk.nodes[node.number]
        saved = () if live is ROOT else tuple(self._rows(node, live))
        return replace(node, saved=saved, gradients_in=_entering(node, live), gradients_out=self._leaving(live))

    def _rows(self, node: AutogradNode, live: Any) -> Iterator[SavedTensor]:
        places = iter(torch_adapter.aot_placeholders(live) if node.kind == "aot_backward" else ())
        for name, value, maker in torch_adapter.saved_values(live):
            aot_node = next(places, "")
            if value is PACKED:
                yield SavedTensor(name, packed=True, aot_node=aot_node)
            elif isinstance(value, torch.Tensor):
                made_by = None if maker is None else self._walk.number_of(maker)
                yield replace(self._row(node.number, name, value), made_by=made_by, aot_node=aot_node)
        if torch_adapter.is_python_function(live):
            yield from (self._row(node.number, name, value) for name, value in torch_adapter.ctx_tensors(live))

    def _row(self, number: int, name: str, tensor: torch.Tensor) -> SavedTensor:
        key = _tensor_key(tensor)
        self.holding.keys[number, name] = key
        storages = torch_adapter.storages_of(tensor)
        names, view_of = self._names_of(tensor, key)
        return SavedTensor(
            name,
            torch_adapter.shape_of(tensor),
            str(tensor.dtype),
            str(tensor.device),
            tensor.numel() * tensor.element_size(),
            self._storages.setdefault(key[0], len(self._storages)) if storages else None,
            sum(size for _, size in storages),
            names,
            view_of,
        )

    def _names_of(self, tensor: torch.Tensor, key: TensorKey) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of a tensor, and of the one parameter or buffer that it is another view of."""
        known = self._names.names_of(tensor)
        same_memory = self._named.get(key[0], []) if not known else []
        names = next((given for other, given in same_memory if other == key), known)
        return names, same_memory[0][1] if not names and len(same_memory) == 1 else ()

    def _leaving(self, live: Any) -> tuple[GradientSpec | None, ...]:
        edges = self._walk.roots if live is ROOT else live.next_functions
        return tuple(None if node is None else _spec(node, nr) for node, nr in edges)


def _entering(node: AutogradNode, live: Any) -> tuple[GradientSpec | None, ...]:
    return () if live is ROOT else tuple(_spec(live, nr) for nr in range(node.inputs))


def _spec(live: Any, nr: int) -> GradientSpec | None:
    found = torch_adapter.gradient_spec(live, nr)
    return None if found is None else GradientSpec(*found)


def _tensor_key(tensor: torch.Tensor) -> TensorKey:
    storages = tuple(identity for identity, _ in torch_adapter.storages_of(tensor))
    shape = torch_adapter.shape_of(tensor)
    if tensor.layout is not torch.strided or not storages:
        return storages or (id(tensor),), shape, str(tensor.dtype)
    return storages, shape, tensor.stride(), tensor.storage_offset(), str(tensor.dtype)
