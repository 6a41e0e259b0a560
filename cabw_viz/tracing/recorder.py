"""What becomes of every backward call that is made in a block.

    _enter
    ├─ _bypass            a call that must not be touched, or that `only=` leaves out
    └─ _capture
       ├─ _shadow         run="eager": traced without running, then made as the user made it
       └─ _through        run="compiled", or the user's compiler in charge: the record is made on the way

Compiled autograd calls `_compiler_fn` with a fresh graph, and `_run_graph` with the arguments of each run.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError, CabwWarning
from cabw_viz.record.kinds import Outcome, Phase
from cabw_viz.record.model import AutogradNode, BackwardCall, Event, Failure
from cabw_viz.record.options import LinesMode
from cabw_viz.runtime.capture_state import Arguments, Captured, ThreadState
from cabw_viz.torch_adapter import EngineCall, UsersCompiler
from cabw_viz.tracing import reference_gradients as reference
from cabw_viz.tracing.backward_trace import BackwardTrace
from cabw_viz.tracing.calls import Only, check_only, describe, miss_reason, selected
from cabw_viz.tracing.leaves import variables_of
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_gradients import Budget
from cabw_viz.tracing.provenance import Provenance
from cabw_viz.tracing.saved_tensors import keys_of
from cabw_viz.tracing.trace_lock import TRACE_LOCK
from cabw_viz.tracing.tracer import Held, TraceStopped, guarding, watching
from cabw_viz.tracing.tripwire import tripwired


@dataclass
class Traced:
    """What the cache keeps for a captured graph: our stand-in for the compiled function."""

    attempt: BackwardTrace | None
    """The call that is being captured; None once it is over, so that the cache keeps no tensor alive."""
    compiled: Callable[..., Any] | None
    """What runs the graph; None where the eager engine makes the call."""
    index: int | None = None


class Recorder:
    """Handles every backward call at the engine's entry, while installed.

    Args:
        subject: names the leaves; see `cabw_viz.capture`.
        run: `eager` or `compiled`.
        only: which calls to capture.
        gradients: `nodes`, `leaves` or `none`.
        max_bytes: what the gradients of all nodes may take, over the whole block.
        snapshot: whether inputs are copied.
        tripwire: whether reads of metadata are noted.
        lines: whether forward lines are noted.
    """

    _installed: Recorder | None = None

    def __init__(  # noqa: PLR0913  # every one of these is a choice of its own, and given by its name
        self,
        subject: Any,
        *,
        run: str,
        only: Only,
        gradients: str,
        max_bytes: int,
        snapshot: bool,
        tripwire: bool,
        lines: LinesMode,
    ) -> None:
        check_only(only)
        self.names = Names(subject)
        self.provenance = Provenance(subject, lines)
        self.captures: list[Captured] = []
        self.events: list[Event] = []
        self._run, self._only, self._gradients, self._snapshot = run, only, gradients, snapshot
        self._tripwire = tripwire
        self._budget = Budget(max_bytes) if gradients == "nodes" else None
        self._eligible = 0
        self._current = threading.local()
        self._owner = 0
        self._patches = ExitStack()
        self._cache_owner: object = None
        self._cache_is_foreign = False
        self._held: list[Held] = []

    # -- coming and going ------------------------------------------------------------------------------------

    def install(self) -> None:
        """Patch the engine's entry. Raises a CabwError inside another block."""
        torch_adapter.check()
        if Recorder._installed is not None:
            raise CabwError(
                "a capture block was entered inside another one",
                expected="one block at a time in a process: the tracer is process-global",
                try_="leave the outer block first, or drop the inner one and pick its calls with only=",
            )
        self._owner = threading.get_ident()
        torch_adapter.clear_cache()
        Recorder._installed = self
        try:
            self._patches.enter_context(torch_adapter.patched_engine_entry(self._parse))
            self.provenance.install()
        except BaseException:
            self.uninstall()
            raise

    def uninstall(self) -> None:
        """Restore the engine's entry. A patch made by another tool inside the block stays."""
        try:
            self.provenance.uninstall()
        finally:
            Recorder._installed = None
            self._patches.close()
            self._clear_cache()

    def release(self) -> None:
        """Let go of every tensor."""
        for captured in self.captures:
            captured.live.release()
        self.names.forget()
        self.provenance.forget()

    # -- one call --------------------------------------------------------------------------------------------

    def _parse(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """What the engine's entry runs for every backward call."""
        try:
            call = EngineCall.parse(original, args, options)
        except (TypeError, ValueError) as error:  # a torch or a tool that calls the entry in an unknown way
            warn(f"this backward was not captured: its call could not be read ({error})")
            return original(*args, **options)
        return self._enter(call)

    def _enter(self, call: EngineCall) -> Any:
        reason = self._why_not()
        if reason:
            return self._bypass(call, describe(call, None), reason)
        described = describe(call, self._eligible)
        self._eligible += 1
        left_out = self._left_out(described)
        if left_out:
            return self._bypass(call, described, left_out)
        try:
            users = torch_adapter.users_compiler()
        except CabwError as error:
            return self._bypass(call, described, error.seen)
        try:
            run = self._run if users is None else "user"
            compiler = users.function if users is not None else None
            attempt = BackwardTrace.prepare(described, call, run, compiler, self.names, self.provenance)
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's call must be made
            return self._unprepared(call, described, error)
        try:
            return self._capture(attempt, users)
        finally:
            attempt.drop_tracing_state()

    def _why_not(self) -> str:
        """Why a call made now must not be touched; empty where it may."""
        if torch_adapter.backward_is_running():
            return "made inside another backward"
        if threading.get_ident() != self._owner:
            return "made in another thread than the one that entered the block"
        if torch_adapter.compiler_is_tracing():
            return "Dynamo or AOTAutograd is tracing it"
        if torch_adapter.compiled_autograd_is_forbidden():
            return "compiled autograd is excluded here (_disable() or the stance force_eager)"
        return ""

    def _left_out(self, described: BackwardCall) -> str:
        """Why `only=` leaves a call out; empty where it picks it. A predicate that raises picks nothing."""
        try:
            return "" if selected(self._only, described) else "not selected by only="
        except Exception as error:  # noqa: BLE001  # it is the user's function, and their backward must go on
            warn(f"only= raised {type(error).__name__}: {error}; the call ran uncaptured")
            return f"only= raised {type(error).__name__}: {error}"

    def _bypass(self, call: EngineCall, described: BackwardCall, reason: str) -> Any:
        """Make the call as if we were not there."""
        self.events.append(Event(described, "bypassed", reason))
        # A call that the user's compiler handles fills the cache with entries that are not ours.
        self._cache_is_foreign |= torch_adapter.compiled_autograd_is_on()
        if threading.get_ident() == self._owner:
            return call.run()
        with TRACE_LOCK.shared():
            return call.run()

    def _unprepared(self, call: EngineCall, described: BackwardCall, error: Exception) -> Any:
        """A call whose autograd graph could not be read: most often one that the engine refuses too."""
        self.events.append(Event(described, "failed", f"{type(error).__name__}: {error}"))
        result = call.run()
        warn(f"this backward could not be read ({type(error).__name__}: {error}); it ran in eager, unharmed")
        return result

    def _capture(self, attempt: BackwardTrace, users: UsersCompiler | None) -> Any:
        """Trace the call, and make it: one before the other, or in one."""
        if users is not None:
            return self._through(attempt, users.tracer, dynamic=users.dynamic)
        freed = attempt.freed_node() if attempt.run == "eager" else ""
        if freed:
            reason = f"{freed} has run before and was freed: a trace would fail in it and damage it"
            return self._bypass(attempt.engine_call, attempt.call, reason)
        if not TRACE_LOCK.try_exclusive():
            reason = "another thread is in a backward, and the tracer is process-global"
            return self._bypass(attempt.engine_call, attempt.call, reason)
        try:
            if attempt.run == "compiled":
                return self._through(attempt, torch_adapter.TracerBase, dynamic=True)
            self._shadow(attempt)
        finally:
            TRACE_LOCK.release()
        return self._eager(attempt)

    # -- called by compiled autograd -------------------------------------------------------------------------

    def _compiler_fn(self, graph: torch.fx.GraphModule) -> Callable[..., Any]:
        """What compiled autograd hands a fresh graph to."""
        attempt: BackwardTrace = self._current.attempt
        attempt.keep_graph_module(graph)
        compiled: Callable[..., Any] | None = None
        if attempt.compiler is not None:
            if self._tripwire:
                attempt.lookups.watch(graph.graph)
            compiled = attempt.compiler(graph)
        elif attempt.run == "compiled":
            compiled = graph
            if self._gradients != "none":
                reference.watch_accumulations(graph, attempt.live, variables_of(attempt.leaves, attempt.walk))
        return partial(self._run_graph, Traced(attempt, compiled))

    def _run_graph(self, traced: Traced, inputs: list[Any], *rest: Any) -> Any:
        """What the engine calls with the graph's arguments, after a capture and after a cache hit."""
        attempt: BackwardTrace | None = getattr(self._current, "attempt", None)
        if attempt is not None and traced.attempt is attempt:
            traced.attempt = None
            traced.index = self._keep_arguments(attempt, inputs, rest)
        elif attempt is not None:
            attempt.hit = traced.index
        if traced.compiled is None or (attempt is not None and attempt.run == "eager"):
            raise TraceStopped
        if attempt is not None and attempt.run == "compiled":
            with TRACE_LOCK.released():
                return traced.compiled(inputs, *rest)
        return traced.compiled(inputs, *rest)

    def _keep_arguments(self, attempt: BackwardTrace, inputs: list[Any], rest: tuple[Any, ...]) -> int | None:
        """Complete a capture with what its graph is about to run on."""
        attempt.input_keys = keys_of(inputs)
        arguments = Arguments.of_call(inputs, rest, snapshot=self._snapshot)
        attempt.live.arguments = arguments
        attempt.live.thread_state = ThreadState.current(attempt.call.create_graph)
        self._keep_record(attempt, arguments)
        return attempt.captured

    def _keep_record(
        self, attempt: BackwardTrace, arguments: Arguments | None = None, failure: Failure | None = None
    ) -> None:
        """Make the record of a capture. A failure of ours in it is a warning and a bare record."""
        try:
            record = attempt.record(arguments, failure)
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must go on
            warn(f"the record of this backward is incomplete ({type(error).__name__}: {error})")
            record = attempt.bare_record(failure or attempt.failure(error))
        attempt.captured = len(self.captures)
        self.captures.append(Captured(replace(record, watched=self._watched(attempt)), attempt.live))

    def _watched(self, attempt: BackwardTrace) -> tuple[Phase, ...]:
        if not self._tripwire:
            return ()
        return ("initial_trace",) if attempt.compiler is None else ("initial_trace", "graph_pass")

    # -- tracing without running -----------------------------------------------------------------------------

    def _shadow(self, attempt: BackwardTrace) -> None:
        """Trace the call without running it."""
        self._fresh_cache("eager")
        tracer = guarding(self._wired(torch_adapter.TracerBase), attempt.notes)
        reasons: Sequence[str] = ()
        error: BaseException | None
        self._current.attempt = attempt
        try:
            with (
                torch_adapter.trace_isolation(),
                torch_adapter.tracing(tracer, self._compiler_fn, dynamic=True) as reasons,
            ):
                attempt.already_made = (attempt.engine_call.run(keep_graph=True),)
            # Only if the cache held an entry that is not ours and that we could not know of.
            error = RuntimeError("the call hit a graph captured outside of this block and ran through it")
        except TraceStopped:
            error = attempt.notes.error
        except BaseException as raised:  # noqa: BLE001  # kept as the reason, KeyboardInterrupt is raised below
            error = attempt.notes.error or raised
        finally:
            self._current.attempt = None
        self._settle(attempt, error, reasons)
        if error is not None and not isinstance(error, Exception):
            raise error.with_traceback(None)  # Ctrl-C during the trace: the user's call is not made

    def _eager(self, attempt: BackwardTrace) -> Any:
        """Make the user's call in the eager engine, as they made it, and keep its gradients."""
        if attempt.already_made is not None:
            return attempt.already_made[0]
        fresh = attempt.hit is None and attempt.live.arguments is not None
        if not fresh:
            return attempt.engine_call.run()
        try:
            if self._gradients == "none":
                return attempt.engine_call.run()
            nodes = self._nodes_with_hooks(attempt)
            with reference.watched_run(attempt.live, attempt.leaves, nodes, attempt.walk, self._budget):
                result = attempt.engine_call.run()
        except Exception as error:
            self._note_raised(attempt, error)
            raise
        if not attempt.engine_call.accumulates:
            reference.keep_returned(attempt.live, attempt.leaves, result)
        return result

    def _nodes_with_hooks(self, attempt: BackwardTrace) -> Sequence[AutogradNode]:
        """The autograd nodes of a call; the trace knows which hooks they carry."""
        return attempt.nodes if attempt.captured is None else self.captures[attempt.captured].record.autograd_nodes

    # -- running through compiled autograd -------------------------------------------------------------------

    def _through(self, attempt: BackwardTrace, base: type[Any], *, dynamic: bool) -> Any:
        """Let the call run through compiled autograd, and keep the gradients it made."""
        self._fresh_cache(attempt.compiler if attempt.run == "user" else "compiled")
        by_grad = attempt.run == "user" and self._gradients != "none"
        variables = variables_of(attempt.leaves, attempt.walk) if by_grad else []
        reference.keep_grads_before(attempt.live, variables)
        reasons: Sequence[str] = ()
        self._current.attempt = attempt
        try:
            tracer = watching(self._wired(base), attempt.notes)
            with torch_adapter.tracing(tracer, self._compiler_fn, dynamic=dynamic) as reasons:
                result = attempt.engine_call.run()
        except BaseException as error:
            self._settle_raised(attempt, error, reasons)
            raise
        finally:
            self._current.attempt = None
            self._end_lookups(attempt)
        self._settle(attempt, None, reasons)
        if attempt.hit is None and self._gradients != "none":
            reference.keep_grads_after(attempt.live, variables)
            if not attempt.engine_call.accumulates:
                reference.keep_returned(attempt.live, attempt.leaves, result)
            attempt.live.has_reference = True
        return result

    def _settle_raised(self, attempt: BackwardTrace, error: BaseException, reasons: Sequence[str]) -> None:
        """Note a call that raised on its way: while it was traced, compiled, or run."""
        if attempt.captured is None:
            attempt.notes.error_node = attempt.notes.node
        self._settle(attempt, error, reasons)
        if attempt.captured is not None and attempt.hit is None:
            self._note_raised(attempt, error)

    def _wired(self, base: type[Any]) -> type[Any]:
        return tripwired(base) if self._tripwire else base

    # -- what is noted ---------------------------------------------------------------------------------------

    def _fresh_cache(self, owner: object) -> None:
        """Entries made under another compiler, by calls that passed us by, or by failed traces must not answer."""
        if self._cache_is_foreign or self._cache_owner is not owner:
            self._clear_cache()
        self._cache_is_foreign, self._cache_owner = False, owner

    def _clear_cache(self) -> None:
        torch_adapter.clear_cache()
        while self._held:
            self._held.pop().release()

    def _settle(self, attempt: BackwardTrace, error: BaseException | None, reasons: Sequence[str]) -> None:
        """Note how a trace ended."""
        self._held += attempt.notes.held
        seconds = time.perf_counter() - attempt.started
        if attempt.hit is not None:
            self._note(attempt, "cache_hit", "", seconds)
        elif attempt.captured is not None:
            self._note(attempt, "captured", miss_reason(reasons), seconds)
        else:
            failure = attempt.failure(error or RuntimeError("the trace ended without a graph"))
            self._keep_record(attempt, failure=failure)
            attempt.live.graph = None
            self._note(attempt, "failed", str(failure), seconds)
            # A trace that failed leaves a cache entry without a function; the next one like it would assert on it.
            self._cache_is_foreign = True

    def _end_lookups(self, attempt: BackwardTrace) -> None:
        """Stop watching for lookups of deleted metadata; a record made before the graph ran learns of later ones."""
        attempt.lookups.end()
        if attempt.captured is not None:
            captured = self.captures[attempt.captured]
            record = captured.record
            earlier = (touch for touch in record.touches if touch.phase != "graph_pass")
            touches = (*earlier, *attempt.lookups.touches(record.graph_nodes))
            captured.record = replace(record, touches=touches)

    def _note(self, attempt: BackwardTrace, outcome: Outcome, reason: str, seconds: float) -> None:
        capture = attempt.hit if attempt.hit is not None else attempt.captured
        attempt.event = len(self.events)
        self.events.append(Event(attempt.call, outcome, reason, capture, seconds))

    def _note_raised(self, attempt: BackwardTrace, error: BaseException) -> None:
        """Note that the run of a captured call raised."""
        event = self.events[attempt.event]
        captured = self.captures[attempt.captured] if attempt.captured is not None else None
        if captured is None or event.outcome != "captured":
            return
        captured.record = replace(captured.record, failure=Failure(type(error).__name__, str(error)))
        reason = f"{event.reason}; the run raised {type(error).__name__}: {error}"
        self.events[attempt.event] = replace(event, reason=reason)


def warn(text: str) -> None:
    """Tell the user of a failure of ours."""
    warnings.warn(text, CabwWarning, stacklevel=2)
