"""The forwards of a block, one between each two backward calls, and the one that a backward goes back through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from cabw_viz import torch_adapter
from cabw_viz.tracing.forward_uses import Epoch, ForwardUses, HistoryEnd, Use
from cabw_viz.tracing.module_calls import INFERENCE, NO_MODULE, WITH_GRAD, WITH_HISTORY, ModuleCalls, ModuleTimeline
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes
from cabw_viz.tracing.source_lines import SourceLines


@dataclass(frozen=True)
class CallSummary:
    """The calls of a module in one forward."""

    calls: int
    without_grad: int
    in_inference: int
    with_history: int
    unseen: bool
    """Whether any of them has made nodes in no operation that was seen."""


class Forwards:
    """Where each forward of a block begins: what had been seen when the backward before it ended."""

    def __init__(self, calls: ModuleCalls, lines: SourceLines | None) -> None:
        self._calls, self._lines = calls, lines
        self._marks: list[tuple[int, int]] = []
        """Of each epoch: the next sequence number, and how many module calls there had been."""

    def begin_epoch(self) -> None:
        """A forward begins: the block was entered, or a backward has ended."""
        own = self._calls.own
        self._marks.append((torch_adapter.sequence_number(), 0 if own is None else len(own.names)))
        if self._lines is not None and self._lines.uses is not None and len(self._marks) > 1:
            self._lines.uses.begin_epoch(len(self._marks) - 1)

    def of(self, numbering: NumberedNodes) -> Forward:
        """The forward that made the nodes of a backward."""
        own_nodes = [node for node in numbering.nodes if node is not ROOT and self._calls.is_own(node)]
        numbers = {torch_adapter.sequence_number_of(node) for node in own_nodes} - {None}
        first = min((number for number in numbers if number is not None), default=torch_adapter.sequence_number())
        begun = [epoch for epoch, (number, _) in enumerate(self._marks) if number <= first]
        if self._lines is not None:
            self._lines.note_unseen()
        epoch = begun[-1] if begun else 0
        first_number, first_call = self._marks[epoch] if self._marks else (0, 0)
        uses = None if self._lines is None else self._lines.uses
        return Forward(
            self._calls,
            uses,
            epoch,
            (first_number, first_call),
            frozenset(n for n in numbers if n is not None),
            is_in_block=bool(begun),
        )


class Forward:
    """What was seen of one forward."""

    def __init__(  # all that a forward is made of
        self,
        calls: ModuleCalls,
        uses: ForwardUses | None,
        epoch: int,
        begins_at: tuple[int, int],
        numbers: frozenset[int],
        *,
        is_in_block: bool,
    ) -> None:
        self._calls, self._uses, self._epoch, self._numbers = calls, uses, epoch, numbers
        self._first_number, self._first_call = begins_at
        self.last_epoch = 0 if uses is None else uses.epochs[-1].number
        """How many backward calls had ended before this one."""
        self.is_in_block = is_in_block
        """Whether all of it ran in the block."""
        self._with_unseen = self._calls_with_unseen()
        self.last_unseen = max(self._unseen_numbers() & numbers, default=-1)
        """The number of the last node of the loss that was made in no operation that was seen; -1 for none."""

    def use_of(self, parameter: Any) -> Use | None:
        """The last operation that took a parameter, with gradient."""
        return self._in_window(None if self._uses is None else self._uses.uses.get(id(parameter)))

    def quiet_use_of(self, parameter: Any) -> Use | None:
        """The last operation that took a parameter under `no_grad`."""
        return self._in_window(None if self._uses is None else self._uses.quiet_uses.get(id(parameter)))

    def _in_window(self, use: Use | None) -> Use | None:
        return use if use is not None and use.epoch >= self._epoch else None

    def module_at(self, number: int) -> bool:
        """Whether a module's forward was running when the node of a number was made."""
        own = self._calls.own
        return own is not None and own.call_at(number) != NO_MODULE

    # -- module calls ----------------------------------------------------------------------------------------------

    def calls_of(self, numbers: set[int]) -> CallSummary:
        """The calls of modules with these numbers of names."""
        own = self._calls.own
        picked = [] if own is None else [c for c in range(self._first_call, len(own.names)) if own.names[c] in numbers]
        modes = [] if own is None else [own.modes[call] for call in picked]
        return CallSummary(
            len(picked),
            sum(not mode & WITH_GRAD for mode in modes),
            sum(bool(mode & INFERENCE) for mode in modes),
            sum(bool(mode & WITH_HISTORY) for mode in modes),
            any(call in self._with_unseen for call in picked),
        )

    def _calls_with_unseen(self) -> frozenset[int]:
        own = self._calls.own
        if own is None or self._uses is None:
            return frozenset()
        found: set[int] = set()
        for number in self._unseen_numbers():
            found |= _with_callers(own, own.call_at(number), found)
        return frozenset(found)

    def _unseen_numbers(self) -> set[int]:
        stretches = [] if self._uses is None else self._uses.unseen
        return {
            n for start, end in stretches if end > self._first_number for n in range(start, min(end, start + _MANY))
        }

    # -- ends of histories -----------------------------------------------------------------------------------------

    def ends_above(self, parameters: Sequence[Any]) -> dict[int, list[tuple[HistoryEnd, bool]]]:
        """By identity of the parameter: the ends to which its ways lead, and whether the loss depends on each."""
        epochs = [] if self._uses is None else [each for each in self._uses.epochs if each.number >= self._epoch]
        ends = [end for epoch in epochs for end in epoch.ends]
        if not ends:
            return {}
        bits = {id(parameter): 1 << index for index, parameter in enumerate(parameters)}
        below = _below(epochs)
        reached = _sums(below, {n: _joined(map(bits.get, leaves, repeat(0))) for n, (_, leaves) in below.items()})
        in_loss = self._in_loss(ends, below)
        found: dict[int, list[tuple[HistoryEnd, bool]]] = {}
        for end in ends:
            mask = _joined(bits.get(each, 0) for each in end.parameters)
            mask |= _joined(reached.get(number, 0) for number in end.sources)
            for key, bit in bits.items():
                if mask & bit:
                    found.setdefault(key, []).append((end, end in in_loss))
        return found

    def _in_loss(self, ends: Sequence[HistoryEnd], below: Below) -> set[HistoryEnd]:
        """The ends of which a node of the loss was made, or a node whose history ends at such an end."""
        fed: dict[int, int] = {}
        for index, end in enumerate(ends):
            for number in end.fed:
                fed[number] = fed.get(number, 0) | 1 << index
        reached = _sums(below, fed)
        in_loss: set[HistoryEnd] = set()
        todo = [end for end in ends if not self._numbers.isdisjoint(end.fed)]
        while todo:
            end = todo.pop()
            if end not in in_loss:
                in_loss.add(end)
                mask = _joined(reached.get(number, 0) for number in end.sources)
                todo += [other for index, other in enumerate(ends) if mask >> index & 1]
        return in_loss


_MANY = 100_000
"""Numbers of one stretch of unseen nodes that are looked up."""

Below = dict[int, tuple[tuple[int, ...], tuple[int, ...]]]


def _below(epochs: Iterable[Epoch]) -> Below:
    merged: Below = {}
    for epoch in epochs:
        merged.update(epoch.below)
    return merged


def _sums(below: Below, own: dict[int, int]) -> dict[int, int]:
    """Of each node, the bits of its own and of all below it; a node's number is above those of all that it leads to."""
    sums: dict[int, int] = {}
    for number in sorted(below):
        children, _ = below[number]
        sums[number] = own.get(number, 0) | _joined(sums.get(child, 0) for child in children)
    return sums


def _joined(masks: Iterable[int]) -> int:
    joined = 0
    for mask in masks:
        joined |= mask
    return joined


def _with_callers(timeline: ModuleTimeline, call: int, known: set[int]) -> set[int]:
    """A call and those in which it was made, up to one that is known."""
    found: set[int] = set()
    while call != NO_MODULE and call not in known:
        found.add(call)
        call = timeline.callers[call]
    return found
