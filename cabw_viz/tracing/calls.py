"""Backward calls as plain data."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType

import torch

from cabw_viz import torch_adapter
from cabw_viz.record.model import BackwardCall
from cabw_viz.runtime.stack_frames import code_owner, source_location
from cabw_viz.torch_adapter import EngineCall

FIRST_TRACE = re.compile(r"GraphRoot \(NodeCall 0\) with key size \d+, previous key sizes=\[\]")
_BELOW_USER_CODE = tuple(str(Path(file).parent) for file in (__file__, torch_adapter.__file__, torch.__file__))
"""Folders: their frames lie between the user's code and the engine's entry."""


def describe(call: EngineCall, index: int | None) -> BackwardCall:
    """A call as plain data."""
    function = "backward" if call.accumulates else "grad"
    return BackwardCall(index, function, user_location(), len(call.roots), call.keep_graph, call.create_graph)


def user_location() -> str:
    """The location of the nearest frame of the user's code, outwards from the engine's entry."""
    frame = sys._getframe(1)  # noqa: SLF001  # documented, and the one cheap way to a frame
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BELOW_USER_CODE):
        frame = frame.f_back
    return source_location(frame.f_code.co_filename, frame.f_lineno)


def maker_in_torch() -> str:
    """Which function of torch's makes the call for its own ends (`torch.func`, `scan`); empty for a user's own call."""
    makers = (torch_adapter.backward_maker(frame.f_code.co_filename) for frame in _frames_below_user_code())
    return next(reversed([maker for maker in makers if maker]), "")


def _frames_below_user_code() -> Iterator[FrameType]:
    """The frames between the engine's entry and the user's code, outwards; a mode of the user's lies between too."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # documented, and the one cheap way to a frame
    while frame is not None and (code_owner(frame.f_code.co_filename) != "user" or _passes_on(frame.f_code)):
        yield frame
        frame = frame.f_back


def _passes_on(code: CodeType) -> bool:
    """Whether code only passes a call on, though it is not torch's: a mode's, and what symbolic tracing makes."""
    return code.co_name == "__torch_function__" or (code.co_filename, code.co_name) == ("<string>", "<lambda>")


def miss_reason(reasons: Sequence[str]) -> str:
    """Why a call was captured, in PyTorch's words where there was an earlier capture to compare with."""
    text = "; ".join(reasons)
    return "nothing captured before" if not text or FIRST_TRACE.search(text) else text
