"""Keeps other threads' backwards and our traces apart.

The compiler that compiled autograd calls is process-global: a backward that another thread starts while our trace
is on would be captured too, or abort the process. So a trace waits for nobody (it is given up if another thread
is in a backward), and a backward in another thread waits for the end of a trace, which runs no kernel and no
collective and so always comes to an end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TraceLock:
    """One per process."""

    def __init__(self) -> None:
        self._trace = threading.Lock()
        self._count = threading.Lock()
        self._in_flight = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """A backward of another thread, left alone."""
        with self._trace, self._count:
            self._in_flight += 1
        try:
            yield
        finally:
            with self._count:
                self._in_flight -= 1

    def try_exclusive(self) -> bool:
        """Begin a trace, unless another thread is in a backward."""
        self._trace.acquire()
        with self._count:
            free = self._in_flight == 0
        if not free:
            self._trace.release()
        return free

    def release(self) -> None:
        """End it."""
        self._trace.release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let others pass for the time in which a captured graph runs: it may wait for them (collectives)."""
        self._trace.release()
        try:
            yield
        finally:
            self._trace.acquire()


TRACE_LOCK = TraceLock()
