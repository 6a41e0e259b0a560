"""The metadata of tensors that an autograd node uses: symbolic inputs of the graph, and constants in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.record.model import AutogradNode, Baked, GraphNode, LiftedSize, LiftedUse
from cabw_viz.tracing.extract import ReadGraph
from cabw_viz.tracing.ivalue_packer import packed_fields
from cabw_viz.tracing.saved_field_names import UNKNOWN, align, attribute_of


@dataclass(frozen=True)
class Role:
    """What a value is to its graph node, as text."""

    whole: str
    """Text for the value itself."""
    element: str
    """Text for one element of it, with `{}` for the element's number."""

    def of_element(self, index: int) -> Role:
        """The role of one element."""
        text = self.element.format(index)
        return Role(text, f"{text.replace('{', '{{').replace('}', '}}')}, element {{}}")


def field_role(name: str) -> Role:
    """A saved field: `self_sym_sizes`, `self_sym_sizes[0]`."""
    return Role(name, f"{name}[{{}}]")


def argument_role(position: int, row: GraphNode) -> Role:
    """An argument without a name."""
    text = f"argument {position} of {row.target.removeprefix('ops.').rpartition('::')[2]}"
    return Role(text, f"{text}, element {{}}")


def dimension_role(text: str) -> Role:
    """Sizes or strides of a tensor."""
    return Role(text, f"{text}, dimension {{}}")


@dataclass
class MetadataUses:
    """The metadata that one autograd node uses."""

    lifted: list[LiftedUse] = field(default_factory=list)
    baked: list[Baked] = field(default_factory=list)


class MetadataReader:
    """Reads metadata from the arguments of graph nodes.

    read
    ├─ _validate_outputs      one entry for each gradient that flows out
    ├─ _backward_call         an op's saved fields
    ├─ _copy_slices_prologue  geometry of base and view
    ├─ _copy_slices_epilogue
    ├─ _accumulate_grad
    └─ _operator              a compiled region's ops, by the names of their schemas

    Args:
        graph: the captured graph.
        sizes: its symbolic inputs.
        autograd: the autograd nodes by number, for the values of their fields; empty where those must not be read.
    """

    def __init__(self, graph: ReadGraph, sizes: Sequence[LiftedSize], autograd: Sequence[Any]) -> None:
        self.graph, self.autograd = graph, autograd
        self.values = {size.index: size.value for size in sizes}
        self.indices = _size_indices(graph)
        self.uses: dict[int, MetadataUses] = {}
        """By number of the autograd node."""
        self._current = MetadataUses()

    def read(self) -> dict[int, MetadataUses]:
        """The metadata that each autograd node uses, by its number."""
        for row, node in zip(self.graph.nodes, self.graph.fx_nodes, strict=True):
            read_node = READERS.get(row.kind)
            if read_node is not None and row.autograd_node is not None:
                self._current = self.uses.setdefault(row.autograd_node, MetadataUses())
                read_node(self, row, node)
        return self.uses

    # -- graph nodes -----------------------------------------------------------------------------------------

    def _validate_outputs(self, row: GraphNode, node: torch.fx.Node) -> None:
        del row
        for number, entry in enumerate(_items(node, 1)):
            self._add(entry, dimension_role(f"gradient {number}"))

    def _backward_call(self, row: GraphNode, node: torch.fx.Node) -> None:
        if not row.target.startswith("ops."):  # a Python Function: its ctx holds what it saved
            return
        rest = list(enumerate(node.args))[1:]  # the first argument is the list of gradients
        if rest and _is_flags(rest[0][1]):
            self._add(rest.pop(0)[1], field_role("needs_input_grad"))
        names = self._names(row, [value for _, value in rest])
        for (position, value), name in zip(rest, names, strict=True):
            self._add(value, field_role(name) if name else argument_role(position, row), name or "")

    def _copy_slices_prologue(self, row: GraphNode, node: torch.fx.Node) -> None:
        del row
        for side, geometry in zip(("base", "view"), torch_adapter.copy_slices_geometry(node.args), strict=True):
            for what, value in zip(("size", "stride", "storage_offset"), geometry, strict=True):
                self._add(value, dimension_role(f"{side} {what.replace('_', ' ')}"), attribute=what)

    def _copy_slices_epilogue(self, row: GraphNode, node: torch.fx.Node) -> None:
        del row
        self._add(torch_adapter.needs_input_grad(node.args), field_role("needs_input_grad"))

    def _accumulate_grad(self, row: GraphNode, node: torch.fx.Node) -> None:
        del row
        accumulates = torch_adapter.has_old_gradient(node.args)
        if accumulates is not None:
            self._add(accumulates, field_role("accumulates into a .grad"))
        self._add(torch_adapter.has_post_hooks(node.args), field_role("has_post_hooks"))

    def _operator(self, row: GraphNode, node: torch.fx.Node) -> None:
        names = torch_adapter.argument_names(node.target)
        call = f"{row.name} ({row.target})"
        for position, value in enumerate(node.args):
            name = names[position] if position < len(names) else f"argument {position}"
            self._add(value, Role(f"{name} of {call}", f"{name}[{{}}] of {call}"), name)
        for name, value in node.kwargs.items():
            self._add(value, Role(f"{name} of {call}", f"{name}[{{}}] of {call}"), name)

    # -- values ----------------------------------------------------------------------------------------------

    def _add(self, value: Any, role: Role, name: str = "", attribute: str = "") -> None:
        """Add a value to the uses of the current node, if it is a symbolic input or a constant."""
        packed = packed_fields(value)
        if packed is not None:
            for field_ in packed:
                inner = dimension_role(f"{role.whole}, {field_.name}" if field_.name else role.whole)
                self._add_packed(field_.value, inner, field_.attribute)
        elif isinstance(value, torch.fx.Node):
            for index in self.indices.get(value, ()):
                self._current.lifted.append(LiftedUse(index, role.whole, self.values.get(index, 0)))
        elif isinstance(value, list | tuple):
            self._add_items(value, role, name, attribute)
        elif value is not None and not isinstance(value, torch.SymInt | torch.SymFloat):
            kind = attribute or attribute_of(name, value)
            self._current.baked.append(Baked(kind, _text(value), role.whole))

    def _add_items(self, value: Sequence[Any], role: Role, name: str, attribute: str) -> None:
        if value and all(isinstance(item, int | float | complex) for item in value):
            kind = attribute or attribute_of(name, list(value))
            self._current.baked.append(Baked(kind, _text(list(value)), role.whole))
            return
        for index, item in enumerate(value):
            self._add(item, role.of_element(index), name, attribute)

    def _add_packed(self, value: Any, role: Role, attribute: str) -> None:
        if isinstance(value, str):  # the text of what was a number
            self._current.baked.append(Baked(attribute, value, role.whole))
        else:
            self._add(value, role, attribute=attribute)

    # -- names of an op's saved fields -----------------------------------------------------------------------

    def _names(self, row: GraphNode, arguments: list[Any]) -> list[str | None]:
        assert row.autograd_node is not None  # or it would not be read
        op = row.target.removeprefix("ops.")
        node = self.autograd[row.autograd_node] if self.autograd else None
        values = torch_adapter.field_values(node, op)
        for order in torch_adapter.saved_fields(op):
            fields = [(name, values.get(name, UNKNOWN)) for name in order]
            names = align(arguments, fields, self._fits, self._may_be_nameless)
            if names is not None:
                return names
        return [None] * len(arguments)

    def _fits(self, argument: Any, value: Any) -> bool:
        """Whether an argument may be a saved field of this value."""
        if value is UNKNOWN:
            return type(argument) is not tuple and not self._is_tensor(argument)
        if isinstance(argument, torch.fx.Node):
            indices = self.indices.get(argument, ())
            return len(indices) == 1 and self._fits(self.values.get(indices[0]), value)
        if isinstance(argument, list) and isinstance(value, tuple | list):
            return len(argument) == len(value) and all(map(self._fits, argument, value))
        if type(argument) is int and type(value) is int:
            return (argument - value) % 2**64 == 0  # getters return some negative numbers as unsigned ones
        return type(argument) is type(value) and repr(argument) == repr(value)

    def _is_tensor(self, argument: Any) -> bool:
        if isinstance(argument, list):
            return any(map(self._is_tensor, argument))
        return isinstance(argument, torch.fx.Node) and argument not in self.indices

    def _may_be_nameless(self, argument: Any) -> bool:
        is_size = isinstance(argument, torch.fx.Node) and argument in self.indices
        return not is_size and not isinstance(argument, float | complex | str)


READERS: Mapping[str, Callable[[MetadataReader, GraphNode, torch.fx.Node], None]] = {
    "validate_outputs": MetadataReader._validate_outputs,  # noqa: SLF001  # the class's own table
    "backward_call": MetadataReader._backward_call,  # noqa: SLF001
    "copy_slices_prologue": MetadataReader._copy_slices_prologue,  # noqa: SLF001
    "copy_slices_epilogue": MetadataReader._copy_slices_epilogue,  # noqa: SLF001
    "accumulate_grad": MetadataReader._accumulate_grad,  # noqa: SLF001
    "aot_op": MetadataReader._operator,  # noqa: SLF001
    "other": MetadataReader._operator,  # noqa: SLF001
}


def with_metadata(
    nodes: Sequence[AutogradNode], graph: ReadGraph, sizes: Sequence[LiftedSize], autograd: Sequence[Any]
) -> tuple[AutogradNode, ...]:
    """Autograd nodes with the metadata that they use; see `MetadataReader` for the arguments."""
    uses = MetadataReader(graph, sizes, autograd).read()
    return tuple(
        replace(node, lifted=tuple(uses[node.number].lifted), baked=tuple(uses[node.number].baked))
        if node.number in uses
        else node
        for node in nodes
    )


def _size_indices(graph: ReadGraph) -> dict[torch.fx.Node, tuple[int, ...]]:
    """For each graph node that is a number: indices of the symbolic inputs from which it is computed."""
    indices: dict[torch.fx.Node, tuple[int, ...]] = {}
    for row, node in zip(graph.nodes, graph.fx_nodes, strict=True):
        if row.target == "unwrap_size" and isinstance(node.args[0], torch.fx.Node):
            index = node.args[0].args[1]
            assert isinstance(index, int)  # sizes[i]
            indices[node] = (index,)
        elif torch_adapter.is_arithmetic(node.target) and any(used in indices for used in node.all_input_nodes):
            indices[node] = tuple(sorted({index for used in node.all_input_nodes for index in indices.get(used, ())}))
    return indices


def _items(node: torch.fx.Node, position: int) -> Iterator[Any]:
    value = node.args[position]
    yield from value if isinstance(value, list | tuple) else ()


def _is_flags(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, bool) for item in value)


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, list) else str(value)
