"""Places in the user's code, as text."""

from __future__ import annotations

import sys
from typing import Any


def place(file: str, line: int) -> str:
    """`file:line`; `In[3]:line` for the cell of a notebook, whose file has a new name in every kernel."""
    return f"{_cell(file) or file}:{line}"


def _cell(file: str) -> str | None:
    ipython: Any = sys.modules.get("IPython")  # where it is not loaded, nothing is a cell
    shell = ipython.get_ipython() if ipython is not None else None
    named = shell.compile.format_code_name(file) if shell is not None else None
    return None if named is None else str(named[1])
