"""`run="compiled"`, or the user's own compiler: a call runs through compiled autograd, and is captured on the way.

trace_through           while the trace lock is held, unless the user's compiler is in charge
├─ _compile             what compiled autograd calls with a fresh graph
├─ _settle
├─ block.note_raised
└─ _keep_gradients
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.torch_adapter import UserCompiler
from cabw_viz.tracing.backward_trace import BackwardTrace
from cabw_viz.tracing.cache_entry import CacheEntry
from cabw_viz.tracing.capture_block import CaptureBlock
from cabw_viz.tracing.leaves import variables_of
from cabw_viz.tracing.outcome import CacheHit, NewCapture, TraceOutcome
from cabw_viz.tracing.reference_gradients import keep_grads_after, keep_grads_before, keep_returned, watch_accumulations
from cabw_viz.tracing.trace_lock import TRACE_LOCK
from cabw_viz.tracing.tracer import watching


def trace_through(block: CaptureBlock, trace: BackwardTrace, user_compiler: UserCompiler | None) -> Any:
    """Run a call through compiled autograd, and keep the gradients that it makes.

    Args:
        block: in which the call is made.
        trace: of the call.
        user_compiler: compiled autograd as the user has switched it on; None runs the graph as it is.
    """
    base, dynamic = (
        (user_compiler.tracer, user_compiler.dynamic) if user_compiler is not None else (torch_adapter.TracerBase, True)
    )
    block.cache.use_with(user_compiler.function if user_compiler is not None else "compiled")
    by_grad = user_compiler is not None and block.keeps_gradients
    variables = variables_of(trace.leaves, trace.numbering) if by_grad else []
    keep_grads_before(trace.state, variables)
    reasons: Sequence[str] = ()
    try:
        tracer = watching(block.tracer_class(base), trace.notes)
        with (
            block.current(trace),
            torch_adapter.tracing(tracer, partial(_compile, block), dynamic=dynamic) as reasons,
        ):
            result = trace.engine_call.run()
    except BaseException as error:
        if trace.outcome is None:
            trace.notes.error_node = trace.notes.node
        block.note_raised(trace, _settle(block, trace, error, reasons), error)
        raise
    outcome = _settle(block, trace, None, reasons)
    if block.keeps_gradients and not isinstance(outcome, CacheHit):
        _keep_gradients(trace, variables, result)
    return result


def _compile(block: CaptureBlock, graph: torch.fx.GraphModule) -> CacheEntry:
    """Keep the graph, and have it compiled by the user's compiler, or run as it is."""
    trace = block.current_trace
    assert trace is not None  # compiled autograd hands out no graph when it does not trace
    trace.keep_graph_module(graph)
    if trace.compiler is not None:
        if block.options.tripwire:
            trace.lookups.watch(graph.graph)
        return CacheEntry(block, trace, trace.compiler(graph))
    if block.keeps_gradients:
        watch_accumulations(graph, trace.state, variables_of(trace.leaves, trace.numbering))
    return CacheEntry(block, trace, partial(_run_unlocked, block, graph))


def _run_unlocked(block: CaptureBlock, graph: Callable[..., Any], *args: Any) -> Any:
    """Run a graph; other threads may make their backwards meanwhile."""
    if block.current_trace is None:
        return graph(*args)
    with TRACE_LOCK.released():
        return graph(*args)


def _settle(
    block: CaptureBlock, trace: BackwardTrace, error: BaseException | None, reasons: Sequence[str]
) -> TraceOutcome:
    """Note how the trace ended; a record made before the graph ran gets the lookups of deleted metadata since then."""
    trace.lookups.end()
    outcome = block.add_outcome(trace, error, reasons)
    if isinstance(outcome, NewCapture):
        record = outcome.record
        earlier = (touch for touch in record.touches if touch.phase != "graph_pass")
        touches = (*earlier, *trace.lookups.touches(record.graph_nodes))
        block.sink.update_record(outcome.index, replace(record, touches=touches))
    return outcome


def _keep_gradients(trace: BackwardTrace, variables: Sequence[torch.Tensor | None], result: Any) -> None:
    """Keep what the run has made of the gradients of the leaves."""
    keep_grads_after(trace.state, variables)
    if not trace.engine_call.accumulates:
        keep_returned(trace.state, trace.leaves, result)
    trace.state.has_reference = True
