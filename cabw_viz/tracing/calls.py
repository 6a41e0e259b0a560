"""Backward calls as plain data."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from cabw_viz import torch_adapter
from cabw_viz.record.model import BackwardCall
from cabw_viz.runtime.stack_frames import source_location
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


def miss_reason(reasons: Sequence[str]) -> str:
    """Why a call was captured, in PyTorch's words where there was an earlier capture to compare with."""
    text = "; ".join(reasons)
    return "nothing captured before" if not text or FIRST_TRACE.search(text) else text
