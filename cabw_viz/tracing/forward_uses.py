"""Which operations of a forward take a parameter, and where histories end.

A history ends where an operation takes tensors that require a gradient and returns what requires none: `detach`,
`.data`, an integer, a comparison, `.item()`, or anything under `no_grad`. For each such end the autograd nodes below
it are read at once, as sequence numbers: what was cut off is freed soon, and nothing of it is kept alive. What an
operation makes of the result of an end is followed from call to call, until an autograd node is made of it. So it is
known whether a loss depends on the values of what was cut off.

Seen is what the mode of `source_lines` sees. Custom Functions, operations called from C++, and what becomes of a Python
number are not.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from cabw_viz import torch_adapter

CodeLine = tuple[CodeType, int]
"""Code, and a line in it."""

KEPT = 16
"""Forwards of which ends are kept: a backward rarely goes back through more."""


class Use(NamedTuple):
    """The last operation that was seen to take a parameter."""

    epoch: int
    """How many backward calls of the block had ended before."""
    number: int
    """The sequence number of the node that it made."""
    function: str
    line: CodeLine | None
    in_module: bool
    """Whether a module's forward was running; known for uses without gradient alone."""
    grad: tuple[int, int] | None
    """Identity and version of the parameter's `.grad` then; None where it had none."""


@dataclass(eq=False)
class HistoryEnd:
    """An operation at which histories end."""

    function: str
    line: CodeLine | None
    is_lost: bool
    """Whether what it returned cannot be followed: it became a Python number, or went into a custom Function."""
    sources: tuple[int, ...]
    """Sequence numbers of the nodes whose results it took."""
    parameters: tuple[int, ...]
    """Identities of parameters that it took."""
    number: int
    """The sequence number that was next when it had run."""
    fed: set[int] = field(default_factory=set)
    """Sequence numbers of the nodes that were made of what it returned."""


@dataclass(eq=False)
class Epoch:
    """What was seen between two backward calls."""

    number: int
    ends: list[HistoryEnd] = field(default_factory=list)
    below: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    """Of the nodes whose history ends somewhere: the numbers of those that they lead to, and the parameters."""


class ForwardUses:
    """Records one thread's operations; told of each call by the mode that sees it.

    Args:
        user_line: the line of the user's code in which a frame was called.
        is_inside: whether a module's forward is running.
        in_function: whether a frame is in the forward of a custom Function, which runs under `no_grad`.
        notes_grads: whether to note what `.grad` a parameter has when it is used.
    """

    def __init__(
        self,
        user_line: Callable[[FrameType | None], CodeLine | None],
        is_inside: Callable[[], bool],
        in_function: Callable[[FrameType | None], bool],
        notes_grads: bool,
    ) -> None:
        self._user_line, self._is_inside, self._in_function = user_line, is_inside, in_function
        self._notes_grads = notes_grads
        self._watched: frozenset[int] = frozenset()
        self.uses: dict[int, Use] = {}
        """By identity of the parameter: the last use with gradient."""
        self.quiet_uses: dict[int, Use] = {}
        """The last use under `no_grad`."""
        self.epochs: deque[Epoch] = deque([Epoch(0)], maxlen=KEPT)
        self.unseen: list[tuple[int, int]] = []
        """First and last sequence number of nodes that were made outside of any operation that was seen."""
        self._derived: dict[int, tuple[Any, frozenset[HistoryEnd]]] = {}
        """By identity of a tensor without history: a weak reference to it, and the ends that it depends on."""
        self._ways: dict[Any, int] = {}
        self.error = ""
        """What went wrong in here; empty where nothing did."""

    def watch(self, parameters: Iterable[Any]) -> None:
        """Look for uses of these tensors. Their owner keeps them alive."""
        self._watched = frozenset(map(id, parameters))

    def begin_epoch(self, number: int) -> None:
        """A backward call has ended."""
        self.epochs.append(Epoch(number))

    def note_unseen(self, start: int, end: int) -> None:
        """Nodes were made outside of any operation that was seen."""
        self.unseen.append((start, end))

    # -- one operation -------------------------------------------------------------------------------------------

    def note(  # all that is known of a call
        self,
        function: Any,
        args: Sequence[Any],
        kwargs: Any,
        result: Any,
        numbers: tuple[int, int],
        line: CodeLine | None,
        frame: FrameType | None,
    ) -> None:
        """Note an operation that has run.

        Args:
            function: that was called.
            args: of the call.
            kwargs: of the call.
            result: of the call.
            numbers: the sequence numbers that it took, from the first to before the second.
            line: of the user's, where nodes were made.
            frame: that called it.
        """
        if kwargs:
            args = (*args, *kwargs.values())
        start, end = numbers
        if start != end:
            self._note_uses(args, function, start, line)
            if self._derived:
                for history_end in self._ends_in(args):
                    history_end.fed.update(range(start, end))
            if type(result) is torch.Tensor and result.requires_grad:
                return
        way = self._ways.get(function)
        if way is None:
            way = self._ways[function] = _way_of(function)
        if way == _IGNORED or not (way == _NUMBER or isinstance(result, _RESULTS) or _is_write(function)):
            return
        with torch_adapter.without_any_torch_function():
            self._note_result(function, args, result, way, frame)

    def before_detach(self, args: Sequence[Any]) -> Callable[..., None]:
        """Read what `detach_` is about to cut off; the result notes it when that has happened."""
        nodes, leaves = self._sources(args[:1])

        def note(frame: FrameType | None) -> None:
            self._add_end("detach_", nodes, leaves, args[:1], frame, is_lost=False)

        return note

    def _note_uses(self, args: Iterable[Any], function: Any, number: int, line: CodeLine | None) -> None:
        watched = self._watched
        for arg in args:
            if id(arg) in watched:
                self._add_use(self.uses, arg, function, number, line)
            elif type(arg) is list or type(arg) is tuple:
                for each in arg:
                    if id(each) in watched:
                        self._add_use(self.uses, each, function, number, line)

    def _add_use(self, uses: dict[int, Use], parameter: Any, function: Any, number: int, line: CodeLine | None) -> None:
        grad = grad_state(parameter) if self._notes_grads else None
        is_quiet = uses is self.quiet_uses
        inside = is_quiet and self._is_inside()
        uses[id(parameter)] = Use(self.epochs[-1].number, number, _name_of(function), line, inside, grad)

    def _note_result(self, function: Any, args: Sequence[Any], result: Any, way: int, frame: FrameType | None) -> None:
        results = [result] if isinstance(result, torch.Tensor) else list(_tensors(result))
        if _is_write(function):
            results = [args[0]]
        plain = [each for each in results if not each.requires_grad]
        if not plain and way != _NUMBER:
            return
        nodes, leaves = self._sources(args)
        has_grad = torch.is_grad_enabled()
        if not has_grad and self._in_function(frame):
            for end in self._ends_in(args):
                end.is_lost = True
            return
        if not has_grad:
            for leaf in leaves:
                self._add_use(self.quiet_uses, leaf, function, -1, self._user_line(frame))
            leaves = []
        if nodes or leaves:
            name = _name_of(function) if has_grad else f"{_name_of(function)} under no_grad"
            self._add_end(name, nodes, leaves, plain, frame, is_lost=way == _NUMBER, args=args)
        elif self._derived:
            ends = self._ends_in(args)
            self._derive(plain, ends)
            for end in ends if way == _NUMBER else ():
                end.is_lost = True

    def _add_end(  # all that is known of an end
        self,
        name: str,
        nodes: Sequence[Any],
        leaves: Sequence[Any],
        results: Iterable[Any],
        frame: FrameType | None,
        *,
        is_lost: bool,
        args: Sequence[Any] = (),
    ) -> None:
        numbers = (torch_adapter.sequence_number_of(node) for node in nodes)
        sources = tuple(number for number in numbers if number is not None)
        self._read_histories(nodes)
        parameters, number = tuple(map(id, leaves)), torch_adapter.sequence_number()
        end = HistoryEnd(name, self._user_line(frame), is_lost, sources, parameters, number)
        self.epochs[-1].ends.append(end)
        self._derive(results, frozenset({end}) | (self._ends_in(args) if self._derived else frozenset()))

    def _sources(self, args: Iterable[Any]) -> tuple[list[Any], list[Any]]:
        """The nodes of the tensors among the arguments that require a gradient, and the watched leaves."""
        tensors = [each for each in _tensors(args) if each.requires_grad]
        nodes = list({each.grad_fn: None for each in tensors if each.grad_fn is not None})
        return nodes, [each for each in tensors if each.grad_fn is None and id(each) in self._watched]

    # -- what ends and results depend on ---------------------------------------------------------------------------

    def _read_histories(self, nodes: Sequence[Any]) -> None:
        """Note the edges below nodes; those of this epoch that are known already are not read again."""
        below, todo = self.epochs[-1].below, list(nodes)
        while todo:
            node = todo.pop()
            number = torch_adapter.sequence_number_of(node)
            if number is None or number in below:
                continue
            numbers, parameters = [], []
            for child, _ in node.next_functions:
                if child is None:
                    continue
                child_number = torch_adapter.sequence_number_of(child)
                if child_number is None:
                    parameters.append(id(getattr(child, "variable", None)))
                    continue
                numbers.append(child_number)
                if child_number not in below:
                    todo.append(child)
            below[number] = tuple(numbers), tuple(each for each in parameters if each in self._watched)

    def _derive(self, results: Iterable[Any], ends: frozenset[HistoryEnd]) -> None:
        """Note that tensors without history depend on ends."""
        if not ends:
            return
        derived = self._derived
        for each in results:
            key = id(each)
            known = self._derived.get(key)
            if known is not None and known[0]() is each:
                self._derived[key] = known[0], known[1] | ends
            else:
                self._derived[key] = weakref.ref(each, partial(_forget, derived, key)), ends

    def _ends_in(self, args: Iterable[Any]) -> frozenset[HistoryEnd]:
        """The ends that the tensors among arguments depend on."""
        ends: frozenset[HistoryEnd] = frozenset()
        for each in _tensors(args):
            known = self._derived.get(id(each))
            if known is not None and known[0]() is each:
                ends |= known[1]
        return ends


def grad_state(tensor: Any) -> tuple[int, int] | None:
    """Identity and version of a tensor's `.grad`; None where it has none."""
    with torch_adapter.without_any_torch_function():
        grad = tensor.grad
        return None if grad is None else (id(grad), -1 if grad.is_inference() else torch_adapter.version(grad))


def _forget(derived: dict[int, Any], key: int, _: object) -> None:
    derived.pop(key, None)


_VALUES, _NUMBER, _IGNORED = 0, 1, 2
_RESULTS = (torch.Tensor, tuple, list)
_NUMBERS = frozenset(
    (
        "item",
        "tolist",
        "numpy",
        "__array__",
        "__float__",
        "__int__",
        "__bool__",
        "__index__",
        "__complex__",
        "__contains__",
        "is_nonzero",
        "equal",
        "allclose",
    )
)
"""Functions that return the values of a tensor as what is none."""
_WITHOUT_VALUES = frozenset(
    (
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_zeros",
        "new_ones",
        "new_empty",
        "new_full",
        "new_empty_strided",
        "new_tensor",
        "grad",
        "shape",
        "size",
        "stride",
        "backward",
        "register_hook",
        "is_same_size",
        "result_type",
        "broadcast_tensors",
        "_grad",
        "_base",
        "names",
        "storage",
        "untyped_storage",
        "__dlpack__",
        "__dlpack_device__",
    )
)
"""Functions whose results do not depend on the values that they take, or are no part of a forward."""


def _way_of(function: Any) -> int:
    name = getattr(function, "__name__", "")
    owner = getattr(getattr(function, "__self__", None), "__name__", "")
    if name in ("__set__", "__delete__"):
        return _IGNORED
    if name == "__get__":
        return _VALUES if owner in ("data", "T", "mT", "H", "mH", "real", "imag") else _IGNORED
    if function is torch.autograd.grad or name.startswith(("_foreach", "_fused")):
        return _IGNORED
    return _NUMBER if name in _NUMBERS else _IGNORED if name in _WITHOUT_VALUES else _VALUES


def _is_write(function: Any) -> bool:
    return getattr(function, "__name__", "") == "__setitem__"


def _name_of(function: Any) -> str:
    """The function as users write it: `.data` for its getter."""
    name = getattr(function, "__name__", "") or "an operation"
    owner = getattr(getattr(function, "__self__", None), "__name__", "")
    return f".{owner}" if name == "__get__" else name


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments, and in lists and tuples there."""
    for each in values if isinstance(values, list | tuple) else ():
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from (inner for inner in each if isinstance(inner, torch.Tensor))
