"""Which module's forward was running when an autograd node was made.

Every node carries the number that was next in its thread when it was made. Each thread keeps the course of its
module calls along these numbers, so that a node's module is looked up by its number, and the backward itself knows
nothing of it:

    numbers  12    15        17..30    31        the number that was next
    calls    mlp   mlp.fc1   mlp       none      the innermost call from there on

The calls are seen at `nn.Module.__call__`. Global module hooks would see them too; but Dynamo traces such hooks into
what it compiles, a compiled module warns of them, and the calls of `module.compile()` pass them by, while Dynamo
takes no notice of who calls a module. It finds torch's own `__call__` while it compiles.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.torch_adapter import sequence_number, set_eval_frame
from cabw_viz.tracing.module_names import Caller, ModuleName, ModuleNames
from cabw_viz.tracing.source_lines import SourceLines

OUTSIDE = -1
"""Stands for no call."""

_MARK = "cabw_viz"


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module's forward."""

    name: ModuleName
    visit: int
    """Which one, counted from 0 among the calls that a backward goes back through."""


@dataclass(eq=False)
class Course:
    """One thread's module calls along its sequence numbers: plain numbers, so that a long block stays small."""

    block: object
    """Whose it is."""
    numbers: array[int] = field(default_factory=lambda: array("Q"))
    calls: array[int] = field(default_factory=lambda: array("l"))
    """The innermost call from each of the numbers on."""
    names: array[int] = field(default_factory=lambda: array("l"))
    """Number of the module's name, for each call."""
    callers: array[int] = field(default_factory=lambda: array("l"))
    """The call in which each call was made."""

    def begin(self, name: int, caller: int) -> int:
        """A call begins."""
        call = len(self.names)
        self.names.append(name)
        self.callers.append(caller)
        self.turn(call)
        return call

    def turn(self, call: int) -> None:
        """From here on this call is the innermost one."""
        number = sequence_number()
        if self.numbers and self.numbers[-1] == number:
            self.calls[-1] = call
        else:
            self.numbers.append(number)
            self.calls.append(call)

    def call_at(self, number: int) -> int:
        """The innermost call at a number."""
        place = bisect_right(self.numbers, number) - 1
        return OUTSIDE if place < 0 else self.calls[place]


class _Here(threading.local):
    """Where a thread is."""

    def __init__(self, block: object) -> None:
        self.course = Course(block)
        self.call = OUTSIDE
        self.caller: Caller | None = None


class ModuleCalls:
    """Notes the module calls of a block, in every thread."""

    def __init__(self, names: ModuleNames, lines: SourceLines | None) -> None:
        self._names, self._lines = names, lines
        self._block = object()
        self._here = _Here(self._block)
        self._own: Course | None = None
        self._others = False
        self._open = False
        self._compiling = 0
        self._lock = threading.Lock()
        self._patches = ExitStack()
        self._original = self._seeing = torch.nn.Module.__call__

    # -- coming and going ------------------------------------------------------------------------------------

    def install(self) -> None:
        """Begin. Nodes without a mark are taken for this thread's."""
        self._names.read()
        self._own = self._here.course
        self._original = torch.nn.Module.__call__
        self._seeing = self._noted(self._original)
        torch_adapter.skip_frames_of(self._seeing.__code__)
        self._open = True
        self._patches.enter_context(torch_adapter.wrapped_compilations(self._aside))
        self._patches.enter_context(torch_adapter.mapped_compile_requests(self._without_us))
        self._put(self._seeing)

    def uninstall(self) -> None:
        """End. Where somebody put theirs on top of ours, ours stays underneath and lets all pass."""
        self._open = False
        self._patches.close()
        self._put(self._original)

    def _put(self, function: Callable[..., Any]) -> None:
        if torch.nn.Module.__call__ in (self._seeing, self._original):
            torch.nn.Module.__call__ = function  # type: ignore[method-assign]

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Give `nn.Module.__call__` back for the time of a compilation, or of several at once."""
        with self._lock:
            self._compiling += 1
            self._put(self._original)
        try:
            yield
        finally:
            with self._lock:
                self._compiling -= 1
                if self._open and not self._compiling:
                    self._put(self._seeing)

    def _without_us(self, function: Any) -> Any:
        """What `torch.compile` is to compile: `model.__call__` as it would be found outside of the block."""
        if getattr(function, "__func__", None) is self._seeing:
            return self._original.__get__(function.__self__)
        return function

    # -- one call --------------------------------------------------------------------------------------------

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`nn.Module.__call__`, noted."""

        def __call__(module: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  # it stands for one
            if not self._open:
                return original(module, *args, **kwargs)
            # In what a compiled region runs as it is, Dynamo would look at our frames too.
            dynamo = set_eval_frame(None)
            here = self._here
            call, caller = here.call, here.caller
            number = self._names.number_of(module, caller)
            here.call, here.caller = here.course.begin(number, call), Caller(module, number)
            paused = self._lines is not None and _has_no_lines(module, args, kwargs) and self._lines.pause()
            set_eval_frame(dynamo)
            try:
                result = original(module, *args, **kwargs)
            finally:
                dynamo = set_eval_frame(None)
                if paused and self._lines is not None:
                    self._lines.resume()
                here.call, here.caller = call, caller
                here.course.turn(call)
                set_eval_frame(dynamo)
            if call == OUTSIDE and here.course is not self._own:
                self._mark(here.course, result, (args, kwargs))
            return result

        return __call__

    def _mark(self, course: Course, made: Any, given: Any) -> None:
        """Mark the nodes that another thread has made: a node does not tell its thread, and numbers are each thread's.

        What is made outside of any module there cannot be marked, and is taken for this block's thread's.
        """
        self._others = True
        stop = _histories(given)
        todo, seen = list(_histories(made) - stop), stop
        while todo:
            node = todo.pop()
            seen.add(node)
            if torch_adapter.sequence_number_of(node) is not None:
                node.metadata.setdefault(_MARK, course)
                todo += [below for below, _ in node.next_functions if below is not None and below not in seen]

    # -- looking up ------------------------------------------------------------------------------------------

    def is_own(self, node: Any) -> bool:
        """Whether a node was made in the block's own thread, as far as that can be told."""
        return self._course_of(node) is self._own

    def of(self, nodes: Sequence[Any]) -> list[ModuleCall | None]:
        """The innermost module call in which each autograd node was made; None for what was made outside of any."""
        found = [self._call_of(node) for node in nodes]
        visits = self._visits(dict.fromkeys(call for call in found if call is not None))
        return [None if call is None else ModuleCall(self._name(*call), visits[call]) for call in found]

    def _course_of(self, node: Any) -> Course | None:
        if self._others:
            course = node.metadata.get(_MARK)
            if course is not None and course.block is self._block:
                return course  # type: ignore[no-any-return]
        return self._own

    def _call_of(self, node: Any) -> tuple[Course, int] | None:
        number = None if node is None else torch_adapter.sequence_number_of(node)
        course = None if number is None else self._course_of(node)
        if number is None or course is None:
            return None
        call = course.call_at(number)
        return None if call == OUTSIDE else (course, call)

    def _name(self, course: Course, call: int) -> ModuleName:
        return self._names.names[course.names[call]]

    def _visits(self, calls: Iterable[tuple[Course, int]]) -> dict[tuple[Course, int], int]:
        """Number the calls of each module; a call counts if a node was made in it or below it."""
        courses: dict[Course, set[int]] = {}
        for course, call in calls:
            reached = courses.setdefault(course, set())
            while call != OUTSIDE and call not in reached:
                reached.add(call)
                call = course.callers[call]  # noqa: PLW2901  # outwards
        counts: dict[int, int] = {}
        visits = {}
        for course, reached in courses.items():
            for call in sorted(reached):
                visits[course, call] = counts.get(course.names[call], 0)
                counts[course.names[call]] = visits[course, call] + 1
        return visits


def _has_no_lines(module: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call is better left without our mode, because it makes no nodes that anybody will go back through."""
    if not torch.is_grad_enabled() or torch_adapter.jit_tracing_state() is not None:
        return True
    if module.training or not isinstance(module, _WITH_A_FAST_PATH):
        return False
    with torch_adapter.without_any_torch_function():
        tensors = (leaf for leaf in torch_adapter.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        return not any(tensor.requires_grad for tensor in (*tensors, *module.parameters()))


_WITH_A_FAST_PATH = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)
"""Modules that, where no gradients are needed, run faster and round otherwise unless a mode is there."""


def _histories(values: Any) -> set[Any]:
    tensors = (leaf for leaf in torch_adapter.tree_leaves(values) if isinstance(leaf, torch.Tensor))
    return {tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None}
