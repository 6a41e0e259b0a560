"""The input and output gradients of every autograd node, copied while the user's own run computes them.

A pre-hook gets a node's input gradients and a post-hook its output gradients, both after the hooks that the node has
already. They copy at once: the engine sums gradients in place, nodes may write to their inputs, and `.grad` may be
the very tensor that is accumulated. Three kinds of gradients are not copied again, as long as their version says that
nothing has written to them:

    an output that is an input                   AddBackward0, both of its gradients
    an input that one node alone has sent        no other gradient is summed into it
    an output that is a view of an input         TBackward0, ViewBackward0, ExpandBackward0

A version counts the writes of PyTorch's own ops. Where the user's code runs in the backward (hooks, custom Functions,
compiled regions), it may write without counting (`gradient.data.mul_(2)`); there the bits are compared too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import warn
from cabw_viz.record.model import AutogradNode
from cabw_viz.runtime.gradient_snapshots import (
    SMALL,
    Gradient,
    GradientSnapshot,
    NodeGradients,
    bytes_of,
    can_be_fingerprinted,
    compact_copy,
    fingerprint,
    same_bits,
    strides_of,
)
from cabw_viz.runtime.tensor_state import version_of
from cabw_viz.torch_adapter import HookDicts
from cabw_viz.tracing.forward_notes import SavedOfOrigins
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes

NodeInput = tuple[int, int]
"""An autograd node's number, and which of its input gradients."""

TRUSTED = frozenset({"graph_root", "builtin", "copy_slices", "accumulate_grad"})
"""Kinds of autograd nodes that write to no tensor without counting it in its version."""


@dataclass
class Budget:
    """How many bytes the copies of a session may still take."""

    left: int


class _Snapshot(NamedTuple):
    """A snapshot, with the tensor and the version that it was taken of."""

    tensor: Callable[[], Any]
    """A weak reference; the engine keeps a tensor that it has not passed on yet, and its Python object with it."""
    version: int | None
    """None where the tensor keeps no count."""
    value: GradientSnapshot


@dataclass
class NodeWatch:
    """Copies the gradients of one run by hooks on its autograd nodes.

    Args:
        nodes: the record's autograd nodes, with their hooks.
        numbering: the nodes themselves.
        budget: bytes for the copies; of a gradient that exceeds it a fingerprint is taken.
        leaves: numbers of the nodes that get the gradients of leaves, which are copied whatever the budget.
        leaves_only: copy no other gradients.
        origins: keeps what nodes have saved that make NaN; None where a graph does.
        dicts: the hooks of the nodes, where they were read before; registering is what costs most in a hook of ours.
    """

    nodes: Sequence[AutogradNode]
    numbering: NumberedNodes
    budget: Budget
    leaves: frozenset[int]
    leaves_only: bool = False
    origins: SavedOfOrigins | None = None
    dicts: Sequence[HookDicts | None] = ()
    gradients: NodeGradients = field(default_factory=NodeGradients)

    def __post_init__(self) -> None:
        self._sent: dict[NodeInput, _Snapshot | None] = {}
        """What was sent to each input and not read yet; None where a second gradient was added to it."""
        self._inputs: dict[int, list[_Snapshot | None]] = {}
        """Input gradients of the nodes that are running, by number."""
        self._compare_bits = any(node.kind not in TRUSTED or node.hooks for node in self.nodes)
        self._new: list[Any] = []
        """The gradients of the hook that runs now that are no earlier ones, nor views of them."""
        self._added: list[tuple[dict[Any, Any], object]] = []
        """Our hooks: each with the dict in which it is."""
        self.error = ""
        """What went wrong in our hooks; empty where nothing did."""
        self._task: int | None = None
        """The number of the watched backward; None until a hook was called."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which the nodes have our hooks."""
        # No hook gets what GraphRoot sends.
        self._sent = dict.fromkeys((edge.target, edge.input) for edge in self.nodes[0].edges)
        try:
            try:
                for row, node in zip(self.nodes, self.numbering.nodes, strict=True):
                    if node is not ROOT and (row.number in self.leaves or not self.leaves_only):
                        self._add(row, self._dicts_of(row, node))
            except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must be made
                self.error = f"{type(error).__name__}: {error}"
            yield
        finally:
            for hooks, key in self._added:
                hooks.pop(key, None)
            self._sent, self._inputs, self._added, self._new = {}, {}, [], []
            if self.error:
                warn(f"the gradients of this backward's autograd nodes were kept in part ({self.error})")

    def _dicts_of(self, row: AutogradNode, node: Any) -> HookDicts:
        dicts = self.dicts[row.number] if self.dicts else None
        if dicts is not None:
            return dicts
        has_post_hooks = row.kind != "accumulate_grad" and not self.leaves_only
        return HookDicts(torch_adapter.pre_hooks(node), torch_adapter.post_hooks(node) if has_post_hooks else {})

    def _add(self, row: AutogradNode, dicts: HookDicts) -> None:
        if self.leaves_only:
            self._put(dicts.pre, self._hook(self._note_inputs, row))
            return
        kinds = {hook.kind for hook in row.hooks}
        if "pre_hook" in kinds:
            self._put(dicts.pre, self._hook(self._note_inputs_before_hooks, row), first=True)
        self._put(dicts.pre, self._hook(self._note_inputs, row))
        if row.kind == "accumulate_grad":
            return
        if "post_hook" in kinds:
            self._put(dicts.post, self._hook(self._note_outputs_before_hooks, row), first=True)
        self._put(dicts.post, self._hook(self._note_outputs, row))

    def _put(self, hooks: dict[Any, Any], hook: Callable[..., None], *, first: bool = False) -> None:
        """Add a hook of ours behind the others, or before them."""
        key = object()  # no handle has it
        others = dict(hooks) if first else {}
        for other in others:
            del hooks[other]
        hooks[key] = hook
        hooks.update(others)
        self._added.append((hooks, key))

    def _hook(self, note: Callable[..., None], row: AutogradNode) -> Callable[..., None]:
        """A hook that changes nothing. After an error of ours nothing more is noted, and the backward goes on."""

        def hook(*gradients: Any) -> None:
            if self.error or self._is_inside_another():
                return
            try:
                torch_adapter.called_unseen(note, gradients[0], row, *gradients)
            except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must go on
                self.error = f"{type(error).__name__} at {row.name} (#{row.number}): {error}"

        return hook

    def _is_inside_another(self) -> bool:
        """Whether a backward that was made inside the watched one runs: it shares the nodes of leaves, and the hooks.

        Where only leaves are watched, one inside may call a hook first; what was noted of it is dropped.
        """
        task = torch_adapter.graph_task()
        if self._task is not None and task > self._task:
            return True
        if self._task is not None and task < self._task:
            self.gradients.inputs.clear()
        self._task = task
        return False

    # -- what the hooks note -----------------------------------------------------------------------------------

    def _note_inputs_before_hooks(self, row: AutogradNode, inputs: Sequence[Any]) -> None:
        self.gradients.inputs_before_hooks[row.number] = tuple(self._value(row, each) for each in inputs)

    def _note_inputs(self, row: AutogradNode, inputs: Sequence[Any]) -> None:
        snapshots = []
        for position, gradient in enumerate(inputs):
            sent = self._sent.pop((row.number, position), None)
            snapshots.append(self._snapshot(row, gradient, sent))
        self._new.clear()  # a reference more, and an accumulation would copy the gradient in place of keeping it
        self._inputs[row.number] = snapshots
        self.gradients.inputs[row.number] = _values(snapshots)

    def _note_outputs_before_hooks(self, row: AutogradNode, outputs: Sequence[Any], _: object) -> None:
        self.gradients.outputs_before_hooks[row.number] = tuple(self._value(row, each) for each in outputs)

    def _note_outputs(self, row: AutogradNode, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        of_inputs = self._inputs.pop(row.number, [])
        self._new.clear()
        by_id: dict[int, _Snapshot] = {}
        snapshots: list[_Snapshot | None] = []
        for gradient in outputs:
            snapshot = by_id.get(id(gradient))
            if gradient is not None and snapshot is None:
                snapshot = by_id[id(gradient)] = self._snapshot_of_output(row, gradient, inputs, of_inputs)
            snapshots.append(snapshot)
        self.gradients.outputs[row.number] = _values(snapshots)
        if self.origins is not None:
            self.origins.look(row.number, inputs, self._new)
        self._new.clear()
        for edge in row.edges:
            snapshot = snapshots[edge.output] if edge.output < len(snapshots) else None
            if snapshot is not None:
                target = edge.target, edge.input
                self._sent[target] = None if target in self._sent else snapshot

    # -- snapshots ---------------------------------------------------------------------------------------------

    def _snapshot_of_output(
        self, row: AutogradNode, gradient: Any, inputs: Sequence[Any], of_inputs: list[_Snapshot | None]
    ) -> _Snapshot:
        """The snapshot of an input, or a view of one, where the output is that input or a view; else a new one."""
        for source, snapshot in zip(inputs, of_inputs, strict=False):
            if source is gradient:
                return self._snapshot(row, gradient, snapshot) or self._new_snapshot(row, gradient)
        if row.kind == "builtin":
            for source, snapshot in zip(inputs, of_inputs, strict=False):
                view = _view(gradient, source, snapshot)
                if view is not None:
                    return _Snapshot(weakref.ref(gradient), version_of(gradient), view)
        return self._new_snapshot(row, gradient)

    def _snapshot(self, row: AutogradNode, gradient: Any, earlier: _Snapshot | None) -> _Snapshot | None:
        """The earlier snapshot of a gradient where nothing has changed since; else a new one."""
        if gradient is None:
            return None
        is_enough = earlier is not None and (isinstance(earlier.value, Gradient) or row.number not in self.leaves)
        if earlier is not None and is_enough and self._is_unchanged(gradient, earlier):
            return earlier
        return self._new_snapshot(row, gradient)

    def _is_unchanged(self, gradient: Any, earlier: _Snapshot) -> bool:
        """Whether a gradient is the tensor of an earlier snapshot, and nothing has written to it since."""
        if earlier.tensor() is not gradient or earlier.version is None or earlier.version != version_of(gradient):
            return False
        if not self._compare_bits:
            return True
        return isinstance(earlier.value, Gradient) and same_bits(gradient, earlier.value.value)

    def _new_snapshot(self, row: AutogradNode, gradient: Any) -> _Snapshot:
        self._new.append(gradient)
        return _Snapshot(weakref.ref(gradient), version_of(gradient), self._value(row, gradient))

    def _value(self, row: AutogradNode, gradient: Any) -> Any:
        """A copy of a gradient; a fingerprint where the budget is spent."""
        if gradient is None:
            return None
        gradient = torch_adapter.plain_values(gradient)
        size = bytes_of(gradient)
        in_full = size <= SMALL or row.number in self.leaves or not can_be_fingerprinted(gradient)
        if not in_full and size > self.budget.left:
            self.gradients.fingerprints += 1
            return fingerprint(gradient)
        if row.number not in self.leaves:
            self.gradients.bytes += size
            self.budget.left -= size
        return Gradient(compact_copy(gradient), strides_of(gradient))


def _values(snapshots: Sequence[_Snapshot | None]) -> tuple[GradientSnapshot | None, ...]:
    return tuple(snapshot.value if snapshot is not None else None for snapshot in snapshots)


def _view(gradient: torch.Tensor, source: Any, snapshot: _Snapshot | None) -> GradientSnapshot | None:
    """A view of an input's copy, where the output is a view of that input and nothing has written to it since."""
    if source is None or snapshot is None or not isinstance(snapshot.value, Gradient) or snapshot.version is None:
        return None
    copy = snapshot.value.value
    is_dense = type(gradient) is type(source) is torch.Tensor and None not in (strides_of(gradient), strides_of(source))
    if not is_dense or gradient.dtype is not source.dtype or not torch_adapter.share_storage(gradient, source):
        return None
    offset = gradient.storage_offset() - source.storage_offset()
    reach = offset + sum((size - 1) * step for size, step in zip(gradient.size(), gradient.stride(), strict=True))
    has_lazy_bits = gradient.is_conj() or gradient.is_neg() or source.is_conj() or source.is_neg()
    # A copy has the strides of what it was made of only if that was dense; then it spans just its own elements.
    spans = copy.stride() == source.stride() and offset >= 0 and reach < source.numel() and 0 not in copy.stride()
    if has_lazy_bits or not spans or 0 in gradient.size() or version_of(source) != snapshot.version:
        return None
    view = copy.as_strided(gradient.size(), gradient.stride(), copy.storage_offset() + offset)
    return Gradient(view, strides_of(gradient))
