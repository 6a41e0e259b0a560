"""`trace=False`: a call is read before it runs, and made as the user made it; compiled autograd is left alone.

read                    autograd nodes, saved tensors, hooks: before the run frees them
run_in_eager            or `run_through`, where the user's compiled autograd runs the call
"""

from __future__ import annotations

from typing import Any

from cabw_viz import torch_adapter
from cabw_viz.tracing.backward_trace import BackwardTrace
from cabw_viz.tracing.capture_block import CaptureBlock
from cabw_viz.tracing.leaves import variables_of
from cabw_viz.tracing.outcome import NewCapture
from cabw_viz.tracing.reference_gradients import keep_grads_after, keep_grads_before, keep_returned


def read(block: CaptureBlock, trace: BackwardTrace) -> NewCapture:
    """Make a call that is not traced a capture, before it runs."""
    with torch_adapter.unseen_operators(), torch_adapter.without_any_torch_function():
        return block.add_watched(trace)


def run_through(block: CaptureBlock, trace: BackwardTrace, outcome: NewCapture) -> Any:
    """Make a call that the user's compiled autograd runs. Hooks of ours would become part of the user's graph."""
    if not block.keeps_gradients:
        return trace.engine_call.run()
    variables = variables_of(trace.leaves, trace.numbering)
    with torch_adapter.unseen_operators(), torch_adapter.without_any_torch_function():
        keep_grads_before(trace.state, variables)
    try:
        result = trace.engine_call.run()
    except BaseException as error:
        block.note_raised(trace, outcome, error)
        raise
    with torch_adapter.unseen_operators(), torch_adapter.without_any_torch_function():
        keep_grads_after(trace.state, variables)
        if not trace.engine_call.accumulates:
            keep_returned(trace.state, trace.leaves, result)
    trace.state.has_reference = True
    return result
