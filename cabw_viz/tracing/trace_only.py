"""`run="eager"`: a call is traced without running, then made in the eager engine as the user made it.

trace_only              while the trace lock is held
├─ _compile             what compiled autograd calls with a fresh graph
└─ block.add_outcome
run_in_eager            after it was released
├─ watched_run          what the leaves and nodes get is kept
└─ block.note_raised
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.tracing.backward_trace import BackwardTrace
from cabw_viz.tracing.cache_entry import CacheEntry
from cabw_viz.tracing.capture_block import CaptureBlock
from cabw_viz.tracing.forward_notes import note_forward
from cabw_viz.tracing.gathered_parameters import gathered_parameters
from cabw_viz.tracing.outcome import NewCapture, RanForeignGraph, TraceFailed, TraceOutcome
from cabw_viz.tracing.quick_tracer import QuickTracer, QuickTraceRefused, is_quick_trace_possible, quick_tracer
from cabw_viz.tracing.reference_gradients import keep_returned, watched_run
from cabw_viz.tracing.tracer import TraceStopped, guarding


def trace_only(block: CaptureBlock, trace: BackwardTrace) -> TraceOutcome:
    """Trace a call without running it: the quick way, and where that is refused with PyTorch's own tracer.

    Raises:
        BaseException: what is no Exception and came up during the trace (Ctrl-C). The user's call is then not made.
    """
    block.cache.use_with("eager")
    attempt = None
    if is_quick_trace_possible():
        attempt = _attempt(block, trace, quick_tracer(notes_reads=block.options.tripwire))
    if attempt is None or attempt.can_be_repeated:
        if attempt is not None:
            trace.begin_again()
            block.cache.clear()  # of an entry without a function, on which C++ asserts
        attempt = _attempt(block, trace, block.tracer_class(torch_adapter.TracerBase))
    outcome = block.add_outcome(trace, attempt.error, attempt.reasons)
    if attempt.error is not None and not isinstance(attempt.error, Exception):
        raise attempt.error.with_traceback(None)
    return attempt.ran or outcome


@dataclass
class _Attempt:
    """How one trace of a call ended."""

    reasons: Sequence[str] = ()
    """Why compiled autograd found nothing in its cache."""
    error: BaseException | None = None
    ran: RanForeignGraph | None = None
    can_be_repeated: bool = False
    """Whether an error ended it with every node as it was."""


def _attempt(block: CaptureBlock, trace: BackwardTrace, tracer_class: type[Any]) -> _Attempt:
    attempt = _Attempt()
    tracer = guarding(tracer_class, trace.notes)
    try:
        with (
            block.current(trace),
            torch_adapter.trace_isolation(),
            torch_adapter.tracing(tracer, partial(_compile, block), dynamic=True) as reasons,
        ):
            attempt.reasons = reasons
            attempt.ran = RanForeignGraph(trace.engine_call.run(keep_graph=True))
        # Only if the cache held an entry that is not ours and that we could not know of.
        attempt.error = RuntimeError("the call hit a graph captured outside of this block and ran through it")
    except TraceStopped:
        attempt.error = trace.notes.error
        attempt.can_be_repeated = isinstance(attempt.error, Exception)
    except QuickTraceRefused as refused:
        attempt.error, attempt.can_be_repeated = refused, True
    except BaseException as raised:  # noqa: BLE001  # kept as the reason; what is no Exception is raised later
        attempt.error = raised if isinstance(trace.notes.error, QuickTraceRefused) else trace.notes.error or raised
    finally:
        if isinstance(trace.notes.tracer, QuickTracer):
            trace.notes.tracer.forget()
    return attempt


def _compile(block: CaptureBlock, graph: torch.fx.GraphModule) -> CacheEntry:
    """Keep the graph; the eager engine makes the call."""
    trace = block.current_trace
    assert trace is not None  # compiled autograd hands out no graph when it does not trace
    trace.keep_graph_module(graph)
    return CacheEntry(block, trace, run=None)


def run_in_eager(block: CaptureBlock, trace: BackwardTrace, outcome: TraceOutcome) -> Any:
    """Make the user's call as they made it, and keep the gradients of a new capture, of one without a graph too."""
    call = trace.engine_call
    if isinstance(outcome, RanForeignGraph):
        return outcome.result
    if not isinstance(outcome, NewCapture | TraceFailed):
        return call.run()
    note_forward(trace.state, trace.numbering)
    try:
        if not block.keeps_gradients:
            with block.running(outcome, trace):
                return call.run()
        nodes = outcome.record.autograd_nodes  # these know which hooks they carry
        with (
            gathered_parameters(trace.state, outcome.record, trace.numbering, trace.names),
            block.running(outcome, trace),
            watched_run(trace.state, trace.leaves, nodes, trace.numbering, trace.hook_dicts, block.budget),
        ):
            result = call.run()
    except BaseException as error:  # Ctrl-C too: the capture then has no reference, and its failure says why
        block.note_raised(trace, outcome, error)
        raise
    trace.state.recomputation.compare_written()
    if not call.accumulates:
        with torch_adapter.unseen_operators():
            keep_returned(trace.state, trace.leaves, result)
    return result
