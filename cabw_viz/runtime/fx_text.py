"""FX graph nodes as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.fx


def argument_text(value: Any, names: Mapping[torch.fx.Node, str]) -> str:
    """An argument as text; an object that has no stable text is named by its class."""
    if isinstance(value, torch.fx.Node):
        return names.get(value, value.name)
    if isinstance(value, list):
        return f"[{', '.join(argument_text(item, names) for item in value)}]"
    if isinstance(value, tuple):
        inner = ", ".join(argument_text(item, names) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {argument_text(item, names)}' for key, item in value.items())}}}"
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, slice):
        return f"slice({', '.join(argument_text(item, names) for item in (value.start, value.stop, value.step))})"
    return f"<{type(value).__name__}>"


_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def arguments_text(node: torch.fx.Node, names: Mapping[torch.fx.Node, str]) -> str:
    """All arguments of a call, in parentheses."""
    parts = [argument_text(argument, names) for argument in node.args]
    parts += [f"{key}={argument_text(value, names)}" for key, value in node.kwargs.items()]
    return f"({', '.join(parts)})"
