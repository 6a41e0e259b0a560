"""What a backward keeps in memory, and for which module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cabw_viz.errors import CabwError
from cabw_viz.record.model import AutogradNode, CaptureRecord, SavedTensor

Storage = int | tuple[int, str]
"""A storage by its number in the record; node and field of a tensor that has none of its own to speak of."""


@dataclass(frozen=True)
class ModuleBytes:
    """What the nodes of one module, or of the modules below a path, keep until their backward has run."""

    module: str
    """As `module_text` writes it; empty for nodes made outside of any."""
    bytes: int
    """Of the storages that saved tensors lie in, each counted once."""
    shared: int
    """Of these bytes, those of storages that other modules' nodes keep too: adding up modules counts them again."""
    shared_with: tuple[str, ...]
    named: int
    """Of these bytes, parameters, buffers and leaves: they are there without the backward too."""
    packed: int
    """How many saved tensors hooks of the user's have packed; what those take is not known."""


@dataclass
class _Kept:
    storages: dict[Storage, int] = field(default_factory=dict)
    named: set[Storage] = field(default_factory=set)
    packed: int = 0


def module_text(node: AutogradNode) -> str:
    """A node's module as people read it: its path, the class in brackets for the subject itself; empty for none."""
    return node.module or (f"({node.module_class})" if node.module_class else "")


def saved_bytes(node: AutogradNode) -> int:
    """Bytes of the storages that a node's saved tensors lie in, each counted once."""
    return sum({storage: size for storage, size, _ in stored(node)}.values())


def held_by_module(record: CaptureRecord, depth: int | None = None) -> tuple[ModuleBytes, ...]:
    """What each module's nodes keep, the most first.

    Args:
        record: the capture.
        depth: parts of a path that count: with 2, `layers.3` takes what all modules below it keep.

    Raises:
        CabwError: `depth` is no whole number from 1.
    """
    if depth is not None and (type(depth) is not int or depth < 1):
        raise CabwError(
            f"depth={depth!r} is no depth", expected="a whole number from 1, or None", try_="memory(depth=2)"
        )
    by_module: dict[str, _Kept] = {}
    for node in record.autograd_nodes:
        if node.saved:
            _keep(by_module.setdefault(_shortened(module_text(node), depth), _Kept()), node)
    keepers: dict[Storage, list[str]] = {}
    for module, what in by_module.items():
        for storage in what.storages:
            keepers.setdefault(storage, []).append(module)
    rows = (_row(module, what, keepers) for module, what in by_module.items())
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.module)))


def _keep(what: _Kept, node: AutogradNode) -> None:
    what.packed += sum(tensor.packed for tensor in node.saved)
    for storage, size, tensor in stored(node):
        what.storages[storage] = size
        if tensor.names or tensor.view_of:
            what.named.add(storage)


def _row(module: str, what: _Kept, keepers: dict[Storage, list[str]]) -> ModuleBytes:
    shared = [storage for storage in what.storages if len(keepers[storage]) > 1]
    others = {other for storage in shared for other in keepers[storage]} - {module}
    return ModuleBytes(
        module,
        sum(what.storages.values()),
        _total(what, shared),
        tuple(sorted(others)),
        _total(what, what.named),
        what.packed,
    )


def _total(what: _Kept, storages: Iterable[Storage]) -> int:
    return sum(what.storages[storage] for storage in storages)


def _shortened(path: str, depth: int | None) -> str:
    return path if depth is None else ".".join(path.split(".")[:depth])


def stored(node: AutogradNode) -> Iterator[tuple[Storage, int, SavedTensor]]:
    """The storages of a node's saved tensors, with their bytes; one that several tensors share comes several times."""
    for tensor in node.saved:
        if tensor.storage is not None:
            yield tensor.storage, tensor.storage_bytes, tensor
        elif not tensor.packed:
            yield (node.number, tensor.field), tensor.bytes, tensor
