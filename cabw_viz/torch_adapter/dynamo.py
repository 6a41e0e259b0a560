"""Dynamo: its frame-evaluation callback, what it has compiled, and contexts around its compilations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch._inductor.config
import torch.fx
from torch._dynamo import convert_frame, eval_frame
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.callback import callback_handler

from cabw_viz.torch_adapter.patching import replaced

disable_dynamo = torch._dynamo.disable


def reset_dynamo() -> None:
    """Drop all that Dynamo has compiled and compiled autograd has captured."""
    torch._dynamo.reset()


def count_of_graphs() -> int:
    """How many graphs Dynamo has compiled in this process."""
    return int(dynamo_utils.counters["stats"]["unique_graphs"])


def dynamo_has_compiled() -> bool:
    """Whether Dynamo has compiled anything in this process since it was last reset."""
    return convert_frame.FRAME_COUNTER > 0


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether calls of a module go through `torch.compile`."""
    forward = getattr(module, "forward", None)
    return (
        isinstance(module, eval_frame.OptimizedModule)
        or module._compiled_call_impl is not None
        or (hasattr(forward, "_torchdynamo_orig_callable") and not hasattr(forward, "_torchdynamo_disable"))
    )


def original_module(module: torch.nn.Module) -> torch.nn.Module:
    """The module behind what `torch.compile(module)` returns; any other as it is."""
    return module._orig_mod if isinstance(module, eval_frame.OptimizedModule) else module


set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
"""Sets Dynamo's frame-evaluation callback (None disables it) and returns the previous one."""

skip_frames_of = eval_frame.skip_code
"""Makes Dynamo run frames of this code as they are; it still traces the frames below them."""


@contextmanager
def wrapped_compilations(context: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """A context in which Dynamo traces and compiles, in any thread, inside `context()`."""
    callbacks = callback_handler.install_callbacks

    @contextmanager
    def install_callbacks(*args: Any, **options: Any) -> Iterator[None]:
        with context(), callbacks(*args, **options):
            yield

    with ExitStack() as stack:
        # On the instance, and not as one of its callbacks: `torch._dynamo.reset()` drops those.
        stack.enter_context(replaced(callback_handler, "install_callbacks", install_callbacks))
        if hasattr(convert_frame, "trace_frame"):  # since 2.9
            # Strict exports and ahead-of-time compilation trace without those callbacks.
            stack.enter_context(replaced(convert_frame, "trace_frame", _inside(context, convert_frame.trace_frame)))
        yield


def _inside(context: Callable[[], AbstractContextManager[None]], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs another inside `context()`."""

    def call(*args: Any, **options: Any) -> Any:
        with context():
            return function(*args, **options)

    return call


@contextmanager
def mapped_compile_requests(substitute: Callable[[Any], Any]) -> Iterator[None]:
    """A context in which `torch.compile(f)` compiles `substitute(f)`."""
    original = eval_frame._TorchDynamoContext.__call__

    def __call__(self: Any, fn: Any) -> Any:  # noqa: N807  # it stands for one
        return original(self, substitute(fn))

    with replaced(eval_frame._TorchDynamoContext, "__call__", __call__):
        yield


@contextmanager
def watched_compiled_regions(on_switch: Callable[[int, bool], None]) -> Iterator[None]:
    """A context in which `on_switch(frame, is_on)` runs where Dynamo is switched on or off in a thread.

    `frame` is the id of the frame that switches. The one that switched on lives until it switches back.
    """
    original = eval_frame._maybe_set_eval_frame

    def maybe_set_eval_frame(callback: Any) -> Any:
        on_switch(id(sys._getframe(1)), callback is not None and callback is not False)
        return original(callback)

    with replaced(eval_frame, "_maybe_set_eval_frame", maybe_set_eval_frame):
        yield


COMPILED_OPERATORS = ("torch._higher_order_ops.", "torch.nn.attention.flex_attention")
"""Modules of PyTorch that compile what they are given wherever they are called: cond, scan, flex_attention."""


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """A context in which what the user has compiled runs uncompiled: `set_stance("force_eager")`.

    Operators that cannot run uncompiled (COMPILED_OPERATORS; they compile with backend `eager`) run as always.
    """

    def callback_for(callback: Any, original: Callable[[Any], Any], *, of_operator: bool) -> Any:
        return callback if of_operator else original(callback)

    with torch.compiler.set_stance("force_eager"), _mapped_callbacks(callback_for):
        yield


@contextmanager
def watched_compiled_calls(on_call: Callable[[], None]) -> Iterator[None]:
    """A context in which `on_call()` runs where something that the user has compiled is called, and not uncompiled."""

    def callback_for(callback: Any, original: Callable[[Any], Any], *, of_operator: bool) -> Any:
        used = original(callback)
        if used is not None and not of_operator:
            on_call()
        return used

    with _mapped_callbacks(callback_for):
        yield


@contextmanager
def _mapped_callbacks(callback_for: Callable[..., Any]) -> Iterator[None]:
    """A context in which a function chooses the callback that Dynamo gets where something compiled is called.

    `callback_for(callback, original, of_operator=...)` gets the callback, PyTorch's own choice for a callback, and
    whether PyTorch itself compiles there, for one of COMPILED_OPERATORS.
    """
    original = eval_frame._callback_from_stance
    is_active = True

    def callback_from_stance(callback: Any) -> Any:
        if not is_active:
            return original(callback)
        caller = str(sys._getframe(2).f_globals.get("__name__", ""))  # of the compiled function
        return callback_for(callback, original, of_operator=caller.startswith(COMPILED_OPERATORS))

    with replaced(eval_frame, "_callback_from_stance", callback_from_stance):
        try:
            yield
        finally:
            is_active = False


def random_numbers_of_eager() -> AbstractContextManager[Any]:
    """A context in which inductor compiles calls of eager's random number kernels. By default it has its own."""
    context: AbstractContextManager[Any] = torch._inductor.config.patch(fallback_random=True)
    return context


def inductor_has_own_random_numbers() -> bool:
    """Whether inductor, as it is set, draws other random numbers than eager."""
    return not torch._inductor.config.fallback_random


def count_of_inductor() -> int:
    """A number that grows whenever inductor compiles, or takes something compiled from its cache."""
    return sum(dynamo_utils.counters["inductor"].values())


def drop_compiled_code_of(graph: torch.fx.GraphModule) -> None:
    """Drop what Dynamo has compiled of one graph: it would keep that, and the graph, for good."""
    eval_frame.remove_from_cache(graph.forward)


@contextmanager
def compiling() -> Iterator[None]:
    """A context for compiling the package's graphs: without the user's settings; PyTorch's counters are restored."""
    counters = {name: counter.copy() for name, counter in dynamo_utils.counters.items()}
    frames, compiles = convert_frame.FRAME_COUNTER, convert_frame.FRAME_COMPILE_COUNTER.copy()
    # Automatic dynamic shapes: to Dynamo all captured graphs are one function, called with other sizes each time.
    settings = ("suppress_errors", "compiled_autograd", "disable", "automatic_dynamic_shapes")
    config = torch._dynamo.config.patch(dict.fromkeys(settings, False))
    try:
        with config, torch.compiler.set_stance("default"):
            yield
    finally:
        dynamo_utils.counters.clear()
        dynamo_utils.counters.update(counters)
        convert_frame.FRAME_COUNTER = frames
        convert_frame.FRAME_COMPILE_COUNTER.clear()
        convert_frame.FRAME_COMPILE_COUNTER.update(compiles)
