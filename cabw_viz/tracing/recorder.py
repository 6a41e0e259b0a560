"""What becomes of every backward call that is made in one block, seen at the engine's entry.

_enter
├─ _bypass            a call that must not be touched, or that `only=` leaves out
├─ _watch             trace=False: read, and made as the user made it
└─ _capture
   ├─ trace_only      run="eager": traced without running; then `run_in_eager` makes the call
   └─ trace_through   run="compiled", or the user's compiler in charge: captured on the way
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError, warn
from cabw_viz.record.model import BackwardCall, Event
from cabw_viz.torch_adapter import EngineCall, UserCompiler
from cabw_viz.tracing.backward_trace import BackwardTrace
from cabw_viz.tracing.calls import describe, maker_in_torch
from cabw_viz.tracing.capture_block import CaptureBlock, CaptureSink
from cabw_viz.tracing.capture_options import CaptureOptions
from cabw_viz.tracing.inner_backwards import InnerBackwards
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.process_changes import changes_of_block
from cabw_viz.tracing.provenance import Provenance
from cabw_viz.tracing.trace_failures import failure_of
from cabw_viz.tracing.trace_lock import TRACE_LOCK
from cabw_viz.tracing.trace_only import run_in_eager, trace_only
from cabw_viz.tracing.trace_through import trace_through
from cabw_viz.tracing.watch_only import read, run_through


class Recorder:
    """Handles every backward call at the engine's entry, while installed.

    Args:
        subject: names the leaves; see `cabw_viz.capture`.
        options: of the block.
        sink: gets the captures and the events.
    """

    _installed: Recorder | None = None

    def __init__(self, subject: Any, options: CaptureOptions, sink: CaptureSink) -> None:
        self.names = Names(subject)
        self.provenance = Provenance(subject, options.lines, is_selective=options.only is not None)
        self._block = CaptureBlock(options, sink)
        self._eligible = 0
        self._owner = 0
        self._changes = ExitStack()

    # -- installing ------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Make the changes of a block, see `process_changes`. Raises a CabwError inside another block."""
        torch_adapter.check()
        if Recorder._installed is not None:
            raise CabwError(
                "a capture block was entered inside another one",
                expected="one block at a time in a process: the tracer is process-global",
                try_="leave the outer block first, or drop the inner one and pick its calls with only=",
            )
        self._owner = threading.get_ident()
        self.provenance.prepare()
        calls, lines = self.provenance.calls, self.provenance.lines
        Recorder._installed = self
        try:
            own_cache = self._block.cache.of_block() if self._block.options.trace else None
            for change in changes_of_block(own_cache, self._handle_call, calls, lines):
                self._changes.enter_context(change)
            self._begin_forward()
        except BaseException:
            self.uninstall()
            raise

    def uninstall(self) -> None:
        """Undo all that `install` has changed."""
        try:
            self._changes.close()
        finally:
            Recorder._installed = None

    def forget_subject(self) -> None:
        """Drop the subject and the tensors that it names."""
        self.names.forget()
        self.provenance.forget()

    # -- one call --------------------------------------------------------------------------------------------

    def _handle_call(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """What the engine's entry runs for every backward call."""
        try:
            call = EngineCall.parse(original, args, options)
        except (TypeError, ValueError) as error:  # a torch or a tool that calls the entry in an unknown way
            warn(f"this backward was not captured: its call could not be read ({error})")
            return original(*args, **options)
        inner = self._block.inner
        if threading.get_ident() != self._owner:
            return self._enter(call)
        if inner is not None:
            with inner.inside(call):
                return self._enter(call)
        try:
            return self._enter(call)
        finally:
            self._begin_forward()

    def _begin_forward(self) -> None:
        try:
            self.provenance.begin_forward(self.names)
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's code must go on
            warn(f"it is not known where the next forward begins ({type(error).__name__}: {error})")

    def _enter(self, call: EngineCall) -> Any:
        outer = self._outer_of(call)
        reason = self._bypass_reason(outer)
        if reason:
            return self._bypass(call, describe(call, None), reason)
        described = describe(call, None if outer else self._eligible)
        if outer is None:
            self._eligible += 1
            reason = self._reason_not_selected(described)
        if reason:
            with self._made_nodes(call):
                result = self._bypass(call, described, reason)
            self.provenance.note_left_out()
            return result
        try:
            is_off = not (self._block.options.trace or torch_adapter.compiled_autograd_is_on())
            user_compiler = None if is_off else torch_adapter.user_compiler()  # which switches it off and on
        except CabwError as error:
            return self._bypass(call, described, error.seen)
        try:
            trace = self._prepare(call, described, user_compiler)
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's call must be made
            if maker_in_torch() == "torch.func":
                return self._bypass(call, described, f"torch.func makes it, and it could not be read ({error})")
            return self._run_unread(call, described, error)
        try:
            if outer is not None and outer.shares(trace.numbering):
                return self._bypass(
                    call, described, "made inside another backward, with which it shares autograd nodes"
                )
            if outer is not None and outer.capture is not None:
                trace.outer = outer.capture, outer.node
                self._block.cache.mark_foreign()  # blocks that are alike would hit, and their gradients not be compared
            return self._capture(trace, user_compiler) if trace.is_traced else self._watch(trace, user_compiler)
        finally:
            if outer is not None and trace.outcome is not None:
                outer.note_capture(trace.outcome.index)
            trace.drop_tracing_state()

    def _outer_of(self, call: EngineCall) -> InnerBackwards | None:
        """The captured call in which a call is made that is to be captured too; None for any other call.

        The gradients of a call that accumulates none go on through the outer one's graph.
        """
        can_trace = torch_adapter.TRACES_INSIDE or not self._block.options.trace
        wanted = self._block.options.inner and can_trace and call.accumulates
        return self._block.inner if wanted and torch_adapter.backward_is_running() else None

    def _bypass_reason(self, outer: InnerBackwards | None) -> str:
        """Why a call made now must not be touched; empty where it may."""
        if torch_adapter.backward_is_running() and outer is None:
            return "made inside another backward"
        if threading.get_ident() != self._owner:
            return "made in another thread than the one that entered the block"
        if torch_adapter.compiler_is_tracing():
            return "Dynamo or AOTAutograd is tracing it"
        maker = maker_in_torch()
        if maker == "torch.func" and not self._block.options.trace:
            return ""
        if maker == "torch.func":
            return "torch.func makes it (grad, vjp, jacrev and what is built on them), and excludes compiled autograd"
        if maker:
            return f"torch's higher-order operator {maker} makes it for a trace of its own, in its forward"
        exclusion = torch_adapter.compiled_autograd_exclusion() if self._block.options.trace else ""
        return f"{exclusion} excludes compiled autograd here" if exclusion else ""

    def _reason_not_selected(self, described: BackwardCall) -> str:
        """Why `only=` leaves a call out; empty where it picks it. A predicate that raises picks nothing."""
        try:
            return "" if self._block.options.selects(described) else "not selected by only="
        except Exception as error:  # noqa: BLE001  # it is the user's function, and their backward must go on
            warn(f"only= raised {type(error).__name__}: {error}; the call ran uncaptured")
            return f"only= raised {type(error).__name__}: {error}"

    def _bypass(self, call: EngineCall, described: BackwardCall, reason: str) -> Any:
        """Make the call as if we were not there."""
        self._block.sink.add_event(Event(described, "bypassed", reason))
        if torch_adapter.compiled_autograd_is_on():
            self._block.cache.mark_foreign()  # the user's compiler fills it with entries that are not ours
        if threading.get_ident() == self._owner or not self._block.options.trace:
            return call.run()
        with TRACE_LOCK.shared():
            return call.run()

    def _prepare(self, call: EngineCall, described: BackwardCall, user_compiler: UserCompiler | None) -> BackwardTrace:
        """Read the autograd graph of a call before it is traced."""
        run, compiler = (self._block.options.run, None) if user_compiler is None else ("user", user_compiler.function)
        with torch_adapter.unseen_operators(), torch_adapter.without_any_torch_function():
            trace = BackwardTrace.prepare(described, call, run, compiler, self.names, self.provenance)
        trace.is_traced = self._block.options.trace
        return trace

    def _run_unread(self, call: EngineCall, described: BackwardCall, error: Exception) -> Any:
        """Make a call whose autograd graph could not be read: most often one that the engine refuses too."""
        reason = str(failure_of(error))
        self._block.sink.add_event(Event(described, "failed", reason))
        result = call.run()
        warn(f"this backward could not be read ({reason}); it ran in eager, unharmed")
        return result

    def _watch(self, trace: BackwardTrace, user_compiler: UserCompiler | None) -> Any:
        """Read the call, then make it."""
        outcome = read(self._block, trace)
        with self._made_nodes(trace.engine_call):
            if user_compiler is not None:
                return run_through(self._block, trace, outcome)
            return run_in_eager(self._block, trace, outcome)

    def _capture(self, trace: BackwardTrace, user_compiler: UserCompiler | None) -> Any:
        """Trace the call, and make it: one before the other, or in one."""
        if user_compiler is not None:
            return trace_through(self._block, trace, user_compiler)
        freed = trace.freed_node() if trace.run == "eager" else ""
        if freed:
            reason = f"{freed} has run before and was freed: a trace would fail in it and damage it"
            return self._bypass(trace.engine_call, trace.call, reason)
        if not TRACE_LOCK.try_exclusive():
            reason = "another thread is in a backward, and the tracer is process-global"
            return self._bypass(trace.engine_call, trace.call, reason)
        try:
            if trace.run == "compiled":
                return trace_through(self._block, trace, user_compiler)
            with torch_adapter.unseen_operators():
                outcome = trace_only(self._block, trace)
        finally:
            TRACE_LOCK.release()
        with self._made_nodes(trace.engine_call):
            return run_in_eager(self._block, trace, outcome)

    def _made_nodes(self, call: EngineCall) -> AbstractContextManager[None]:
        """A context in which the nodes that this call makes get their origin, if the eager engine makes the call."""
        is_eager = not torch_adapter.compiled_autograd_is_on()
        return self.provenance.of_backward(call) if is_eager else nullcontext()
