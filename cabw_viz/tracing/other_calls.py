"""Whether a backward call that `only=` leaves out gave a parameter the gradient that a captured one does not."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cabw_viz.record.missing import MissingGradient
from cabw_viz.record.model import Leaf
from cabw_viz.tracing.forward_uses import ForwardUses, grad_state
from cabw_viz.tracing.forwards import Forward


class _Pending(NamedTuple):
    """A parameter that a captured call gave no gradient."""

    tensor: Callable[[], Any]
    label: str
    grad: tuple[int, int] | None
    number: int
    """Of its last use."""
    given: set[str]


class OtherCalls:
    """Compares the `.grad` of parameters before and after the calls that are left out, of one forward."""

    def __init__(self) -> None:
        self._pending: list[_Pending] = []
        self._last_epoch = -1
        """In which the last call was left out; -1 before any."""
        self._reached: list[tuple[int, frozenset[str]]] = []
        """Names of the leaves of each captured call, with its epoch."""

    def note(self, uses: ForwardUses) -> None:
        """A call was left out, and has ended."""
        self._last_epoch = uses.epochs[-1].number
        for each in self._pending:
            tensor = each.tensor()
            use = None if tensor is None else uses.uses.get(id(tensor))
            if use is not None and use.number == each.number and grad_state(tensor) not in (None, each.grad):
                each.given.add(each.label)

    def read(
        self,
        missing: Sequence[MissingGradient],
        leaves: Sequence[Leaf],
        parameters: Sequence[tuple[tuple[str, ...], Any]],
        forward: Forward,
        later: set[str],
    ) -> tuple[MissingGradient, ...]:
        """The rows of a captured call; what an earlier call of its forward gave a gradient has the reason `only`."""
        tensors = dict(parameters)
        rows = tuple(self._row(row, tensors[row.names], forward, later) for row in missing)
        self._reached.append((forward.last_epoch, frozenset(name for leaf in leaves for name in leaf.names)))
        return rows

    def _row(self, row: MissingGradient, tensor: Any, forward: Forward, later: set[str]) -> MissingGradient:
        use = forward.use_of(tensor)
        if row.reason != "not_in_loss" or use is None:
            return row
        grad = grad_state(tensor)
        captured = any(epoch >= use.epoch and not names.isdisjoint(row.names) for epoch, names in self._reached)
        if self._last_epoch >= use.epoch and not captured and grad not in (None, use.grad):
            return replace(row, reason="only")
        self._pending.append(_Pending(weakref.ref(tensor), row.label, grad, use.number, later))
        return row
