"""Compiled autograd's cache, kept free of entries that would answer a call of this block wrongly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from cabw_viz import torch_adapter
from cabw_viz.tracing.tracer import ReleasableCallable


class TraceCache:
    """Clears the process-wide cache where its entries are not those of the block's present compiler."""

    def __init__(self) -> None:
        self._compiler: object = None
        """What compiled the graphs of the entries: a word for each of our own ways, or the user's function."""
        self._is_foreign = False
        self._callables: list[ReleasableCallable] = []

    @contextmanager
    def of_block(self) -> Iterator[None]:
        """A context at whose start and end the cache is empty."""
        torch_adapter.clear_cache()
        try:
            yield
        finally:
            self.clear()

    def use_with(self, compiler: object) -> None:
        """Before a trace: drop entries of another compiler, of calls that were bypassed, and of failed traces."""
        if self._is_foreign or self._compiler is not compiler:
            self.clear()
        self._is_foreign, self._compiler = False, compiler

    def mark_foreign(self) -> None:
        """The cache holds an entry that must not answer a call of the block: clear it before the next trace."""
        self._is_foreign = True

    def release_later(self, callables: Iterable[ReleasableCallable]) -> None:
        """Release these callables, which C++ keeps, together with the entries that could call them."""
        self._callables += callables

    def clear(self) -> None:
        """Clear the cache."""
        torch_adapter.clear_cache()
        while self._callables:
            self._callables.pop().release()
