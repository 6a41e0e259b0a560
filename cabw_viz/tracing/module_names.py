"""Names of modules: their path in the model, or the attribute of the caller that holds them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from cabw_viz import torch_adapter

_ORIGINAL = "_orig_mod"
"""The attribute in which a compiled module holds its original."""


@dataclass(frozen=True)
class ModuleName:
    """The name of a module for display."""

    path: str
    """`layers.3.mlp`; empty for the subject itself; `(Linear)` for a module without a path."""
    cls: str
    """Name of its class."""


class Caller(NamedTuple):
    """A module whose forward calls another."""

    module: torch.nn.Module
    number: int


class ModuleNames:
    """Numbers the names of modules, in the order of their first calls; keeps no module alive.

    A name depends on the caller too: a module that is registered twice gets its path below the caller, and a module
    that is not in the subject gets the attribute of the caller that holds it.
    """

    def __init__(self, subject: Any) -> None:
        self._subject = subject if isinstance(subject, torch.nn.Module) else None
        self._paths: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._registered: dict[str, ModuleName] = {}
        self._numbers_of: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._numbers: dict[ModuleName, int] = {}
        self.names: list[ModuleName] = []
        self._lock = threading.RLock()

    def read(self) -> None:
        """Read the subject's modules, again where they have changed (parametrized and lazy ones)."""
        self._paths, self._registered = WeakIdKeyDictionary(), {}
        if self._subject is not None:
            for path, module in self._subject.named_modules(remove_duplicate=False):
                name = self._registered[path] = self._register(path, module)
                self._paths.setdefault(module, []).append(name.path)

    def _register(self, path: str, module: torch.nn.Module) -> ModuleName:
        """The name of a module at a path. The original of a compiled module has that module's name, and so on below."""
        above, _, last = path.rpartition(".")
        holder = self._registered.get(above) if path else None
        if holder is None:
            return ModuleName(path, _class_of(module))
        if last == _ORIGINAL and holder.cls == _class_of(module):
            return holder
        return ModuleName(_joined(holder.path, last), _class_of(module))

    @property
    def called(self) -> WeakIdKeyDictionary:
        """The modules that were called, as weak keys; it grows with further calls."""
        return self._numbers_of

    def forget(self) -> None:
        """Drop the reference to the subject."""
        self._subject = None

    def number_of(self, module: torch.nn.Module, caller: Caller | None) -> int:
        """The number of a module's name, as an index into `names`."""
        key = -1 if caller is None else caller.number
        numbers: dict[int, int] | None = self._numbers_of.get(module)
        if numbers is None or key not in numbers:
            with self._lock:
                numbers = self._numbers_of.setdefault(module, {})
                numbers[key] = self._add(ModuleName(self._path(module, caller), _class_of(module)))
        return numbers[key]

    def _add(self, name: ModuleName) -> int:
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number

    def _path(self, module: torch.nn.Module, caller: Caller | None) -> str:
        above = None if caller is None else self.names[caller.number].path
        try:
            if module not in self._paths:
                self.read()  # it may be new in the subject
            paths = self._paths.get(module) or self._paths.get(torch_adapter.original_module(module))
            if paths:
                return _nearest(paths, above)
            attribute = next(_attributes_of(caller.module, module), None) if caller is not None else None
        except Exception:  # noqa: BLE001  # whatever a module of the user's raises, its forward must go on
            attribute = None
        return _joined(above, attribute or f"({_class_of(module)})")

    def numbers_of(self, module: torch.nn.Module) -> set[int]:
        """The numbers of the names under which a module was called; empty where it was not called."""
        return set((self._numbers_of.get(module) or {}).values())

    def owner(self, names: tuple[str, ...]) -> ModuleName | None:
        """The module of the subject that owns the parameter of these names; None where there is none."""
        owners = (self._registered.get(name.rpartition(".")[0]) for name in names)
        return next((owner for owner in owners if owner is not None), None)


def _class_of(module: torch.nn.Module) -> str:
    return type(torch_adapter.original_module(module)).__name__


def _nearest(paths: list[str], above: str | None) -> str:
    """Of a module's paths, the one below its caller's; else the first."""
    below = (path for path in paths if above is not None and path.startswith(f"{above}." if above else ""))
    return next(below, paths[0])


def _joined(above: str | None, name: str) -> str:
    return f"{above}.{name}" if above else name


def _attributes_of(caller: torch.nn.Module, module: torch.nn.Module) -> Iterator[str]:
    """Where a module holds another: a submodule's path, a plain attribute, an item of a plain list or dict."""
    for path, each in caller.named_modules(remove_duplicate=False):
        if each is module and path:
            yield path
    for name, value in vars(caller).items():
        if value is module:
            yield name
        elif name != "_modules":
            yield from (f"{name}[{key!r}]" for key, item in _items(value) if item is module)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, list | tuple):
        yield from enumerate(value)
    elif isinstance(value, dict):
        yield from value.items()
