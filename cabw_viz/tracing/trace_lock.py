"""A lock between our traces and the backwards of other threads.

The compiler that compiled autograd calls is process-global: a backward that another thread starts during our trace
would be captured too, or abort the process. A trace does not wait for backwards that are already running: it is given
up. A backward of another thread waits for a trace to end, which runs no kernel and no collective and so always ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TraceLock:
    """Held by one trace, or shared by any number of backwards. There is one in a process."""

    def __init__(self) -> None:
        self._tracing = threading.Lock()
        self._count = threading.Lock()
        self._running = 0
        """How many backwards of other threads share the lock."""

    @contextmanager
    def shared(self) -> Iterator[None]:
        """A context for a backward of another thread: waits for a trace to end, and prevents the next."""
        with self._tracing, self._count:
            self._running += 1
        try:
            yield
        finally:
            with self._count:
                self._running -= 1

    def try_exclusive(self) -> bool:
        """Take the lock for a trace; False where a backward of another thread shares it."""
        self._tracing.acquire()
        with self._count:
            is_free = self._running == 0
        if not is_free:
            self._tracing.release()
        return is_free

    def release(self) -> None:
        """Release the lock that `try_exclusive` took."""
        self._tracing.release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """A context in which a trace does not hold the lock: its graph runs, and may wait for other threads."""
        self._tracing.release()
        try:
            yield
        finally:
            self._tracing.acquire()


TRACE_LOCK = TraceLock()
