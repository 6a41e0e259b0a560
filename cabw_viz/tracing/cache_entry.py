"""What compiled autograd's cache keeps of a captured graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cabw_viz.tracing.backward_trace import BackwardTrace
from cabw_viz.tracing.capture_block import CaptureBlock
from cabw_viz.tracing.outcome import CacheHit
from cabw_viz.tracing.tracer import TraceStopped


class CacheEntry:
    """Stands for a compiled function: the engine calls it with a graph's arguments, after a trace and after a hit.

    Args:
        block: that the graph was captured in.
        trace: of the call that is being captured.
        run: runs the graph; None where the eager engine makes the call.
    """

    def __init__(self, block: CaptureBlock, trace: BackwardTrace, run: Callable[..., Any] | None) -> None:
        self._block, self._run = block, run
        self._trace: BackwardTrace | None = trace
        """None once the call is captured, so that the cache keeps no tensor alive."""
        self._index: int | None = None

    def __call__(self, inputs: list[Any], *rest: Any) -> Any:
        """Complete the capture, or note the hit; then run the graph."""
        trace = self._block.current_trace
        if trace is not None and self._trace is trace:
            self._trace = None
            trace.keep_arguments(inputs, rest, snapshot=self._block.options.snapshot)
            trace.outcome = self._block.add_capture(trace)
            self._index = trace.outcome.index
        elif trace is not None and self._index is not None:
            trace.outcome = CacheHit(self._index)
        if self._run is None or (trace is not None and trace.run == "eager"):
            raise TraceStopped
        return self._run(inputs, *rest)
