"""One block's door into the engine: what becomes of every backward call that is made in it.

A call is, in this order: `bypassed` where it must not be touched; otherwise traced without running and then made
as the user made it (`run="eager"`), or run through compiled autograd with the record made on the way
(`run="compiled"`, or the user's own compiler in charge).
"""

from __future__ import annotations

import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError, CabwWarning
from cabw_viz.live import Arguments, LiveCapture, Surroundings
from cabw_viz.record.kinds import Outcome
from cabw_viz.record.model import BackwardCall, CaptureRecord, Event, Failure
from cabw_viz.torch_adapter import EngineCall
from cabw_viz.tracing import reference
from cabw_viz.tracing.attempt import Attempt
from cabw_viz.tracing.gate import GATE
from cabw_viz.tracing.leaves import variables_of
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.tracer import TraceStopped, guarding, watching

Only = int | slice | Callable[[BackwardCall], bool] | None

NOTHING_BEFORE = re.compile(r"GraphRoot \(NodeCall 0\) with key size \d+, previous key sizes=\[\]")
_HERE = str(Path(__file__).parent.parent)
_TORCH = str(Path(torch.__file__).parent)


@dataclass
class Captured:
    """A capture: what is known of it, and what can be run again."""

    record: CaptureRecord
    live: LiveCapture


@dataclass
class Traced:
    """What the cache keeps for a captured graph: our stand-in for the compiled function."""

    attempt: Attempt | None
    """The call that is being captured; None once it is over, so that the cache keeps no tensor alive."""
    compiled: Callable[..., Any] | None
    """What runs the graph; None where the eager engine makes the call."""
    index: int | None = None


class Recorder:
    """Watches the door while installed.

    Args:
        subject: names the leaves; see `cabw_viz.capture`.
        run: `eager` or `compiled`.
        only: which calls to capture.
        gradients: `leaves` or `none`.
        snapshot: whether inputs are copied.
    """

    _installed: Recorder | None = None

    def __init__(self, subject: Any, *, run: str, only: Only, gradients: str, snapshot: bool) -> None:
        self.names = Names(subject)
        self.captures: list[Captured] = []
        self.events: list[Event] = []
        check_only(only)
        self._run, self._only, self._gradients, self._snapshot = run, only, gradients, snapshot
        self._eligible = 0
        self._current = threading.local()
        self._owner = 0
        self._original: Callable[..., Any] | None = None
        self._door: Callable[..., Any] | None = None
        self._last_compiler: object = None
        self._foreign_entries = False

    # -- coming and going ------------------------------------------------------------------------------------

    def install(self) -> None:
        """Take the door. Raises a CabwError where another block has it."""
        torch_adapter.check()
        if Recorder._installed is not None:
            raise CabwError(
                "a capture block was entered inside another one",
                expected="one block at a time in a process: the tracer is process-global",
                try_="leave the outer block first, or drop the inner one and pick its calls with only=",
            )
        self._owner = threading.get_ident()
        self._original = original = torch_adapter.door()

        # torch.compile(train_step) would otherwise trace into this function.
        @torch_adapter.disable_dynamo
        def door(*args: Any, **options: Any) -> Any:
            if Recorder._installed is not self:
                return original(*args, **options)
            return self._enter(EngineCall.parse(original, args, options))

        torch_adapter.clear_cache()
        torch_adapter.set_door(door)
        self._door = door
        Recorder._installed = self

    def uninstall(self) -> None:
        """Give the door back. Where somebody put theirs on top of ours, ours stays underneath and lets all pass."""
        Recorder._installed = None
        if self._original is not None and torch_adapter.door() is self._door:
            torch_adapter.set_door(self._original)
        torch_adapter.clear_cache()

    def release(self) -> None:
        """Let go of every tensor."""
        for captured in self.captures:
            captured.live.release()
        self.names.forget()

    # -- one call --------------------------------------------------------------------------------------------

    def _enter(self, call: EngineCall) -> Any:
        reason = self._why_not(call)
        if reason:
            return self._bypass(call, describe(call, None), reason)
        described = describe(call, self._eligible)
        self._eligible += 1
        if not selected(self._only, described):
            return self._bypass(call, described, "not selected by only=")
        factory, dynamic = torch_adapter.compiler_in_charge()
        if factory is not None and not getattr(factory, "args", ()):
            return self._bypass(call, described, f"compiled autograd's factory is a {type(factory).__name__}, not a partial")
        compiler = factory.args[0] if factory is not None else None
        run = self._run if factory is None else "user"
        try:
            attempt = Attempt.prepare(described, call, run, compiler, self.names)
        except Exception as error:
            return self._unprepared(call, described, error)
        freed = next((n for n, node in enumerate(attempt.walk.nodes) if torch_adapter.has_freed_buffers(node)), None)
        if freed is not None and run == "eager":
            node = attempt.nodes[freed]
            reason = f"{node.name} (#{freed}) has run before and was freed: a trace would fail in it and damage it"
            return self._bypass(call, described, reason)
        try:
            if run == "user":
                return self._through_compiled(attempt, factory.func, dynamic)  # type: ignore[union-attr]  # not None here
            if not GATE.try_trace():
                return self._bypass(call, described, "another thread is in a backward, and the tracer is process-global")
            try:
                if run == "compiled":
                    return self._through_compiled(attempt, torch_adapter.TracerBase, True)
                self._trace_only(attempt)
            finally:
                GATE.end_trace()
            return self._eager(attempt)
        finally:
            attempt.let_go()

    def _why_not(self, call: EngineCall) -> str:
        """Why a call must not be touched; empty where it may."""
        if torch_adapter.backward_is_running():
            return "made inside another backward"
        if threading.get_ident() != self._owner:
            return "made in another thread than the one that entered the block"
        if torch_adapter.compiler_is_tracing():
            return "Dynamo or AOTAutograd is tracing it"
        if torch_adapter.compiled_autograd_is_forbidden():
            return "compiled autograd is excluded here (_disable() or the stance force_eager)"
        return ""

    def _bypass(self, call: EngineCall, described: BackwardCall, reason: str) -> Any:
        """Make the call as if we were not there."""
        self.events.append(Event(described, "bypassed", reason))
        # A call that the user's compiler handles fills the cache with entries that are not ours.
        self._foreign_entries |= torch_adapter.compiled_autograd_is_on()
        if threading.get_ident() == self._owner:
            return call.run()
        with GATE.passing():
            return call.run()

    def _unprepared(self, call: EngineCall, described: BackwardCall, error: Exception) -> Any:
        """A call whose autograd graph could not be read: most often one that the engine refuses too."""
        self.events.append(Event(described, "failed", f"{type(error).__name__}: {error}"))
        result = call.run()
        warn(f"this backward could not be read ({type(error).__name__}: {error}); it ran in eager, unharmed")
        return result

    # -- tracing ---------------------------------------------------------------------------------------------

    def _compiler_fn(self, graph: torch.fx.GraphModule) -> Callable[..., Any]:
        """What compiled autograd hands a fresh graph to."""
        attempt: Attempt = self._current.attempt
        attempt.keep_graph_module(graph)
        compiled: Callable[..., Any] | None = None
        if attempt.compiler is not None:
            compiled = attempt.compiler(graph)
        elif attempt.run == "compiled":
            compiled = graph
            if self._gradients != "none":
                reference.watch_accumulations(graph, attempt.live, variables_of(attempt.leaves, attempt.walk))
        return partial(self._run_graph, Traced(attempt, compiled))

    def _run_graph(self, traced: Traced, inputs: list[Any], *rest: Any) -> Any:
        """What the engine calls with the graph's arguments, after a capture and after a cache hit."""
        attempt: Attempt | None = getattr(self._current, "attempt", None)
        if attempt is not None and traced.attempt is attempt:
            traced.attempt = None
            arguments = Arguments.keep(inputs, rest, snapshot=self._snapshot)
            attempt.live.arguments = arguments
            attempt.live.surroundings = Surroundings.now(attempt.call.create_graph)
            self._keep(attempt, arguments)
            traced.index = attempt.captured
        elif attempt is not None:
            attempt.hit = traced.index
        if (attempt is not None and attempt.run == "eager") or traced.compiled is None:
            raise TraceStopped
        if attempt is not None and attempt.run == "compiled":
            with GATE.opened():
                return traced.compiled(inputs, *rest)
        return traced.compiled(inputs, *rest)

    def _keep(self, attempt: Attempt, arguments: Arguments | None = None, failure: Failure | None = None) -> None:
        """Make the record of a capture. A failure of ours in it is a warning and a bare record."""
        try:
            record = attempt.record(arguments, failure)
        except Exception as error:
            warn(f"the record of this backward is incomplete ({type(error).__name__}: {error})")
            record = attempt.bare_record(failure or attempt.failure(error))
        attempt.captured = len(self.captures)
        self.captures.append(Captured(record, attempt.live))

    def _fresh_cache(self, owner: object) -> None:
        """Entries made under another compiler, by calls that passed us by, or by failed traces must not answer."""
        if self._foreign_entries or self._last_compiler is not owner:
            torch_adapter.clear_cache()
        self._foreign_entries, self._last_compiler = False, owner

    def _trace_only(self, attempt: Attempt) -> None:
        """Trace the call without running it."""
        self._fresh_cache("eager")
        self._current.attempt = attempt
        tracer = guarding(torch_adapter.TracerBase, attempt.notes)
        reasons: Sequence[str] = ()
        error: BaseException | None
        try:
            with torch_adapter.unseen(), torch_adapter.tracing(tracer, self._compiler_fn, dynamic=True) as reasons:
                attempt.already_made = (attempt.engine_call.run(keep_graph=True),)
            # Only if the cache held an entry that is not ours and that we could not know of.
            error = RuntimeError("the call hit a graph captured outside of this block and ran through it")
        except TraceStopped:
            error = attempt.notes.error
        except BaseException as raised:
            error = attempt.notes.error or raised
        finally:
            self._current.attempt = None
        self._settle(attempt, error, reasons)
        if error is not None and not isinstance(error, Exception):
            raise error.with_traceback(None)  # Ctrl-C during the trace: the user's call is not made

    def _settle(self, attempt: Attempt, error: BaseException | None, reasons: Sequence[str]) -> None:
        """Note how a trace ended."""
        seconds = time.perf_counter() - attempt.started
        if attempt.hit is not None:
            self._note(attempt, "cache_hit", "", seconds)
        elif attempt.captured is not None:
            self._note(attempt, "captured", miss_reason(reasons), seconds)
        else:
            failure = attempt.failure(error if error is not None else RuntimeError("the trace ended without a graph"))
            attempt.live.graph = None
            self._keep(attempt, failure=failure)
            # A trace that failed leaves a cache entry without a function; the next one like it would assert on it.
            self._foreign_entries = True
            self._note(attempt, "failed", str(failure), seconds)

    def _note(self, attempt: Attempt, outcome: Outcome, reason: str, seconds: float) -> None:
        capture = attempt.hit if attempt.hit is not None else attempt.captured
        attempt.event = len(self.events)
        self.events.append(Event(attempt.call, outcome, reason, capture, seconds))

    # -- running ---------------------------------------------------------------------------------------------

    def _eager(self, attempt: Attempt) -> Any:
        """Make the user's call in the eager engine, as they made it, and keep its gradients."""
        if attempt.already_made is not None:
            return attempt.already_made[0]
        fresh = attempt.hit is None and attempt.live.arguments is not None
        if not fresh or self._gradients == "none":
            return attempt.engine_call.run()
        try:
            with reference.watched_run(attempt.live, attempt.leaves, attempt.walk):
                result = attempt.engine_call.run()
        except Exception as error:
            self._raised(attempt, error)
            raise
        if not attempt.engine_call.accumulates:
            reference.keep_returned(attempt.live, attempt.leaves, result)
        return result

    def _through_compiled(self, attempt: Attempt, base: type[Any], dynamic: bool) -> Any:
        """Let the call run through compiled autograd, and keep what it left in `.grad`."""
        self._fresh_cache(attempt.compiler if attempt.run == "user" else "compiled")
        by_grad = attempt.run == "user" and self._gradients != "none"
        variables = variables_of(attempt.leaves, attempt.walk) if by_grad else []
        reference.keep_grads_before(attempt.live, variables)
        self._current.attempt = attempt
        reasons: Sequence[str] = ()
        try:
            with torch_adapter.tracing(watching(base, attempt.notes), self._compiler_fn, dynamic=dynamic) as reasons:
                result = attempt.engine_call.run()
        except BaseException as error:
            attempt.notes.error_node = attempt.notes.node if attempt.captured is None else None
            self._settle(attempt, error, reasons)
            if attempt.captured is not None and attempt.hit is None and isinstance(error, Exception):
                self._raised(attempt, error)
            raise
        finally:
            self._current.attempt = None
        self._settle(attempt, None, reasons)
        if attempt.hit is None and self._gradients != "none":
            reference.keep_grads_after(attempt.live, variables)
            if not attempt.engine_call.accumulates:
                reference.keep_returned(attempt.live, attempt.leaves, result)
            attempt.live.has_reference = True
        return result

    def _raised(self, attempt: Attempt, error: Exception) -> None:
        """Note that the user's own run of a captured call raised."""
        if attempt.captured is None:
            return
        captured = self.captures[attempt.captured]
        if captured.record.failure is None:
            captured.record = replace(captured.record, failure=Failure(type(error).__name__, str(error)))
            event = self.events[attempt.event]
            reason = f"{event.reason}; the run raised {type(error).__name__}: {error}"
            self.events[attempt.event] = replace(event, reason=reason)


def describe(call: EngineCall, index: int | None) -> BackwardCall:
    """A call as plain data."""
    function = "backward" if call.accumulates else "grad"
    return BackwardCall(index, function, users_frame(), len(call.roots), call.keep_graph, call.create_graph)


def users_frame() -> str:
    """`file:line` of the nearest frame outside torch and this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_HERE, _TORCH)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def check_only(only: Only) -> None:
    """Raise a CabwError for an `only=` that can pick nothing or means nothing."""
    if isinstance(only, int) and not isinstance(only, bool) and only >= 0:
        return
    if isinstance(only, slice) and all(part is None or (isinstance(part, int) and part >= 0) for part in (only.start, only.stop)):
        if only.step is None or (isinstance(only.step, int) and only.step > 0):
            return
    if only is None or callable(only):
        return
    raise CabwError(
        f"capture() got only={only!r}",
        expected="a number from 0, a slice of such, or a function of a BackwardCall",
        try_="only=0 for the first backward call of the block, only=slice(10, 12), or only=lambda call: call.function == 'grad'",
    )


def selected(only: Only, call: BackwardCall) -> bool:
    """Whether `only=` picks a call."""
    if only is None:
        return True
    if isinstance(only, int):
        return call.index == only
    if isinstance(only, slice):
        index = call.index or 0
        return index in range(only.start or 0, sys.maxsize if only.stop is None else only.stop, only.step or 1)
    return bool(only(call))


def miss_reason(reasons: Sequence[str]) -> str:
    """Why a call was captured, in PyTorch's words where there was an earlier capture to compare with."""
    text = "; ".join(reasons)
    return "nothing captured before" if not text or NOTHING_BEFORE.search(text) else text


def warn(text: str) -> None:
    """Tell the user of a failure of ours."""
    warnings.warn(text, CabwWarning, stacklevel=2)
