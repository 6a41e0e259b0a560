"""Names of tensors: those of the subject, or generated ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError


class Names:
    """Names tensors after an `nn.Module`, a mapping of names to tensors, or nothing.

    Raises:
        CabwError: the subject is none of these.
    """

    def __init__(self, subject: Any) -> None:
        self._subject = subject
        self._generated = WeakTensorKeyDictionary()
        self._counter = 0
        self._subject_names: dict[int, tuple[str, ...]] = {}
        if not (subject is None or isinstance(subject, torch.nn.Module) or _names_tensors(subject)):
            raise CabwError(
                f"capture() got {_describe(subject)} as its subject",
                expected="an nn.Module, a mapping of names to tensors, or nothing",
                try_="cabw_viz.capture(model), cabw_viz.capture({'w': w}), or cabw_viz.capture()",
            )

    def refresh(self) -> None:
        """Read the names of the subject again: lazy and parametrized modules change their parameters."""
        names_by_id: dict[int, list[str]] = {}
        for name, tensor in self._named_tensors():
            names_by_id.setdefault(id(tensor), []).append(name)
        for name, tensor in self._gathered_tensors():
            if name not in (names := names_by_id.setdefault(id(tensor), [])):
                names.append(name)
        # By id: the subject keeps the tensors alive until the next refresh replaces this table.
        self._subject_names = {key: tuple(names) for key, names in names_by_id.items()}

    def _gathered_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that stand for sharded parameters, by the names of those."""
        if not isinstance(self._subject, torch.nn.Module):
            return
        tensors = list(torch_adapter.gathered_tensors(self._subject))
        if tensors:
            paths: dict[int, list[str]] = {}
            for path, module in self._subject.named_modules(remove_duplicate=False):
                paths.setdefault(id(module), []).append(path)
            for module, attribute, tensor in tensors:
                yield from (
                    (f"{path}.{attribute}" if path else attribute, tensor) for path in paths.get(id(module), ())
                )

    def _named_tensors(self) -> list[tuple[str, Any]]:
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
        tensors = {id(tensor): tensor for _, tensor in self._named_tensors()}
        return [(self.subject_names(tensor), tensor) for tensor in tensors.values()]

    def parameters(self) -> list[tuple[tuple[str, ...], torch.Tensor]] | None:
        """The subject's parameters with all their names, or all tensors of a mapping; None without a subject."""
        if self._subject is None:
            return None
        if not isinstance(self._subject, torch.nn.Module):
            return self.named_tensors()
        tensors = {id(each): each for _, each in self._subject.named_parameters(remove_duplicate=False)}
        return [(self.subject_names(tensor), tensor) for tensor in tensors.values()]

    def module_at(self, path: str) -> torch.nn.Module | None:
        """The subject's module at a path; None where there is none."""
        if not isinstance(self._subject, torch.nn.Module):
            return None
        try:
            return self._subject.get_submodule(path)
        except AttributeError:
            return None

    def subject_names(self, tensor: Any) -> tuple[str, ...]:
        """All names that the subject has for a tensor; empty where it has none."""
        return self._subject_names.get(id(tensor), ())

    def leaf_names(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """All names of a leaf; where the subject has none, a generated one: `param_0 (8, 4)`."""
        names = self.subject_names(tensor)
        if names:
            return names
        if tensor not in self._generated:
            word = "param" if self._subject is None else "leaf"
            self._generated[tensor] = f"{word}_{self._counter} {torch_adapter.shape_of(tensor)}"
            self._counter += 1
        return (self._generated[tensor],)

    def names_of(self, tensor: Any) -> tuple[str, ...]:
        """All names of a tensor, an earlier generated one too; generates none."""
        names = self.subject_names(tensor)
        if names or not isinstance(tensor, torch.Tensor) or tensor not in self._generated:
            return names
        return (self._generated[tensor],)

    def forget(self) -> None:
        """Drop the subject."""
        self._subject, self._subject_names = None, {}
        self._generated = WeakTensorKeyDictionary()


def _names_tensors(subject: Any) -> bool:
    return isinstance(subject, Mapping) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in subject.items()
    )


def _describe(subject: Any) -> str:
    if isinstance(subject, Mapping):
        entries = ((name, tensor) for name, tensor in subject.items())
        wrong_entry = next(
            (
                f"{n!r}: {type(t).__name__}"
                for n, t in entries
                if not (isinstance(n, str) and isinstance(t, torch.Tensor))
            )
        )
        return f"a mapping with the entry {wrong_entry}"
    return f"a {type(subject).__name__}"
