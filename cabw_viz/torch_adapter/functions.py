"""What a Python function refers to; nothing here is PyTorch's."""

from __future__ import annotations

import contextlib
import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any


def closure_values(function: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of the variables in a function's closure that have a value by now; none for any other object."""
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars if code is not None else (), cells, strict=True):
        with contextlib.suppress(ValueError):  # not filled yet
            yield name, cell.cell_contents


def globals_read(code: CodeType) -> Iterator[str]:
    """Names of the global variables that code reads. `co_names` has those of attributes too."""
    return (str(step.argval) for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
