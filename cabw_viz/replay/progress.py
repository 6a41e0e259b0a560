"""A progress bar for work that takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

PATIENCE = 2.0
"""Seconds before a bar appears."""
STEPS_PER_CHECK = 32
"""Steps between two checks of the clock."""

REPORT_INTERVAL = 0.2
"""Seconds between two reports to a listener."""

Listener = Callable[[str, int, int], None]
"""Takes a label, the steps done, and how many there are."""

_listener: ContextVar[Listener | None] = ContextVar("cabw_viz_progress", default=None)


@contextmanager
def progress_to(listener: Listener) -> Iterator[None]:
    """A context in which progress goes to this function, and no bar appears."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Progress:
    """A bar that appears after two seconds, in a terminal or a notebook, and goes when the work is done.

    Args:
        total: how many steps there are.
        label: its label.
    """

    def __init__(self, total: int, label: str) -> None:
        self._total, self._label = total, label
        self._steps, self._steps_in_bar = 0, 0
        self._start = time.perf_counter()
        self._bar: Any = None
        self._listener, self._last_report = _listener.get(), self._start
        self._off = self._listener is None and not _is_interactive()

    def step(self) -> None:
        """One step more."""
        self._steps += 1
        if self._off or self._steps % STEPS_PER_CHECK:
            return
        if self._listener is not None:
            if (now := time.perf_counter()) - self._last_report > REPORT_INTERVAL:
                self._last_report = now
                self._listener(self._label, self._steps, self._total)
            return
        if self._bar is None and time.perf_counter() - self._start > PATIENCE:
            self._bar = _bar(self._total, self._label)
            self._off = self._bar is None
        if self._bar is not None:
            self._bar.update(self._steps - self._steps_in_bar)
            self._steps_in_bar = self._steps

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _is_interactive() -> bool:
    """Whether this is a notebook, or a terminal."""
    return "ipykernel.kernelapp" in sys.modules or bool(getattr(sys.stderr, "isatty", bool)())


def _bar(total: int, label: str) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:  # a bar is no reason to fail
        return None
    return tqdm(total=total, desc=label, unit=" nodes", leave=False, disable=False)


NO_PROGRESS = Progress(0, "")
