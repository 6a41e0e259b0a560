"""Places in the user's code, as text, and which frames are the user's."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

_OURS = f"{Path(__file__).parent.parent}/"
_LIBRARY = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_INSTALLED = ("site-packages", "dist-packages")  # which may lie below the standard library's folder


def source_location(file: str, line: int) -> str:
    """`file:line`; `In[3]:line` for the cell of a notebook, whose file has a new name in every kernel."""
    return f"{_cell(file) or file}:{line}"


def _cell(file: str) -> str | None:
    ipython: Any = sys.modules.get("IPython")  # where it is not loaded, nothing is a cell
    shell = ipython.get_ipython() if ipython is not None else None
    named = shell.compile.format_code_name(file) if shell is not None else None
    return None if named is None else str(named[1])


def cell_files() -> dict[str, str]:
    """The files of a notebook's cells by the names that `source_location` gives them: `In[3]`."""
    named = {file: _cell(file) for file in list(linecache.cache)}
    return {cell: file for file, cell in named.items() if cell is not None}


@functools.cache
def _torch() -> str:
    spec = importlib.util.find_spec("torch")
    return f"{Path(spec.origin).parent}/" if spec is not None and spec.origin else "torch/"


@functools.lru_cache(maxsize=4096)
def code_owner(file: str) -> Literal["user", "torch", "ours", "library"]:
    """Whose code a file holds. Everything that is neither torch's, Python's nor ours is the user's."""
    if file.startswith((_torch(), "<eval_with_key>")):  # a graph module's own forward
        return "torch"
    if file.startswith(_OURS):
        return "ours"
    installed = any(part in file for part in _INSTALLED)
    if file.startswith("<frozen ") or (file.startswith(_LIBRARY) and not installed):
        return "library"
    return "user"


def responsible_frame(
    frame: FrameType | None, stop: CodeType, passing: Callable[[CodeType], bool]
) -> tuple[Literal["user", "torch", "C++"], str]:
    """Who caused a call, and where: the innermost frame of the user's below `stop`; else the innermost of torch's.

    Args:
        frame: the innermost frame to look at.
        stop: the code of the frame at which the way outward ends.
        passing: frames of torch's that only pass calls on.
    """
    torchs = None
    while frame is not None and frame.f_code is not stop:
        whose = code_owner(frame.f_code.co_filename)
        if whose == "user":
            return "user", _frame_location(frame)
        if whose == "torch" and torchs is None and not passing(frame.f_code):
            torchs = frame
        frame = frame.f_back
    if torchs is None:
        return "C++", "C++"
    return "torch", _frame_location(torchs)


def external_caller(frame: FrameType | None) -> str:
    """The line that called into this package.

    Args:
        frame: the innermost frame to look at.
    """
    while frame is not None and code_owner(frame.f_code.co_filename) == "ours":
        frame = frame.f_back
    return "C++" if frame is None else _frame_location(frame)


def _frame_location(frame: FrameType) -> str:
    """A frame's place; torch's files relative to where torch is installed, the same on every machine."""
    file = frame.f_code.co_filename
    return source_location(
        f"torch/{file.removeprefix(_torch())}" if file.startswith(_torch()) else file, frame.f_lineno
    )
