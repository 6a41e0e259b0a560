"""What the traces of one block share: options, cache, and the sink for captures and events."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from cabw_viz.record.kinds import Phase
from cabw_viz.record.model import CaptureRecord, Event, Failure
from cabw_viz.runtime.capture_state import CaptureState
from cabw_viz.tracing.backward_trace import BackwardTrace
from cabw_viz.tracing.calls import miss_reason
from cabw_viz.tracing.capture_options import CaptureOptions
from cabw_viz.tracing.inner_backwards import InnerBackwards
from cabw_viz.tracing.node_gradients import Budget
from cabw_viz.tracing.outcome import CacheHit, NewCapture, TraceFailed, TraceOutcome
from cabw_viz.tracing.trace_cache import TraceCache
from cabw_viz.tracing.trace_failures import failure_of
from cabw_viz.tracing.tripwire import tripwire_tracer


class CaptureSink(Protocol):
    """Where a block puts its captures and events, in order; the session owns them."""

    def add_capture(self, record: CaptureRecord, state: CaptureState) -> int:
        """Add a capture; returns its index."""

    def update_record(self, index: int, record: CaptureRecord) -> None:
        """Replace the record of a capture."""

    def add_event(self, event: Event) -> None:
        """Add the event of a backward call."""

    def add_run_failure(self, index: int, failure: Failure) -> None:
        """Note in a capture's record and in its event that the run of the captured call raised."""


class _Thread(threading.local):
    trace: BackwardTrace | None = None


class CaptureBlock:
    """The options of a block, its cache, its sink, and which trace runs in each thread."""

    def __init__(self, options: CaptureOptions, sink: CaptureSink) -> None:
        self.options, self.sink = options, sink
        self.budget = Budget(options.max_bytes) if options.gradients == "nodes" else None
        self.cache = TraceCache()
        self._thread = _Thread()
        self.inner: InnerBackwards | None = None
        """Of the innermost captured call that runs in eager now; None where none does."""

    @property
    def keeps_gradients(self) -> bool:
        """Whether any gradients of the user's own run are kept."""
        return self.options.gradients != "none"

    @property
    def current_trace(self) -> BackwardTrace | None:
        """The trace that this thread is in; None where there is none."""
        return self._thread.trace

    @contextmanager
    def current(self, trace: BackwardTrace) -> Iterator[None]:
        """A context in which this thread is in a trace."""
        self._thread.trace = trace
        try:
            yield
        finally:
            self._thread.trace = None

    @contextmanager
    def running(self, outcome: NewCapture | TraceFailed, trace: BackwardTrace) -> Iterator[None]:
        """A context for the user's own run of a captured call: notes what gets its gradient elsewhere."""
        outer = self.inner
        inner = self.inner = InnerBackwards(trace.leaves, trace.numbering, trace.names)
        inner.capture, inner.outer = outcome.index, outer
        try:
            with inner.watching():
                yield
        finally:
            self.inner = outer
            if outer is not None:
                outer.note_nested(inner.found)
        if inner.found or inner.others:
            record = replace(outcome.record, inner_backwards=tuple(inner.found), other_gradients=inner.others)
            self.sink.update_record(outcome.index, record)

    def tracer_class(self, base: type[Any]) -> type[Any]:
        """A tracer class, with the tripwire where the block wants it."""
        return tripwire_tracer(base) if self.options.tripwire else base

    def add_capture(self, trace: BackwardTrace, failure: Failure | None = None) -> NewCapture:
        """Make a trace a capture of the session."""
        record = replace(trace.record(failure), watched=self._watched_phases(trace))
        return NewCapture(self.sink.add_capture(record, trace.state), record)

    def _watched_phases(self, trace: BackwardTrace) -> tuple[Phase, ...]:
        if not self.options.tripwire:
            return ()
        return ("initial_trace",) if trace.compiler is None else ("initial_trace", "graph_pass")

    def add_watched(self, trace: BackwardTrace) -> NewCapture:
        """Make a call that is not traced a capture of the session."""
        record = trace.watched_record()
        capture = NewCapture(self.sink.add_capture(record, trace.state), record)
        seconds = time.perf_counter() - trace.started
        self.sink.add_event(Event(trace.call, "watched", "", capture.index, seconds))
        return capture

    def add_outcome(self, trace: BackwardTrace, error: BaseException | None, reasons: Sequence[str]) -> TraceOutcome:
        """Note how a trace ended.

        Args:
            trace: that has ended.
            error: what it raised, if it did.
            reasons: why compiled autograd found nothing in its cache, in its own words.
        """
        self.cache.release_later(trace.notes.callables)
        seconds = time.perf_counter() - trace.started
        outcome: TraceOutcome | None = trace.outcome
        if isinstance(outcome, CacheHit):
            event = Event(trace.call, "cache_hit", "", outcome.index, seconds)
        elif isinstance(outcome, NewCapture):
            event = Event(trace.call, "captured", miss_reason(reasons), outcome.index, seconds)
        else:
            outcome = self._failed(trace, error or RuntimeError("the trace ended without a graph"))
            event = Event(trace.call, "failed", str(outcome.failure), outcome.index, seconds)
        self.sink.add_event(event)
        return outcome

    def _failed(self, trace: BackwardTrace, error: BaseException) -> TraceFailed:
        failure = trace.failure(error)
        capture = self.add_capture(trace, failure)
        trace.state.graph = trace.state.arguments = None
        # The trace leaves a cache entry without a function, on which the next call like it would assert.
        self.cache.mark_foreign()
        return TraceFailed(capture.index, capture.record, failure)

    def note_raised(self, trace: BackwardTrace, outcome: TraceOutcome, error: BaseException) -> None:
        """Note that the run of a call raised. A failed trace stays what stopped the capture."""
        trace.state.run_failure = failure_of(error)
        if isinstance(outcome, NewCapture):
            self.sink.add_run_failure(outcome.index, trace.state.run_failure)
