"""Names of tensors: the subject's, or made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from cabw_viz.errors import CabwError


class Names:
    """Names tensors after an `nn.Module`, a mapping of names to tensors, or nothing.

    Raises:
        CabwError: the subject is none of these.
    """

    def __init__(self, subject: Any) -> None:
        self._subject = subject
        self._made_up = WeakTensorKeyDictionary()
        self._counter = 0
        self._known: dict[int, tuple[str, ...]] = {}
        if not (subject is None or isinstance(subject, torch.nn.Module) or _names_tensors(subject)):
            raise CabwError(
                f"capture() got {_describe(subject)} as its subject",
                expected="an nn.Module, a mapping of names to tensors, or nothing",
                try_="cabw_viz.capture(model), cabw_viz.capture({'w': w}), or cabw_viz.capture()",
            )

    def refresh(self) -> None:
        """Read the subject again: lazy and parametrized modules change their parameters on the way."""
        found: dict[int, list[str]] = {}
        for name, tensor in self._named():
            found.setdefault(id(tensor), []).append(name)
        # By id: the subject keeps the tensors alive until the next refresh replaces this table.
        self._known = {key: tuple(names) for key, names in found.items()}

    def _named(self) -> list[tuple[str, Any]]:
        if self._subject is None:
            return []
        if isinstance(self._subject, torch.nn.Module):
            module = self._subject
            return [
                *module.named_parameters(remove_duplicate=False),
                *module.named_buffers(remove_duplicate=False),
            ]
        return list(self._subject.items())

    def named_tensors(self) -> list[tuple[tuple[str, ...], torch.Tensor]]:
        """Every tensor that the subject names, with all its names."""
        named = {id(tensor): tensor for _, tensor in self._named()}
        return [(self.subject_names(tensor), tensor) for tensor in named.values()]

    def subject_names(self, tensor: Any) -> tuple[str, ...]:
        """All names that the subject gives a tensor; empty where it gives none."""
        return self._known.get(id(tensor), ())

    def leaf_names(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """All names of a leaf, made up where the subject gives none: `param_0 (8, 4)`."""
        names = self.subject_names(tensor)
        if names:
            return names
        if tensor not in self._made_up:
            word = "param" if self._subject is None else "leaf"
            self._made_up[tensor] = f"{word}_{self._counter} {tuple(tensor.shape)}"
            self._counter += 1
        return (self._made_up[tensor],)

    def names_of(self, tensor: Any) -> tuple[str, ...]:
        """The names of a tensor, made-up ones included, without making one up."""
        names = self.subject_names(tensor)
        if names or not isinstance(tensor, torch.Tensor) or tensor not in self._made_up:
            return names
        return (self._made_up[tensor],)

    def forget(self) -> None:
        """Let go of the subject."""
        self._subject, self._known = None, {}
        self._made_up = WeakTensorKeyDictionary()


def _names_tensors(subject: Any) -> bool:
    return isinstance(subject, Mapping) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in subject.items()
    )


def _describe(subject: Any) -> str:
    if isinstance(subject, Mapping):
        entries = ((name, tensor) for name, tensor in subject.items())
        wrong = next(
            (
                f"{n!r}: {type(t).__name__}"
                for n, t in entries
                if not (isinstance(n, str) and isinstance(t, torch.Tensor))
            )
        )
        return f"a mapping with the entry {wrong}"
    return f"a {type(subject).__name__}"
