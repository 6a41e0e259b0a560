"""The options of `cabw_viz.capture`, checked in one place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from cabw_viz.errors import CabwError
from cabw_viz.record.model import BackwardCall
from cabw_viz.record.options import (
    GRADIENTS_MODES,
    LINES_MODES,
    RUN_MODES,
    SWITCH,
    GradientsMode,
    LinesMode,
    RunMode,
)

CallSelector = int | slice | Callable[[BackwardCall], bool] | None
"""Which backward calls a block captures: the one of a number, those of a slice, those a function picks, or all."""


@dataclass(frozen=True)
class CaptureOptions:
    """What `cabw_viz.capture` was asked for, beside its subject; `capture` describes each option.

    Raises:
        CabwError: an option has a value that it cannot have.
    """

    run: RunMode = "eager"
    only: CallSelector = None
    gradients: GradientsMode = "nodes"
    max_bytes: int = 512 * 2**20
    snapshot: bool = False
    inner: bool = False
    tripwire: bool = True
    lines: LinesMode = "auto"
    trace: bool = True

    def __post_init__(self) -> None:
        _check("run", self.run, RUN_MODES)
        _check("gradients", self.gradients, GRADIENTS_MODES)
        _check("lines", self.lines, LINES_MODES)
        _check("snapshot", self.snapshot, SWITCH)
        _check("inner", self.inner, SWITCH)
        _check("tripwire", self.tripwire, SWITCH)
        _check("trace", self.trace, SWITCH)
        _check_trace(self.run, trace=self.trace)
        _check_max_bytes(self.max_bytes)
        _check_only(self.only)

    def selects(self, call: BackwardCall) -> bool:
        """Whether `only` picks a call. Raises what the user's function raises."""
        only = self.only
        if only is None:
            return True
        if isinstance(only, int):
            return call.index == only
        if isinstance(only, slice):
            stop = sys.maxsize if only.stop is None else only.stop
            return call.index in range(only.start or 0, stop, only.step or 1)
        return bool(only(call))


def _check(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(type(value) is type(each) and value == each for each in allowed):  # 1 is not True here
        raise CabwError(
            f"capture() got {name}={value!r}",
            expected="one of " + ", ".join(map(repr, allowed)),
            try_=f"capture(model, {name}={allowed[0]!r})",
        )


def _check_trace(run: RunMode, *, trace: bool) -> None:
    if run == "compiled" and not trace:
        raise CabwError(
            'capture() got run="compiled" and trace=False: a call that runs through compiled autograd is traced by it',
            expected='run="eager" without a trace, or run="compiled" with one',
            try_="capture(model, trace=False)",
        )


def _check_max_bytes(value: object) -> None:
    if not _is_count(value):
        raise CabwError(
            f"capture() got max_bytes={value!r}",
            expected="a number of bytes from 0",
            try_='max_bytes=2**30, or gradients="leaves", which keeps no gradients of nodes',
        )


def _check_only(only: object) -> None:
    if isinstance(only, slice):
        bounds = only.start, only.stop, only.step
        is_valid = all(bound is None or _is_count(bound) for bound in bounds) and only.step != 0
    else:
        is_valid = only is None or callable(only) or _is_count(only)
    if not is_valid:
        raise CabwError(
            f"capture() got only={only!r}",
            expected="a number from 0, a slice of such, or a function of a BackwardCall",
            try_="only=0 for the block's first backward, only=slice(10, 12), or "
            "only=lambda call: call.function == 'grad'",
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
