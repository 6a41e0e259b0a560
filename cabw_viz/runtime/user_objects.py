"""The user's modules and tensors that a later run of a capture could change, by weak references."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class UserObjects:
    """What belongs to one capture."""

    subject: tuple[Callable[[], Any], ...]
    """Weak references to what the block was given: a module, or tensors."""
    called: Mapping[Any, Any]
    """The modules that were called in the block, as weak keys."""
    leaves: tuple[Callable[[], Any], ...]
    """Weak references to the tensors whose `.grad` the backward accumulates into."""

    @classmethod
    def of(cls, subject: Any, called: Mapping[Any, Any], leaves: Iterable[Any]) -> UserObjects:
        """The objects of a capture; `leaves` may hold None."""
        given = subject.values() if isinstance(subject, Mapping) else [subject]
        return cls(_references(given), called, _references(leaves))

    def modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Every module once, with its path in the subject; in those that were called besides, below their class."""
        visited: set[int] = set()
        for reference in self.subject:
            if isinstance(module := reference(), torch.nn.Module):
                yield from _below("", module, visited)
        for module in list(self.called):
            yield from _below(f"({type(module).__name__})", module, visited)

    def tensors(self) -> Iterator[torch.Tensor]:
        """The subject's own tensors, where it is no module, and the leaves."""
        for reference in (*self.subject, *self.leaves):
            if isinstance(tensor := reference(), torch.Tensor):
                yield tensor


def _references(values: Iterable[Any]) -> tuple[Callable[[], Any], ...]:
    return tuple(weakref.ref(value) for value in values if value is not None)


def _below(path: str, module: torch.nn.Module, visited: set[int]) -> Iterator[tuple[str, torch.nn.Module]]:
    """A module and those in it, without calling any code of the user's."""
    todo = [(path, module)]
    while todo:
        name, each = todo.pop()
        if id(each) in visited:
            continue
        visited.add(id(each))
        yield name, each
        children = vars(each).get("_modules") or {}
        todo += [
            (f"{name}.{key}" if name else str(key), child)
            for key, child in children.items()
            if isinstance(child, torch.nn.Module)
        ]
