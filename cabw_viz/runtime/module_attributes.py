"""The attributes of a module at one moment, and a way back to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_CONTAINERS = (dict, list, set)


@dataclass(frozen=True)
class ModuleAttributes:
    """What a module's attributes are, and what its plain dicts, lists and sets hold: parameters and buffers too.

    What lies deeper, in objects that these hold, is not looked at.
    """

    module: torch.nn.Module
    values: dict[str, Any]
    contents: dict[str, Any]
    """A copy of each attribute that is a plain dict, list or set."""

    @classmethod
    def of(cls, module: torch.nn.Module) -> ModuleAttributes:
        """The attributes as they are now."""
        values = dict(vars(module))
        return cls(module, values, {name: value.copy() for name, value in values.items() if type(value) in _CONTAINERS})

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of all tensors among the attributes, and in their dicts, lists and tuples."""
        for name, value in self.values.items():
            items = value.items() if type(value) is dict else ((name, each) for each in _items(value))
            yield from ((str(key), item) for key, item in items if isinstance(item, torch.Tensor))

    def restore(self, stand_ins: Mapping[int, torch.Tensor]) -> None:
        """Put the attributes back.

        Args:
            stand_ins: by the identity of a tensor: another one in its place.
        """
        now = vars(self.module)  # written to directly: __setattr__ may do more
        for name in [name for name in now if name not in self.values]:
            del now[name]
        for name, value in self.values.items():
            if name in self.contents:
                _fill(value, _substituted(self.contents[name], stand_ins))
            wanted = value if name in self.contents else _substituted(value, stand_ins)
            if name not in now or now[name] is not wanted:
                now[name] = wanted


def _items(value: Any) -> Any:
    return value if type(value) in (list, tuple) else (value,)


def _substituted(value: Any, stand_ins: Mapping[int, torch.Tensor]) -> Any:
    """A tensor's stand-in, or a container with the stand-ins of its tensors; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return stand_ins.get(id(value), value)
    if type(value) is dict:
        return {key: stand_ins.get(id(item), item) for key, item in value.items()}
    if type(value) in (list, tuple) and any(id(item) in stand_ins for item in value):
        return type(value)(stand_ins.get(id(item), item) for item in value)
    return value


def _fill(container: Any, content: Any) -> None:
    """Give a container this content, unless it has it."""
    if type(container) is dict:
        keys = list(container) == list(content)
        if not keys or any(container[key] is not content[key] for key in content):
            container.clear()
            container.update(content)
    elif type(container) is list:
        if len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
            container[:] = content
    elif container != content:
        container.clear()
        container.update(content)
