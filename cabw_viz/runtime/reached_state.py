"""The modules and tensors that a function can reach: in closures, arguments, globals and attributes that it names.

What this cannot see: what is looked up by a name that is made at run time, and what code in C reaches.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from cabw_viz import torch_adapter

DEEPEST = 8
"""How many functions within functions are searched."""


@dataclass
class ReachedState:
    """Modules, with all modules below them, and other tensors, in the order in which they are met."""

    modules: dict[int, tuple[str, torch.nn.Module]] = field(default_factory=dict)
    """(path, module) by identity; the path begins with the class of the outermost one."""
    tensors: dict[int, tuple[str, torch.Tensor]] = field(default_factory=dict)
    """(name, tensor) by identity: those that are held by no module."""
    _visited: dict[int, Any] = field(default_factory=dict)
    """By identity; the objects are kept, so that none is made at the place of another."""

    def add(self, value: Any, name: str = "", depth: int = 0) -> None:
        """Add what a value reaches."""
        if depth > DEEPEST or id(value) in self._visited:
            return
        self._visited[id(value)] = value
        if isinstance(value, torch.Tensor):
            self.tensors[id(value)] = name, value
        elif isinstance(value, torch.nn.Module):
            self._add_module(value)
        elif isinstance(value, functools.partial):
            self._add_all([("an argument", each) for each in value.args], depth)
            self._add_all([*value.keywords.items(), (name, value.func)], depth)
        elif isinstance(value, MethodType):
            self._add_method(value.__self__, value.__func__, depth)
        elif isinstance(value, FunctionType):
            self._add_function(value, depth)
        elif isinstance(value, list | tuple | set):
            self._add_all([(name, each) for each in value], depth)
        elif isinstance(value, dict):
            self._add_all([(f"{name}[{key!r}]", each) for key, each in value.items()], depth)
        elif callable(value) and not isinstance(value, type):
            self._add_method(value, type(value).__call__, depth)

    def _add_all(self, items: Iterable[tuple[Any, Any]], depth: int) -> None:
        for name, value in items:
            self.add(value, str(name), depth + 1)

    def _add_module(self, root: torch.nn.Module) -> None:
        for path, module in root.named_modules(prefix=type(root).__name__):
            self._visited[id(module)] = module
            self.modules.setdefault(id(module), (path, module))
        for module in root.modules():  # modules in lists are not registered
            for value in list(vars(module).values()):
                for item in value.values() if isinstance(value, dict) else value if _is_sequence(value) else (value,):
                    if isinstance(item, torch.nn.Module) and id(item) not in self.modules:
                        self._add_module(item)

    def _add_method(self, owner: Any, function: Any, depth: int) -> None:
        if isinstance(owner, torch.nn.Module | torch.Tensor):
            self.add(owner, "its object", depth + 1)
        elif isinstance(function, FunctionType):
            for name in function.__code__.co_names:
                if name in getattr(owner, "__dict__", {}):
                    self.add(owner.__dict__[name], name, depth + 1)
                elif isinstance(vars(type(owner)).get(name), FunctionType):
                    self.add(MethodType(vars(type(owner))[name], owner), name, depth + 1)
        if isinstance(function, FunctionType):
            self.add(function, "", depth + 1)

    def _add_function(self, function: FunctionType, depth: int) -> None:
        self._add_all(torch_adapter.closure_values(function), depth)
        self._add_all([("a default", each) for each in function.__defaults__ or ()], depth)
        self._add_all((function.__kwdefaults__ or {}).items(), depth)
        for name in _globals_read(function.__code__):
            value = function.__globals__.get(name)
            is_own = isinstance(value, FunctionType) and not (value.__module__ or "").startswith("torch.")
            if is_own or isinstance(value, torch.Tensor | torch.nn.Module):
                self.add(value, name, depth + 1)


def _is_sequence(value: Any) -> bool:
    return type(value) in (list, tuple, set)


def _globals_read(code: CodeType) -> set[str]:
    """Names of the global variables that code reads, functions inside it included."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(torch_adapter.globals_read(code)).union(*map(_globals_read, inner))
