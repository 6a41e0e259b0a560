"""Which line of the user's code ran the forward op of an autograd node.

For each call of a torch function, a TorchFunctionMode records the sequence numbers of the nodes made in it, and the
line of the nearest frame of user code. The mode stands below all other modes: the user's modes see the same calls in
the same order, and may be entered and left at any time. It cannot see ops called from C++, nor other threads; their
nodes have no line.

`torch.autograd.Function.apply` is no such call. Its node takes a number, and then its forward runs. So where a number
was taken outside of every recorded call, and the next call comes from within a Function's forward, the number belongs
to that Function, and the line is the one that called it.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cabw_viz import torch_adapter
from cabw_viz.record.options import LinesMode
from cabw_viz.record.source_line import SourceLine
from cabw_viz.runtime.stack_frames import code_owner, source_location
from cabw_viz.torch_adapter import sequence_number
from cabw_viz.tracing.forward_uses import CodeLine, ForwardUses
from cabw_viz.tracing.tensor_hooks import TensorHooks, is_hooking

_NOT_USER_CODE = tuple(str(Path(file).parent) for file in (__file__, torch_adapter.__file__))
"""Folders of the package whose frames may lie between the user's code and an op."""
_FRAME = re.compile(r'\s*File "(.+)", line (\d+)')


def reason_for_no_lines(lines: LinesMode, subject: Any) -> str:
    """Why forward lines are not recorded; empty where they are."""
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
    """Records the lines of a block, in the thread that enters it; keeps no frame and no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = 0
        self._is_open = False
        self._is_pushed = False
        self._depth = 0
        """Calls that the mode is handling now, one inside another."""
        self._next = 0
        """The sequence number after the last recorded call."""
        self._region = 0
        """Id of the frame that has entered a compiled region; 0 outside."""
        self._region_start: tuple[int, CodeLine | None] = (0, None)
        self._starts: array[int] = array("Q")
        self._ends: array[int] = array("Q")
        self._indices: array[int] = array("l")
        self._index_of: dict[tuple[int, int], int] = {}
        """By the id of code in `_lines` and the line."""
        self._lines: list[CodeLine] = []
        self._texts: dict[int, SourceLine] = {}
        self._functions = _Functions()
        self.uses: ForwardUses | None = None
        """Gets every operation that is seen; None where nothing is to."""
        self.hooks = TensorHooks()
        """The hooks on tensors that are registered in the block."""

    # -- switching on and off --------------------------------------------------------------------------------

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A context in which this thread's lines are recorded.

        Where another thread leaves it, the mode stays on the first thread's stack, and does nothing.
        """
        self._thread, self._next = threading.get_ident(), sequence_number()
        self._is_open = True
        try:
            self.resume()
            yield
        finally:
            self._is_open = False
            self.pause()

    def pause(self) -> bool:
        """Take the mode off the stack; False where there is nothing to resume.

        Within a call that the mode handles nothing is done: torch has taken it off for the call, and pushes it again.
        """
        if self._depth or not self._is_pushed or threading.get_ident() != self._thread:
            return False
        self._is_pushed = False
        return torch_adapter.remove_mode(self)

    def resume(self) -> None:
        """Push the mode again."""
        if self._is_open:
            torch_adapter.push_mode_at_bottom(self)
            self._is_pushed = True

    def switch_region(self, frame: int, is_on: bool) -> None:  # by position, as the adapter calls it
        """Pause in compiled regions: Dynamo would trace the mode, and guard on it.

        Args:
            frame: id of the frame that switches Dynamo.
            is_on: whether Dynamo is on from here.
        """
        if not self._is_open or threading.get_ident() != self._thread:
            return
        if is_on and not self._region:
            start, called_at = sequence_number(), user_line(sys._getframe(2))  # noqa: SLF001  # documented
            if self.pause():
                self._region, self._region_start = frame, (start, called_at)
        elif not is_on and frame == self._region:
            self._add(self._region_start[0], sequence_number(), self._region_start[1])
            self._region, self._region_start = 0, (0, None)
            self._next = sequence_number()
            self.resume()

    # -- one call --------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function as it is, and record the line that called it if it made a node."""
        if not self._is_open or threading.get_ident() != self._thread:
            return func(*args, **(kwargs or {}))
        start = sequence_number()
        if start != self._next:
            self._add_function(start)
        uses = self.uses if not self._depth else None
        note_detached = uses.before_detach(args) if uses is not None and func is torch.Tensor.detach_ else None
        frame, line = sys._getframe(1), None  # noqa: SLF001  # documented
        self._depth += 1
        try:
            result = func(*args, **(kwargs or {}))
            if is_hooking(func):
                self.hooks.note(func, args, result)
        finally:
            self._depth -= 1
            self._next = sequence_number()
            if self._next != start:
                line = user_line(frame)
                self._add(start, self._next, line)
        if note_detached is not None:
            note_detached(frame)
        elif uses is not None:
            self._note_use(func, args, kwargs, result, (start, self._next), line, frame)
        return result

    def _note_use(self, *operation: Any) -> None:
        """Note an operation. An error of ours ends that, and the forward goes on."""
        try:
            if self.uses is not None and not self.uses.error:
                self.uses.note(*operation)
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's forward must go on
            assert self.uses is not None
            self.uses.error = f"{type(error).__name__}: {error}"

    def functions(self) -> Callable[[FrameType | None], bool]:
        """A function that says whether a frame is in the forward of a custom Function."""
        return partial(_is_in, self._functions)

    def note_unseen(self) -> None:
        """Note that nodes were made since the last recorded call, if any were."""
        number = sequence_number()
        if self.uses is not None and number != self._next and threading.get_ident() == self._thread:
            self.uses.note_unseen(self._next, number)

    def _add(self, start: int, end: int, called_at: CodeLine | None) -> None:
        if called_at is None or start == end:
            return
        code, line = called_at
        index = self._index_of.setdefault((id(code), line), len(self._lines))  # the hash of code is that of its text
        if index == len(self._lines):
            self._lines.append(called_at)
        self._starts.append(start)
        self._ends.append(end)
        self._indices.append(index)

    def _add_function(self, number: int) -> None:
        """Record a number taken outside of every call: it belongs to the Function whose forward is running, if any."""
        if self.uses is not None:
            self.uses.note_unseen(self._next, number)
        called_at = self._functions.caller(sys._getframe(2))  # noqa: SLF001  # documented
        self._add(number - 1, number, called_at)

    # -- looking up ------------------------------------------------------------------------------------------

    def of(self, number: int) -> SourceLine | None:
        """The line at which the node with a sequence number of this thread was made."""
        at = bisect_right(self._starts, number) - 1
        if at < 0 or number >= self._ends[at]:
            return None
        index = self._indices[at]
        if index not in self._texts:
            code, line = self._lines[index]
            self._texts[index] = source_line(code.co_filename, line)
        return self._texts[index]


class _Functions:
    """The forwards of all `torch.autograd.Function`s. Python or C++ calls them, depending on the release of PyTorch."""

    def __init__(self) -> None:
        self._forwards: set[CodeType] = set()
        self._others: set[CodeType] = set()

    def caller(self, frame: FrameType | None) -> CodeLine | None:
        """The line that called the Function in whose forward a frame is; None where it is in none."""
        if frame is None or frame.f_code in self._others:
            return None
        if not any(each.f_code in self._forwards for each in _frames_outwards(frame)):
            self._read_forwards()
        inside = False
        for each in _frames_outwards(frame):
            if each.f_code in self._forwards:
                inside = True
            elif inside and _USER_FILES[each.f_code.co_filename]:
                return each.f_code, each.f_lineno
        if not inside:
            self._others.add(frame.f_code)
        return None

    def _read_forwards(self) -> None:
        todo: list[type[Any]] = [torch.autograd.Function]
        while todo:
            todo += (cls := todo.pop()).__subclasses__()
            code = getattr(getattr(cls, "forward", None), "__code__", None)
            if code is not None:
                self._forwards.add(code)


def _is_in(functions: _Functions, frame: FrameType | None) -> bool:
    return functions.caller(frame) is not None


def _frames_outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_line(frame: FrameType | None) -> CodeLine | None:
    """The line of the nearest frame of user code, outwards, that is no `__torch_function__`."""
    while frame is not None:
        code = frame.f_code
        if _USER_FILES[code.co_filename] and code.co_name != "__torch_function__":
            return code, frame.f_lineno
        frame = frame.f_back
    return None


class _UserFiles(dict[str, bool]):
    """Whether code of a file counts as user code; a dict, since it is asked for each frame of each op."""

    def __missing__(self, file: str) -> bool:
        if len(self) > _MOST_FILES:  # generated code has a name of its own each time
            self.clear()
        self[file] = is_user = _is_user_code(file)
        return is_user


_MOST_FILES = 4096
_USER_FILES = _UserFiles()


def _is_user_code(file: str) -> bool:
    """Whether a frame of this file counts as user code. The demo's forward does."""
    return code_owner(file) == "user" or (code_owner(file) == "ours" and not file.startswith(_NOT_USER_CODE))


def line_of(called_at: CodeLine | None) -> SourceLine | None:
    """A line as the record has it."""
    return None if called_at is None else source_line(called_at[0].co_filename, called_at[1])


def source_line(file: str, line: int) -> SourceLine:
    """A line of code with its text."""
    return SourceLine(source_location(file, line).rpartition(":")[0], line, linecache.getline(file, line).strip())


def line_of_anomaly_mode(node: Any) -> SourceLine | None:
    """The line at which a node was made, where `torch.autograd.detect_anomaly()` was on then."""
    for entry in reversed(node.metadata.get("traceback_") or ()):
        match = _FRAME.match(entry)
        if match and _is_user_code(match[1]):
            return source_line(match[1], int(match[2]))
    return None
