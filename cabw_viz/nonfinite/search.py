"""Where the NaN and infinities of a captured backward begin.

search
├─ loss, gradients of roots
├─ ForwardSearch.origin     from the loss, where that is not finite
└─ for each step of the backward that makes NaN or infinity
   ├─ BackwardWays.of
   └─ ForwardSearch.origin  from what made a saved tensor that passes it on
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cabw_viz.nonfinite.backward_steps import BackwardStep, backward_steps
from cabw_viz.nonfinite.backward_ways import BackwardWays
from cabw_viz.nonfinite.coverage import gaps
from cabw_viz.nonfinite.forward import ForwardSearch
from cabw_viz.nonfinite.kept_values import KeptValues
from cabw_viz.record.nonfinite import NonFiniteOrigin, NonFiniteSearch, ValueRange
from cabw_viz.record.source_line import SourceLine
from cabw_viz.runtime.capture_state import Captured
from cabw_viz.runtime.gradient_snapshots import GradientSnapshot
from cabw_viz.runtime.value_ranges import range_of_snapshot, snapshot_is_finite, value_range


def search(captured: Captured) -> NonFiniteSearch:
    """The NaN and infinities of a backward, from what is kept of it; runs nothing, and changes nothing.

    Raises:
        CabwError: the session is closed.
    """
    captured.check_open("cap.nonfinite()")
    return _Search(captured).result()


@dataclass
class _Search:
    captured: Captured
    _known: dict[int, tuple[GradientSnapshot, bool | None]] = field(default_factory=dict)
    """Whether each gradient is finite, by the identity of its snapshot, which is kept with it."""

    def __post_init__(self) -> None:
        self._record, self._state = self.captured.record, self.captured.state
        self._kept = KeptValues(self.captured)
        self._forward = ForwardSearch(self._kept)
        self._ways = BackwardWays(self._kept, self._forward)

    def result(self) -> NonFiniteSearch:
        """All that is known."""
        loss, of_loss = self._loss()
        backward = list(self._backward())
        origins = [*of_loss, *backward]
        unique = list(dict.fromkeys(origins))
        unique.sort(key=lambda each: each.stage in ("root_gradient", "backward"))
        saved = self._forward.saved()
        leaves = tuple(self._leaves())
        losses = sum(root.value is not None for root in self._state.forward_values.roots)
        compared = losses, max(len(self._known), len(self._state.reference)), self._kept.readable
        return NonFiniteSearch(loss, tuple(unique), saved, leaves, compared, gaps(self.captured, self._kept))

    def _loss(self) -> tuple[tuple[ValueRange, ...], list[NonFiniteOrigin]]:
        """The roots that are not finite, and the earliest cause in their forward."""
        loss, starts = [], []
        edges = {edge.output: edge.target for edge in self._record.autograd_nodes[0].edges}
        for position, root in enumerate(self._state.forward_values.roots):
            value = None if root.value is None else root.value.value
            values = None if value is None else value_range(value)
            if values is not None and not values.is_finite:
                loss.append(values)
                starts += [edges[position]] if position in edges else []
        origin = self._forward.origin(starts) if starts else None
        return tuple(loss), [origin] if origin is not None else []

    # -- the backward ------------------------------------------------------------------------------------------

    def _backward(self) -> Iterator[NonFiniteOrigin]:
        yield from self._given()
        for step in backward_steps(self._record, self._state):
            into, out = self._finite(step.inputs), self._finite(step.outputs)
            if False in out and (False not in into or self._makes_nan(step)):
                yield from self._origins(step)

    def _given(self) -> Iterator[NonFiniteOrigin]:
        """The gradients that the call begins with, where they are not finite."""
        node = self._record.autograd_nodes[0]
        for position, root in enumerate(self._state.forward_values.roots):
            value = None if root.gradient is None else root.gradient.value
            values = None if value is None else value_range(value)
            if values is not None and not values.is_finite:
                what = (
                    f"gradient {position} that the call was given"
                    if position
                    else "the gradient that the call was given"
                )
                yield NonFiniteOrigin(
                    "root_gradient", "graph_root", 0, node.name, what, ways=("held",), out=values,
                    line=_line_of(self._record.call.where),
                )  # fmt: skip

    def _origins(self, step: BackwardStep) -> Iterator[NonFiniteOrigin]:
        into = _ranges(step.inputs)
        bad = next(
            (at, each) for at, each in enumerate(step.outputs) if each is not None and self._is_finite(each) is False
        )
        out = range_of_snapshot(bad[1])
        ways = self._ways.of(step, into, out)
        node = step.node
        if ways.saved:
            starts = [self._forward.bounds.maker(node.number, row) for row in ways.saved]
            cause = self._forward.origin([start for start in starts if start is not None] or [node.number])
            if cause is not None:
                yield cause
        line = _line_of(step.where) if step.where else node.line
        note = ways.note
        if ways.saved:
            names = ", ".join(row.field for row in ways.saved)
            note = f"its saved {names} hold{'s' if len(ways.saved) == 1 else ''} it since the forward"
        yield NonFiniteOrigin(
            "backward", step.kind, node.number, step.name, f"output {bad[0]}", node.module, node.visit, line, ways.ways,
            any(not values.is_finite for values in into), into, out, note=note,
        )  # fmt: skip

    def _makes_nan(self, step: BackwardStep) -> bool:
        """Whether a step makes the first NaN of infinities."""
        into, out = _ranges(step.inputs), _ranges(step.outputs)
        return not any(values.nans for values in into) and any(values.nans for values in out)

    def _finite(self, snapshots: Sequence[GradientSnapshot | None]) -> list[bool | None]:
        return [self._is_finite(each) for each in snapshots if each is not None]

    def _is_finite(self, snapshot: GradientSnapshot) -> bool | None:
        if id(snapshot) not in self._known:
            self._known[id(snapshot)] = snapshot, snapshot_is_finite(snapshot)
        return self._known[id(snapshot)][1]

    def _leaves(self) -> Iterator[tuple[str, ValueRange]]:
        for index, gradient in sorted(self._state.reference.items()):
            if snapshot_is_finite(gradient) is False and (values := value_range(gradient.value)) is not None:
                yield self._record.leaves[index].label, values


def _ranges(snapshots: Sequence[GradientSnapshot | None]) -> tuple[ValueRange, ...]:
    each = (range_of_snapshot(snapshot) for snapshot in snapshots if snapshot is not None)
    return tuple(values for values in each if values is not None)


def _line_of(where: str) -> SourceLine | None:
    file, _, line = where.rpartition(":")
    return SourceLine(file, int(line)) if file and line.isdecimal() else None
