"""What of tensors' metadata an autograd node takes from symbolic inputs, and what stands in the graph as a constant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.record.model import AutogradNode, Baked, GraphNode, LiftedSize, LiftedUse
from cabw_viz.tracing.extract import ReadGraph
from cabw_viz.tracing.ivalue_packer import parts
from cabw_viz.tracing.saved_field_names import UNKNOWN, align, attribute_of


@dataclass(frozen=True)
class Meaning:
    """Where a value stands, in words, and where its elements do."""

    whole: str
    element: str
    """With `{}` for the element's number."""

    def of(self, index: int) -> Meaning:
        """One element's."""
        text = self.element.format(index)
        return Meaning(text, f"{text.replace('{', '{{').replace('}', '}}')}, element {{}}")


def named(name: str) -> Meaning:
    """A saved field: `self_sym_sizes`, `self_sym_sizes[0]`."""
    return Meaning(name, f"{name}[{{}}]")


def argument(position: int, row: GraphNode) -> Meaning:
    """An argument of a call that has no name."""
    text = f"argument {position} of {row.target.removeprefix('ops.').rpartition('::')[2]}"
    return Meaning(text, f"{text}, element {{}}")


def by_dimension(text: str) -> Meaning:
    """Sizes or strides of a tensor."""
    return Meaning(text, f"{text}, dimension {{}}")


@dataclass
class Found:
    """What one autograd node uses."""

    lifted: list[LiftedUse] = field(default_factory=list)
    baked: list[Baked] = field(default_factory=list)


class Reader:
    """Reads the arguments of graph nodes.

    read
    ├─ _validate_outputs      one entry for each gradient that flows out
    ├─ _backward_call         an op's saved fields
    ├─ _copy_slices_prologue  geometry of base and view
    ├─ _copy_slices_epilogue
    ├─ _accumulate_grad
    └─ _operator              a compiled region's ops, by the names of their schemas

    Args:
        view: the graph.
        sizes: its symbolic inputs.
        autograd: the autograd nodes by number, for the values of their fields; empty where those must not be read.
    """

    def __init__(self, view: ReadGraph, sizes: Sequence[LiftedSize], autograd: Sequence[Any]) -> None:
        self.view, self.autograd = view, autograd
        self.values = {size.index: size.value for size in sizes}
        self.indices = _size_indices(view)
        self.found: dict[int, Found] = {}
        self._now = Found()

    def read(self) -> dict[int, Found]:
        """What each autograd node uses, by its number."""
        for row, node in zip(self.view.nodes, self.view.fx_nodes, strict=True):
            how = READERS.get(row.kind)
            if how is not None and row.autograd_node is not None:
                self._now = self.found.setdefault(row.autograd_node, Found())
                how(self, row, node)
        return self.found

    # -- graph nodes -----------------------------------------------------------------------------------------

    def _validate_outputs(self, row: GraphNode, node: torch.fx.Node) -> None:
        del row
        for number, entry in enumerate(_items(node, 1)):
            self._put(entry, by_dimension(f"gradient {number}"))

    def _backward_call(self, row: GraphNode, node: torch.fx.Node) -> None:
        if not row.target.startswith("ops."):  # a Python Function: its ctx holds what it saved
            return
        rest = list(enumerate(node.args))[1:]  # the first are the gradients
        if rest and _is_flags(rest[0][1]):
            self._put(rest.pop(0)[1], named("needs_input_grad"))
        names = self._names(row, [value for _, value in rest])
        for (position, value), name in zip(rest, names, strict=True):
            self._put(value, named(name) if name else argument(position, row), name or "")

    def _copy_slices_prologue(self, row: GraphNode, node: torch.fx.Node) -> None:
        del row
        for side, geometry in zip(("base", "view"), torch_adapter.copy_slices_geometry(node.args), strict=True):
            for what, value in zip(("size", "stride", "storage_offset"), geometry, strict=True):
                self._put(value, by_dimension(f"{side} {what.replace('_', ' ')}"), attribute=what)

    def _copy_slices_epilogue(self, row: GraphNode, node: torch.fx.Node) -> None:
        del row
        self._put(torch_adapter.needs_input_grad(node.args), named("needs_input_grad"))

    def _accumulate_grad(self, row: GraphNode, node: torch.fx.Node) -> None:
        del row
        accumulates = torch_adapter.has_old_gradient(node.args)
        if accumulates is not None:
            self._put(accumulates, named("accumulates into a .grad"))
        self._put(torch_adapter.has_post_hooks(node.args), named("has_post_hooks"))

    def _operator(self, row: GraphNode, node: torch.fx.Node) -> None:
        names = torch_adapter.argument_names(node.target)
        call = f"{row.name} ({row.target})"
        for position, value in enumerate(node.args):
            name = names[position] if position < len(names) else f"argument {position}"
            self._put(value, Meaning(f"{name} of {call}", f"{name}[{{}}] of {call}"), name)
        for name, value in node.kwargs.items():
            self._put(value, Meaning(f"{name} of {call}", f"{name}[{{}}] of {call}"), name)

    # -- values ----------------------------------------------------------------------------------------------

    def _put(self, value: Any, meaning: Meaning, name: str = "", attribute: str = "") -> None:
        """Take down a value: symbolic, constant, or neither."""
        packed = parts(value)
        if packed is not None:
            for part in packed:
                inner = by_dimension(f"{meaning.whole}, {part.what}" if part.what else meaning.whole)
                self._put_part(part.value, inner, part.attribute)
        elif isinstance(value, torch.fx.Node):
            for index in self.indices.get(value, ()):
                self._now.lifted.append(LiftedUse(index, meaning.whole, self.values.get(index, 0)))
        elif isinstance(value, list | tuple):
            self._put_items(value, meaning, name, attribute)
        elif value is not None and not isinstance(value, torch.SymInt | torch.SymFloat):
            kind = attribute or attribute_of(name, value)
            self._now.baked.append(Baked(kind, _text(value), meaning.whole))

    def _put_items(self, value: Sequence[Any], meaning: Meaning, name: str, attribute: str) -> None:
        if value and all(isinstance(item, int | float | complex) for item in value):
            kind = attribute or attribute_of(name, list(value))
            self._now.baked.append(Baked(kind, _text(list(value)), meaning.whole))
            return
        for index, item in enumerate(value):
            self._put(item, meaning.of(index), name, attribute)

    def _put_part(self, value: Any, meaning: Meaning, attribute: str) -> None:
        if isinstance(value, str):  # decoded already
            self._now.baked.append(Baked(attribute, value, meaning.whole))
        else:
            self._put(value, meaning, attribute=attribute)

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

    def _fits(self, given: Any, value: Any) -> bool:
        """Whether an argument may be a saved field of this value."""
        if value is UNKNOWN:
            return type(given) is not tuple and not self._is_tensor(given)
        if isinstance(given, torch.fx.Node):
            indices = self.indices.get(given, ())
            return len(indices) == 1 and self._fits(self.values.get(indices[0]), value)
        if isinstance(given, list) and isinstance(value, tuple | list):
            return len(given) == len(value) and all(map(self._fits, given, value))
        if type(given) is int and type(value) is int:
            return (given - value) % 2**64 == 0  # Python is told some negative ones as unsigned
        return type(given) is type(value) and repr(given) == repr(value)

    def _is_tensor(self, given: Any) -> bool:
        if isinstance(given, list):
            return any(map(self._is_tensor, given))
        return isinstance(given, torch.fx.Node) and given not in self.indices

    def _may_be_nameless(self, given: Any) -> bool:
        is_size = isinstance(given, torch.fx.Node) and given in self.indices
        return not is_size and not isinstance(given, float | complex | str)


READERS: Mapping[str, Callable[[Reader, GraphNode, torch.fx.Node], None]] = {
    "validate_outputs": Reader._validate_outputs,  # noqa: SLF001  # the class's own table
    "backward_call": Reader._backward_call,  # noqa: SLF001
    "copy_slices_prologue": Reader._copy_slices_prologue,  # noqa: SLF001
    "copy_slices_epilogue": Reader._copy_slices_epilogue,  # noqa: SLF001
    "accumulate_grad": Reader._accumulate_grad,  # noqa: SLF001
    "aot_op": Reader._operator,  # noqa: SLF001
    "other": Reader._operator,  # noqa: SLF001
}


def with_metadata(
    nodes: Sequence[AutogradNode], view: ReadGraph, sizes: Sequence[LiftedSize], autograd: Sequence[Any]
) -> tuple[AutogradNode, ...]:
    """Autograd nodes with what they use of metadata filled in; see `Reader` for the arguments."""
    found = Reader(view, sizes, autograd).read()
    return tuple(
        replace(node, lifted=tuple(found[node.number].lifted), baked=tuple(found[node.number].baked))
        if node.number in found
        else node
        for node in nodes
    )


def _size_indices(view: ReadGraph) -> dict[torch.fx.Node, tuple[int, ...]]:
    """For each graph node that is a number: the symbolic inputs it comes from."""
    found: dict[torch.fx.Node, tuple[int, ...]] = {}
    for row, node in zip(view.nodes, view.fx_nodes, strict=True):
        if row.target == "unwrap_size" and isinstance(node.args[0], torch.fx.Node):
            index = node.args[0].args[1]
            assert isinstance(index, int)  # sizes[i]
            found[node] = (index,)
        elif torch_adapter.is_arithmetic(node.target) and any(used in found for used in node.all_input_nodes):
            found[node] = tuple(sorted({index for used in node.all_input_nodes for index in found.get(used, ())}))
    return found


def _items(node: torch.fx.Node, position: int) -> Iterator[Any]:
    value = node.args[position]
    yield from value if isinstance(value, list | tuple) else ()


def _is_flags(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, bool) for item in value)


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, list) else str(value)
