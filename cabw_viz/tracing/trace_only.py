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
from cabw_viz.tracing.reference_gradients import keep_returned, watched_run
from cabw_viz.tracing.tracer import TraceStopped, guarding


def trace_only(block: CaptureBlock, trace: BackwardTrace) -> TraceOutcome:
    """Trace a call without running it.

    Raises:
        BaseException: what is no Exception and came up during the trace (Ctrl-C). The user's call is then not made.
    """
    block.cache.use_with("eager")
    tracer = guarding(block.tracer_class(torch_adapter.TracerBase), trace.notes)
    reasons: Sequence[str] = ()
    error: BaseException | None
    ran: RanForeignGraph | None = None
    try:
        with (
            block.current(trace),
            torch_adapter.trace_isolation(),
            torch_adapter.tracing(tracer, partial(_compile, block), dynamic=True) as reasons,
        ):
            ran = RanForeignGraph(trace.engine_call.run(keep_graph=True))
        # Only if the cache held an entry that is not ours and that we could not know of.
        error = RuntimeError("the call hit a graph captured outside of this block and ran through it")
    except TraceStopped:
        error = trace.notes.error
    except BaseException as raised:  # noqa: BLE001  # kept as the reason; what is no Exception is raised below
        error = trace.notes.error or raised
    outcome = block.add_outcome(trace, error, reasons)
    if error is not None and not isinstance(error, Exception):
        raise error.with_traceback(None)
    return ran or outcome


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
