"""Compiled autograd: switching its tracer on and off, its cache, and its own marks.

Read in `torch/_dynamo/compiled_autograd.py` and `torch/csrc/dynamo/python_compiled_autograd.cpp`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo import compiled_autograd, eval_frame
from torch._dynamo import utils as dynamo_utils

from cabw_viz.errors import CabwError

_C = torch._C._dynamo.compiled_autograd


def compiled_autograd_exclusion() -> str:
    """What excludes compiled autograd here, as it is written in a program; empty where nothing does."""
    if compiled_autograd.active_disable_ctx:
        return "torch._dynamo.compiled_autograd._disable()"
    return 'torch.compiler.set_stance("force_eager")' if eval_frame._stance.stance == "force_eager" else ""


def compiled_autograd_is_on() -> bool:
    """Whether the user has compiled autograd on, as its own flag says; read without switching anything."""
    return bool(compiled_autograd.compiled_autograd_enabled)


def clear_cache() -> None:
    """Drop all cached captures: a cache hit would call neither tracer nor compiler."""
    _C.clear_cache()


@dataclass(frozen=True)
class UserCompiler:
    """Compiled autograd as the user has switched it on."""

    tracer: type[Any]
    function: Callable[..., Any]
    dynamic: bool


def user_compiler() -> UserCompiler | None:
    """The user's compiler of backwards; None where compiled autograd is off.

    Raises:
        CabwError: the factory is not the partial of a tracer class that `_enable` makes.
    """
    factory, dynamic = _C.set_autograd_compiler(None, False)  # noqa: FBT003  # C++, positional only
    _C.set_autograd_compiler(factory, dynamic)
    if factory is None:
        return None
    if isinstance(factory, functools.partial) and isinstance(factory.func, type) and factory.args:
        return UserCompiler(factory.func, factory.args[0], dynamic)
    raise CabwError(f"compiled autograd was switched on with a {type(factory).__name__} of its own making")


class _MissLogger:
    """Receives from C++ why a call was captured again, and passes it on to PyTorch's own log where that is on."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def debug(self, text: str) -> None:
        self.reasons.append(text)
        if compiled_autograd.snapshot_verbose_logging_enabled():
            compiled_autograd.verbose_log.debug(text)


# C++ keeps only a borrowed pointer to the logger, so it must live as long as the process.
_MISSES = _MissLogger()


@contextmanager
def trace_isolation() -> Iterator[None]:
    """A context for a trace: PyTorch's counters are restored, and the user's TorchFunctionModes do not run."""
    counters = dynamo_utils.counters["compiled_autograd"]
    before = dict(counters)
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        counters.clear()
        counters.update(before)


@contextmanager
def tracing(tracer: Callable[..., Any], compiler_fn: Callable[..., Any], *, dynamic: bool) -> Iterator[list[str]]:
    """Compiled autograd on, with a tracer class of ours; yields the list of miss reasons.

    `_enable` does the bookkeeping that a bare `set_autograd_compiler` leaves undone (flag, depth, threads).
    With PyTorch's verbose logger set, captures also know which autograd node lifted what.
    """
    reasons = _MISSES.reasons
    reasons.clear()
    with compiled_autograd._enable(compiler_fn, dynamic=dynamic):
        _C.set_autograd_compiler(functools.partial(tracer, compiler_fn), dynamic)
        _C.set_verbose_logger(_MISSES)  # type: ignore[arg-type]  # the stub is wrong: C++ calls its `debug`
        try:
            yield reasons
        finally:
            is_verbose = compiled_autograd.snapshot_verbose_logging_enabled()
            _C.set_verbose_logger(compiled_autograd.verbose_log if is_verbose else None)  # type: ignore[arg-type]


def compiled_autograd_off() -> Any:
    """Context in which a backward runs in the eager engine, whatever was on outside."""
    return compiled_autograd._disable()


def compiled_autograd_op_by_op() -> Any:
    """Context in which backwards run through compiled autograd, their graphs op by op."""
    return compiled_autograd._enable(lambda graph: graph)


def count_of_captures() -> int:
    """How many backwards compiled autograd has captured in this process."""
    return int(dynamo_utils.counters["compiled_autograd"]["captures"])


def close_unfinished(tracer: Any) -> None:
    """Leave what `begin_capture` entered, where `end_capture` will not: modes, compile context, event log."""
    tracer.stack.close()
    if not hasattr(tracer, "compile_context"):
        return  # it has refused before it began
    dynamo_utils.get_chromium_event_logger().log_event_end(
        "compiled_autograd", time.time_ns(), {"graph_id": tracer.id}, tracer.start_time_ns, log_pt2_compile_event=True
    )
    tracer.compile_context.__exit__(None, None, None)
