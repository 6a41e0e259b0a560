"""The attributes of one module of the user's: compared and put back."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch

CONTAINERS = (dict, OrderedDict, defaultdict, Counter, list, set, deque)
"""Classes of attributes whose items are compared too; parameters, buffers, submodules and hooks stand in dicts."""

LARGEST = 10_000
"""From how many items on a container of the user's is compared by identity alone."""

PLAIN = (bool, int, float, complex, str, bytes, tuple, frozenset, torch.dtype, torch.device, torch.Size)
"""Classes of values that cannot change, of which another equal one is as good."""

_ABSENT = object()


class AttributeState:
    """The attributes of an object, and the items of those that are containers.

    What this cannot see: changes deeper than that, as in a list of lists, or in an object of a class of the user's.

    Args:
        label: what to call the object in a message.
        attributes: its `__dict__`, which is put back in place.
    """

    def __init__(self, label: str, attributes: dict[str, Any]) -> None:
        self.label, self.attributes = label, attributes
        self.before = dict(attributes)
        self.items = {name: _items(value) for name, value in attributes.items() if _is_container(value)}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(label, tensor) of the tensors among attributes and their items."""
        for name, value in self.before.items():
            if isinstance(value, torch.Tensor):
                yield _joined(self.label, name), value
            for key, item in _pairs(self.items.get(name) or []):
                if isinstance(item, torch.Tensor):
                    is_own = name in ("_parameters", "_buffers")
                    yield _joined(self.label, str(key) if is_own else f"{name}[{key!r}]"), item

    def restore(self) -> Iterator[str]:
        """Put everything back; yields what differed, in words."""
        differing = [name for name, before in self.before.items() if self.attributes.get(name, _ABSENT) is not before]
        for name in (*differing, *(name for name in list(self.attributes) if name not in self.before)):
            before = self.before.get(name, _ABSENT)
            if not _is_same(self.attributes.get(name, _ABSENT), before):
                yield f"the attribute {_joined(self.label, name)} was set"
                if before is _ABSENT:
                    del self.attributes[name]
                else:
                    self.attributes[name] = before
        for name, items in self.items.items():
            container = self.before[name]
            if not items and not container:
                continue
            keys = _differing_keys(items, _items(container))
            if keys:
                yield f"{_joined(self.label, name)} has other items ({', '.join(map(repr, keys[:3]))})"
                _put(container, items)


def _joined(label: str, name: str) -> str:
    return f"{label}.{name}" if label else name


def _is_container(value: Any) -> bool:
    return type(value) in CONTAINERS and len(value) <= LARGEST


def _items(container: Any) -> Any:
    """A copy of the container itself, not of its items."""
    return dict(container) if isinstance(container, dict) else list(container)


def _pairs(items: Any) -> list[tuple[Any, Any]]:
    return list(items.items()) if isinstance(items, dict) else list(enumerate(items))


def _differing_keys(before: Any, now: Any) -> list[Any]:
    """Keys or positions at which two copies of a container differ, the order of keys included."""
    mine, theirs = _pairs(before), _pairs(now)
    if len(mine) == len(theirs) and all(a[0] is b[0] or a[0] == b[0] for a, b in zip(mine, theirs, strict=True)):
        return [a[0] for a, b in zip(mine, theirs, strict=True) if not _is_same(a[1], b[1])]
    return [key for key, _ in (mine if len(mine) > len(theirs) else theirs)][min(len(mine), len(theirs)) :] or ["order"]


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, PLAIN) and bool(one == other))


def _put(container: Any, items: Any) -> None:
    container.clear()
    if isinstance(container, deque | list):
        container.extend(items)
    else:
        container.update(items)
