"""Which line of the user's code ran the forward op of an autograd node.

A TorchFunctionMode notes for each call which numbers the nodes made in it have drawn, and the line of the nearest
frame that is the user's. It stands below all other modes, so that the user's see the same calls in the same order
and may come and go as they like. What it cannot see it says nothing of: ops called from C++, other threads.

A `torch.autograd.Function` is no such call: its node draws a number, and then its forward runs. So where a number was
drawn that no call accounts for, and the next call comes from within the forward of a Function, the number is that
Function's, and the line is the one that called it.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cabw_viz import torch_adapter
from cabw_viz.record.model import SourceLine
from cabw_viz.record.options import LinesMode
from cabw_viz.runtime.stack_frames import code_owner, source_location
from cabw_viz.torch_adapter import sequence_number

Place = tuple[CodeType, int]
"""Code, and a line in it."""

_NOT_USER_CODE = tuple(str(Path(file).parent) for file in (__file__, torch_adapter.__file__))
"""Folders of the package whose frames may lie between the user's code and an op."""
_FRAME = re.compile(r'\s*File "(.+)", line (\d+)')


def why_off(lines: LinesMode, subject: Any) -> str:
    """Why forward lines are not noted; empty where they are."""
    if lines is True:
        return ""
    if lines is False:
        return "lines=False"
    modules = subject.modules() if isinstance(subject, torch.nn.Module) else ()
    if any(torch_adapter.is_compiled(module) for module in modules):
        return "the subject is compiled; lines=True notes the lines of what is not"
    if torch_adapter.dynamo_has_compiled():
        return "something was compiled in this process; lines=True notes the lines of what is not"
    return ""


class SourceLines(TorchFunctionMode):
    """Notes the lines of a block, in the thread that enters it; keeps no frame and no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = 0
        self._on = False
        self._within = 0
        self._next = 0
        self._region = 0
        self._entered: tuple[int, Place | None] = (0, None)
        self._starts: array[int] = array("Q")
        self._ends: array[int] = array("Q")
        self._places: array[int] = array("l")
        self._known: dict[Place, int] = {}
        self._lines: list[Place] = []
        self._functions = _Functions()
        self._installed = False
        self._patches = ExitStack()

    # -- coming and going ------------------------------------------------------------------------------------

    def install(self) -> None:
        """Begin, in this thread."""
        self._thread, self._next = threading.get_ident(), sequence_number()
        self._patches.enter_context(torch_adapter.watched_compiled_regions(self._switched))
        self._installed = True
        self.resume()

    def uninstall(self) -> None:
        """End. Called in another thread, the mode stays behind in the first, and does nothing."""
        self._installed = False
        self._patches.close()
        self.pause()

    def pause(self) -> bool:
        """Step aside; whether there is something to resume.

        Not from within a call of ours: torch has taken the mode off the stack for as long, and puts it back itself.
        """
        if self._within or not self._on or threading.get_ident() != self._thread:
            return False
        self._on = False
        return torch_adapter.remove_mode(self)

    def resume(self) -> None:
        """Come back."""
        if self._installed:
            torch_adapter.push_mode_at_bottom(self)
            self._on = True

    def _switched(self, frame: int, on: bool) -> None:
        """Stay out of compiled regions: Dynamo would trace the mode, and guards on it."""
        if threading.get_ident() != self._thread:
            return
        if on and not self._region:
            start, called_at = sequence_number(), _users(sys._getframe(2))  # noqa: SLF001  # documented
            if self.pause():
                self._region, self._entered = frame, (start, called_at)
        elif not on and frame == self._region:
            self._note(self._entered[0], sequence_number(), self._entered[1])
            self._region, self._entered = 0, (0, None)
            self._next = sequence_number()
            self.resume()

    # -- one call --------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function as it is, and note who called it if it made a node."""
        if not self._installed or threading.get_ident() != self._thread:
            return func(*args, **(kwargs or {}))
        start = sequence_number()
        if start != self._next:
            self._note_function(start)
        self._within += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._within -= 1
            self._next = sequence_number()
            if self._next != start:
                self._note(start, self._next, _users(sys._getframe(1)))  # noqa: SLF001  # documented

    def _note(self, start: int, end: int, called_at: Place | None) -> None:
        if called_at is None or start == end:
            return
        known = self._known.setdefault(called_at, len(self._lines))
        if known == len(self._lines):
            self._lines.append(called_at)
        self._starts.append(start)
        self._ends.append(end)
        self._places.append(known)

    def _note_function(self, number: int) -> None:
        """Numbers were drawn unseen; the last one by a `Function`, if it is the one whose forward is running."""
        called_at = self._functions.caller(sys._getframe(2))  # noqa: SLF001  # documented
        self._note(number - 1, number, called_at)

    # -- looking up ------------------------------------------------------------------------------------------

    def of(self, number: int) -> SourceLine | None:
        """The line at which the node with a sequence number of this thread was made."""
        at = bisect_right(self._starts, number) - 1
        if at < 0 or number >= self._ends[at]:
            return None
        code, line = self._lines[self._places[at]]
        return source_line(code.co_filename, line)


class _Functions:
    """Knows the forwards of all `torch.autograd.Function`s; what calls them is Python or C++, by the release."""

    def __init__(self) -> None:
        self._forwards: set[CodeType] = set()
        self._others: set[CodeType] = set()

    def caller(self, frame: FrameType | None) -> Place | None:
        """The line outside of the Function in whose forward a frame is; None where it is in none."""
        if frame is None or frame.f_code in self._others:
            return None
        if not any(each.f_code in self._forwards for each in _outwards(frame)):
            self._read()
        inside = False
        for each in _outwards(frame):
            if each.f_code in self._forwards:
                inside = True
            elif inside and _is_users(each.f_code.co_filename):
                return each.f_code, each.f_lineno
        if not inside:
            self._others.add(frame.f_code)
        return None

    def _read(self) -> None:
        todo: list[type[Any]] = [torch.autograd.Function]
        while todo:
            todo += (cls := todo.pop()).__subclasses__()
            code = getattr(getattr(cls, "forward", None), "__code__", None)
            if code is not None:
                self._forwards.add(code)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _users(frame: FrameType | None) -> Place | None:
    """The line of the nearest frame, outwards, that is the user's and does not itself handle a call."""
    for each in _outwards(frame):
        if _is_users(each.f_code.co_filename) and each.f_code.co_name != "__torch_function__":
            return each.f_code, each.f_lineno
    return None


@lru_cache(maxsize=4096)
def _is_users(file: str) -> bool:
    """Whether a frame of this file counts as user code. The demo's forward does."""
    return code_owner(file) == "user" or (code_owner(file) == "ours" and not file.startswith(_NOT_USER_CODE))


def source_line(file: str, line: int) -> SourceLine:
    """A line of code with its text."""
    return SourceLine(source_location(file, line).rpartition(":")[0], line, linecache.getline(file, line).strip())


def line_of_anomaly_mode(node: Any) -> SourceLine | None:
    """The line at which a node was made, where `torch.autograd.detect_anomaly()` was on then."""
    for entry in reversed(node.metadata.get("traceback_") or ()):
        found = _FRAME.match(entry)
        if found and _is_users(found[1]):
            return source_line(found[1], int(found[2]))
    return None
