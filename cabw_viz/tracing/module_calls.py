"""Which module's forward was running when an autograd node was made.

Every node has the sequence number that was next in its thread when it was made. Each thread keeps a timeline of its
module calls along these numbers. A node's module is looked up by the node's number, and the backward itself is left
alone:

    numbers  12    15        17..30    31        the number that was next
    calls    mlp   mlp.fc1   mlp       none      the innermost call from there on

The calls are recorded at `nn.Module.__call__`. Why not `torch.utils.module_tracker.ModuleTracker`: it uses global
module hooks. Dynamo traces such hooks into what it compiles, a compiled module warns of them, and the calls of
`module.compile()` pass them by. Dynamo ignores what calls a module, and it finds torch's own `__call__` while it
compiles.

A backward with `create_graph=True` makes nodes too, by the formulas of the nodes that it runs. While one of these runs,
the innermost call is the one in which it was made. So a second derivative has the modules of the first one.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.torch_adapter import sequence_number, set_eval_frame
from cabw_viz.tracing.module_names import Caller, ModuleName, ModuleNames
from cabw_viz.tracing.source_lines import SourceLines

NO_MODULE = -1
"""In the place of a call: none is running."""

NO_NODE = -1
"""In the place of an autograd node: none is running its backward."""

WITH_GRAD, INFERENCE, WITH_HISTORY = 1, 2, 4
"""Of a call, added up: made in grad mode; made in inference mode; returned a tensor that has a history."""

_MARK = "cabw_viz"


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module's forward."""

    name: ModuleName
    visit: int
    """Which one, counted from 0 among the calls that a backward goes back through."""


@dataclass(eq=False)
class ModuleTimeline:
    """One thread's module calls along its sequence numbers, as plain numbers: a long block takes little memory."""

    block: object
    """Identity of the block that records it."""
    numbers: array[int] = field(default_factory=lambda: array("Q"))
    calls: array[int] = field(default_factory=lambda: array("l"))
    """The innermost call from each of the numbers on."""
    makers: array[int] = field(default_factory=lambda: array("l"))
    """Number of the name of the autograd node whose backward makes nodes from each of the numbers on."""
    names: array[int] = field(default_factory=lambda: array("l"))
    """Number of the module's name, for each call."""
    callers: array[int] = field(default_factory=lambda: array("l"))
    """The call in which each call was made."""
    modes: array[int] = field(default_factory=lambda: array("b"))
    """How each call was made, and what it returned: `WITH_GRAD`, `INFERENCE`, `WITH_HISTORY`."""

    def begin(self, name: int, caller: int) -> int:
        """Begin a call, and return its number."""
        call = len(self.names)
        self.names.append(name)
        self.callers.append(caller)
        self.modes.append(WITH_GRAD * torch.is_grad_enabled() + INFERENCE * torch.is_inference_mode_enabled())
        self.switch_to(call)
        return call

    def switch_to(self, call: int, maker: int = NO_NODE) -> None:
        """Make this call the innermost one, from the next sequence number on."""
        number = sequence_number()
        if self.numbers and self.numbers[-1] == number:
            self.calls[-1], self.makers[-1] = call, maker
        else:
            self.numbers.append(number)
            self.calls.append(call)
            self.makers.append(maker)

    def note_result(self, call: int, result: Any) -> None:
        """Note whether a call has returned a tensor with a history."""
        if self.modes[call] & WITH_GRAD and _has_history(result):
            self.modes[call] |= WITH_HISTORY

    def call_at(self, number: int) -> int:
        """The innermost call at a number."""
        place = bisect_right(self.numbers, number) - 1
        return NO_MODULE if place < 0 else self.calls[place]

    def maker_at(self, number: int) -> int:
        """The number of the name of the autograd node whose backward ran at a number."""
        place = bisect_right(self.numbers, number) - 1
        return NO_NODE if place < 0 else self.makers[place]


class _ThreadState(threading.local):
    """The module call in which a thread is."""

    def __init__(self, block: object) -> None:
        self.timeline = ModuleTimeline(block)
        self.call = NO_MODULE
        self.caller: Caller | None = None


def _is_inside(state: _ThreadState) -> bool:
    return state.call != NO_MODULE


class ModuleCalls:
    """Records the module calls of a block, in every thread."""

    def __init__(self, names: ModuleNames, lines: SourceLines | None) -> None:
        self._names, self._lines = names, lines
        self._block = object()
        self._state = _ThreadState(self._block)
        self._own: ModuleTimeline | None = None
        self._has_other_threads = False
        self._is_open = False
        self._compiling = 0
        self._makers: dict[str, int] = {}
        """Number of each name of an autograd node whose backward has made nodes."""
        self._lock = threading.Lock()
        self._original = self._recorder = torch.nn.Module.__call__

    # -- patching --------------------------------------------------------------------------------------------

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A context in which calls are recorded. Nodes without a mark are taken for the entering thread's."""
        self._names.read()
        self._own = self._state.timeline
        self._original = torch.nn.Module.__call__
        self._recorder = self._recorder_of(self._original)
        torch_adapter.skip_frames_of(self._recorder.__code__)
        self._is_open = True
        try:
            self._put(self._recorder)
            yield
        finally:
            self._is_open = False
            self._put(self._original)

    def _put(self, function: Callable[..., Any]) -> None:
        """Replace `nn.Module.__call__`, unless it is another tool's by now."""
        if torch.nn.Module.__call__ in (self._recorder, self._original):
            torch.nn.Module.__call__ = function  # type: ignore[method-assign]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context with torch's own `nn.Module.__call__`: for a compilation, or for several at once."""
        with self._lock:
            self._compiling += 1
            self._put(self._original)
        try:
            yield
        finally:
            with self._lock:
                self._compiling -= 1
                if self._is_open and not self._compiling:
                    self._put(self._recorder)

    def uninstrumented(self, function: Any) -> Any:
        """What `torch.compile(function)` is to compile: `model.__call__` as it is outside of the block."""
        if getattr(function, "__func__", None) is self._recorder:
            return self._original.__get__(function.__self__)
        return function

    # -- one call --------------------------------------------------------------------------------------------

    def _recorder_of(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`nn.Module.__call__` that records each call."""

        def __call__(module: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  # it stands for one
            if not self._is_open:
                return original(module, *args, **kwargs)
            # Dynamo would trace our frames too, in what a compiled region runs uncompiled.
            dynamo = set_eval_frame(None)
            state = self._state
            call, caller = state.call, state.caller
            number = self._names.number_of(module, caller)
            own_call = state.timeline.begin(number, call)
            state.call, state.caller = own_call, Caller(module, number)
            has_paused = self._lines is not None and _makes_no_lines(module, args, kwargs) and self._lines.pause()
            result = None
            set_eval_frame(dynamo)
            try:
                result = original(module, *args, **kwargs)
            finally:
                dynamo = set_eval_frame(None)
                state.timeline.note_result(own_call, result)
                if has_paused and self._lines is not None:
                    self._lines.resume()
                state.call, state.caller = call, caller
                state.timeline.switch_to(call)
                set_eval_frame(dynamo)
            if call == NO_MODULE and state.timeline is not self._own:
                self._mark(state.timeline, result, (args, kwargs))
            return result

        return __call__

    def _mark(self, timeline: ModuleTimeline, outputs: Any, inputs: Any) -> None:
        """Mark the nodes that a call made in another thread, which a node's number does not tell.

        A node that was made there outside of any module cannot be marked; it is taken for the block's own thread's.
        """
        self._has_other_threads = True
        stop = _histories(inputs)
        todo, visited = list(_histories(outputs) - stop), stop
        while todo:
            node = todo.pop()
            visited.add(node)
            if torch_adapter.sequence_number_of(node) is not None:
                node.metadata.setdefault(_MARK, timeline)
                todo += [below for below, _ in node.next_functions if below is not None and below not in visited]

    # -- forwards ----------------------------------------------------------------------------------------------

    def is_inside(self) -> Callable[[], bool]:
        """A function that says whether its thread is in a module's forward; it keeps no module alive."""
        return partial(_is_inside, self._state)

    @property
    def own(self) -> ModuleTimeline | None:
        """The calls of the thread that entered the block; None before."""
        return self._own

    @property
    def has_other_threads(self) -> bool:
        """Whether modules were called in other threads too, whose calls are not in `own`."""
        return self._has_other_threads

    # -- backwards that make nodes ----------------------------------------------------------------------------

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the block's own thread, while calls are recorded."""
        return self._is_open and self._state.timeline is self._own

    @contextmanager
    def of_backward(self, nodes: Iterable[Any]) -> Iterator[None]:
        """A context in which a backward runs these autograd nodes, and makes others.

        A pre-hook of each, which runs before the user's own ones on it, begins its turn.
        """
        handles: list[Any] = []
        try:
            handles.extend(
                torch_adapter.moved_to_front(node.register_prehook(self._begins_turn(node)))
                for node in nodes
                if torch_adapter.sequence_number_of(node) is not None
            )
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._state.timeline.switch_to(self._state.call)

    def _begins_turn(self, node: Any) -> Callable[..., None]:
        call, own = self._call_of(node), self._own
        maker = self._makers.setdefault(torch_adapter.name_of_node(node), len(self._makers))

        def hook(_: object) -> None:
            state = self._state
            if state.timeline is own:  # a thread of a device's has numbers of its own
                state.timeline.switch_to(call[1] if call is not None and call[0] is own else state.call, maker)

        return hook

    # -- looking up ------------------------------------------------------------------------------------------

    def is_own(self, node: Any) -> bool:
        """Whether a node was made in the block's own thread, unless a mark says otherwise."""
        return self._timeline_of(node) is self._own

    def of(self, nodes: Sequence[Any]) -> list[ModuleCall | None]:
        """The innermost module call in which each autograd node was made; None for one made outside of any."""
        calls = [self._call_of(node) for node in nodes]
        visits = self._visits(dict.fromkeys(call for call in calls if call is not None))
        return [None if call is None else ModuleCall(self._name(*call), visits[call]) for call in calls]

    def makers(self, nodes: Sequence[Any]) -> list[str]:
        """The name of the autograd node whose backward has made each node; empty for what a forward has made."""
        names = list(self._makers)
        return [names[number] if number != NO_NODE else "" for number in map(self._maker_of, nodes)]

    def _maker_of(self, node: Any) -> int:
        number = None if node is None else torch_adapter.sequence_number_of(node)
        timeline = None if number is None else self._timeline_of(node)
        return NO_NODE if number is None or timeline is None else timeline.maker_at(number)

    def _timeline_of(self, node: Any) -> ModuleTimeline | None:
        if self._has_other_threads:
            timeline = node.metadata.get(_MARK)
            if timeline is not None and timeline.block is self._block:
                return timeline  # type: ignore[no-any-return]
        return self._own

    def _call_of(self, node: Any) -> tuple[ModuleTimeline, int] | None:
        number = None if node is None else torch_adapter.sequence_number_of(node)
        timeline = None if number is None else self._timeline_of(node)
        if number is None or timeline is None:
            return None
        call = timeline.call_at(number)
        return None if call == NO_MODULE else (timeline, call)

    def _name(self, timeline: ModuleTimeline, call: int) -> ModuleName:
        return self._names.names[timeline.names[call]]

    def _visits(self, calls: Iterable[tuple[ModuleTimeline, int]]) -> dict[tuple[ModuleTimeline, int], int]:
        """Number the calls of each module; a call counts if a node was made in it or below it."""
        timelines: dict[ModuleTimeline, set[int]] = {}
        for timeline, call in calls:
            reached = timelines.setdefault(timeline, set())
            while call != NO_MODULE and call not in reached:
                reached.add(call)
                call = timeline.callers[call]  # noqa: PLW2901  # outwards
        counts: dict[int, int] = {}
        visits = {}
        for timeline, reached in timelines.items():
            for call in sorted(reached):
                visits[timeline, call] = counts.get(timeline.names[call], 0)
                counts[timeline.names[call]] = visits[timeline, call] + 1
        return visits


def _makes_no_lines(module: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call needs no lines, since it makes no nodes for a backward, and runs otherwise under a mode."""
    if not torch.is_grad_enabled() or torch_adapter.jit_tracing_state() is not None:
        return True
    if module.training or not isinstance(module, _MODULES_WITH_FAST_PATH):
        return False
    with torch_adapter.without_any_torch_function():
        tensors = (leaf for leaf in torch_adapter.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        return not any(tensor.requires_grad for tensor in (*tensors, *module.parameters()))


_MODULES_WITH_FAST_PATH = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)
"""Modules that, without gradients and without a mode, take a faster path with other rounding."""


def _has_history(result: Any) -> bool:
    """Whether any tensor in what a module has returned requires a gradient."""
    if result is None:
        return False
    with torch_adapter.without_any_torch_function():
        leaves = [result] if isinstance(result, torch.Tensor) else torch_adapter.tree_leaves(result)
        return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _histories(values: Any) -> set[Any]:
    tensors = (leaf for leaf in torch_adapter.tree_leaves(values) if isinstance(leaf, torch.Tensor))
    return {tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None}
