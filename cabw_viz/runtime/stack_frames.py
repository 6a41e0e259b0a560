"""Frames of the stack: the code that they belong to, and their locations as text."""

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
    label_and_name = shell.compile.format_code_name(file) if shell is not None else None
    return None if label_and_name is None else str(label_and_name[1])


def cell_files() -> dict[str, str]:
    """The files of a notebook's cells by the names that `source_location` gives them: `In[3]`."""
    cells = {file: _cell(file) for file in list(linecache.cache)}
    return {cell: file for file, cell in cells.items() if cell is not None}


@functools.cache
def _torch() -> str:
    spec = importlib.util.find_spec("torch")
    return f"{Path(spec.origin).parent}/" if spec is not None and spec.origin else "torch/"


@functools.lru_cache(maxsize=4096)
def code_owner(file: str) -> Literal["user", "torch", "ours", "library"]:
    """The owner of the code in a file. All that is neither torch's, Python's nor ours is the user's."""
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
    """Owner and location of the frame that caused a call: the innermost one of the user, else the innermost of torch.

    Args:
        frame: the innermost frame to look at.
        stop: code of the frame at which the search, outwards, ends.
        passing: whether code of torch only passes calls on; its frames are skipped.
    """
    torch_frame = None
    while frame is not None and frame.f_code is not stop:
        owner = code_owner(frame.f_code.co_filename)
        if owner == "user":
            return "user", _frame_location(frame)
        if owner == "torch" and torch_frame is None and not passing(frame.f_code):
            torch_frame = frame
        frame = frame.f_back
    if torch_frame is None:
        return "C++", "C++"
    return "torch", _frame_location(torch_frame)


def external_caller(frame: FrameType | None) -> str:
    """The location of the line that called into this package.

    Args:
        frame: the innermost frame to look at.
    """
    while frame is not None and code_owner(frame.f_code.co_filename) == "ours":
        frame = frame.f_back
    return "C++" if frame is None else _frame_location(frame)


def _frame_location(frame: FrameType) -> str:
    """A frame's location; that of torch's files relative to its folder, the same on every machine."""
    file = frame.f_code.co_filename
    return source_location(
        f"torch/{file.removeprefix(_torch())}" if file.startswith(_torch()) else file, frame.f_lineno
    )
