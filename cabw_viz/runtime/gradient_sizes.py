"""The sizes of the gradients that a capture has kept, as plain data; nothing runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cabw_viz.errors import CabwError
from cabw_viz.record.gradients import GradientSizes, GradientStatistics, LeafSizes, NodeSizes
from cabw_viz.runtime.capture_state import Captured, CaptureState
from cabw_viz.runtime.gradient_snapshots import Fingerprint, Gradient, GradientSnapshot
from cabw_viz.runtime.gradient_statistics import statistics_of


def gradient_sizes(captured: Captured) -> GradientSizes:
    """The sizes of all gradients of a capture.

    Raises:
        CabwError: the session is closed, or the user's own run left no gradients.
    """
    state = captured.state
    if state.released:
        raise CabwError(
            "the session was closed, which released the gradients of this backward",
            expected="a session that is still open",
            try_="cap.gradients() before session.close(), which keeps the figures",
        )
    captured.check_reference()
    sizes = _Sizes(captured, state)
    leaves = tuple(map(sizes.of_leaf, range(len(captured.record.leaves))))
    kept = state.node_gradients
    numbers = sorted({*kept.inputs, *kept.outputs}) if kept is not None else []
    return GradientSizes(leaves, tuple(map(sizes.of_node, numbers)))


class _Sizes:
    """Computes each snapshot's statistics once: a gradient that flows on unchanged is one snapshot in many places."""

    def __init__(self, captured: Captured, state: CaptureState) -> None:
        self._record, self._state = captured.record, state
        self._cache: dict[int, GradientStatistics] = {}

    def of_leaf(self, index: int) -> LeafSizes:
        norm = self._state.parameter_norms.get(index)
        return LeafSizes(index, self._of_leaf(index), None if norm is None else float(norm))

    def _of_leaf(self, index: int) -> GradientStatistics | None:
        """Where the user's compiler has added it to an earlier `.grad`: what it has added."""
        gradient, before = self._state.reference.get(index), self._state.grads_before.get(index)
        if gradient is None or before is None:
            return self._of(gradient)
        return statistics_of(gradient.value - before)

    def of_node(self, number: int) -> NodeSizes:
        gradients = self._state.node_gradients
        assert gradients is not None  # else there are no numbers
        return NodeSizes(
            number, self._all(gradients.inputs.get(number, ())), self._all(gradients.outputs.get(number, ()))
        )

    def _all(self, snapshots: Sequence[GradientSnapshot | None]) -> tuple[GradientStatistics | None, ...]:
        return tuple(map(self._of, snapshots))

    def _of(self, snapshot: GradientSnapshot | None) -> GradientStatistics | None:
        if snapshot is None:
            return None
        key = id(snapshot.value) if isinstance(snapshot, Gradient) else id(snapshot)
        if key not in self._cache:
            self._cache[key] = (
                statistics_of(snapshot.value) if isinstance(snapshot, Gradient) else _of_fingerprint(snapshot)
            )
        return self._cache[key]


def _of_fingerprint(snapshot: Fingerprint) -> GradientStatistics:
    return GradientStatistics(
        snapshot.shape,
        str(snapshot.dtype),
        math.prod(snapshot.shape),
        snapshot.norm,
        snapshot.largest,
        snapshot.zeros,
        snapshot.subnormals,
        snapshot.nans,
        snapshot.infinities,
    )
