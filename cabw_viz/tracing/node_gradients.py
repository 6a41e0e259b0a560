"""The gradients into and out of every autograd node, kept while the user's own run makes them.

A pre-hook sees what a node runs on and a post-hook what it has made, both behind the hooks that are there already.
Copies are taken at that moment: the engine sums gradients in place, nodes may write to what they get, and `.grad` may
be the very tensor that an accumulation gets. Three kinds of gradients are not copied again, as long as their version
says that nothing has written to them:

    what a node passes on as it is               AddBackward0, both of its gradients
    what the one node that made it has sent      the gradient into a node, where no others are summed into it
    a part or another view of what came in       TBackward0, ViewBackward0, ExpandBackward0

A version counts the writes of PyTorch's own ops. Where code of the user's runs in the backward (hooks, custom
Functions, compiled regions), it may write past it (`gradient.data.mul_(2)`), so there the bits are compared too.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwWarning
from cabw_viz.record.model import AutogradNode
from cabw_viz.runtime.capture_state import version_of
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
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes

Place = tuple[int, int]
"""An autograd node's number, and which of its gradients."""

TRUSTED = frozenset({"graph_root", "builtin", "copy_slices", "accumulate_grad"})
"""Kinds of autograd nodes that write to no tensor without counting it in its version."""


@dataclass
class Budget:
    """How many bytes of copies a session may still take."""

    left: int


class _Seen(NamedTuple):
    """A gradient at a moment: which tensor, how often written to, and what was kept of it."""

    tensor: Callable[[], Any]
    """A weak reference; the engine keeps a tensor that it has not passed on yet, and its Python object with it."""
    version: int | None
    """None where it keeps no count."""
    kept: GradientSnapshot


@dataclass
class NodeWatch:
    """Keeps the gradients of one run by hooks on its autograd nodes.

    Args:
        nodes: the record's autograd nodes, hooks included.
        walk: the nodes themselves.
        budget: what the copies may take; a gradient that is too much for it leaves a fingerprint.
        leaves: nodes that get the gradients of leaves, which are kept in full whatever the budget says.
        leaves_only: keep no others.
    """

    nodes: Sequence[AutogradNode]
    walk: NumberedNodes
    budget: Budget
    leaves: frozenset[int]
    leaves_only: bool = False
    found: NodeGradients = field(default_factory=NodeGradients)

    def __post_init__(self) -> None:
        self._sent: dict[Place, _Seen | None] = {}
        """What was sent to each place and not taken yet; None where a second gradient was added to it."""
        self._entered: dict[int, list[_Seen | None]] = {}
        self._suspicious = any(node.kind not in TRUSTED or node.hooks for node in self.nodes)
        self.failed = ""
        """What went wrong with the keeping; empty where nothing did."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which the nodes carry our hooks."""
        handles: list[Any] = []
        # No hook sees what the engine's root sends.
        self._sent = dict.fromkeys((edge.target, edge.input) for edge in self.nodes[0].edges)
        try:
            try:
                for row, node in zip(self.nodes, self.walk.nodes, strict=True):
                    if node is not ROOT:
                        handles += self._hooked(row, node)
            except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must be made
                self.failed = f"{type(error).__name__}: {error}"
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._sent, self._entered = {}, {}
            if self.failed:
                text = f"the gradients of this backward's autograd nodes were kept in part ({self.failed})"
                warnings.warn(text, CabwWarning, stacklevel=2)

    def _hooked(self, row: AutogradNode, node: Any) -> Iterator[Any]:
        if self.leaves_only:
            if row.number in self.leaves:
                yield node.register_prehook(self._noting(self._into, row))
            return
        kinds = {hook.kind for hook in row.hooks}
        if "pre_hook" in kinds:
            yield self._in_front(node.register_prehook(self._noting(self._before_hooks, row)))
        yield node.register_prehook(self._noting(self._into, row))
        if row.kind == "accumulate_grad":
            return
        if "post_hook" in kinds:
            yield self._in_front(node.register_hook(self._noting(self._before_post_hooks, row)))
        yield node.register_hook(self._noting(self._out, row))

    @staticmethod
    def _in_front(handle: Any) -> Any:
        """Move a hook to the front of its node's: C++ goes by the order in which they stand in a plain dict."""
        hooks = handle.hooks_dict_ref()
        for key in [key for key in hooks or () if key != handle.id]:
            hooks[key] = hooks.pop(key)
        return handle

    def _noting(self, note: Callable[..., None], row: AutogradNode) -> Callable[..., None]:
        """A hook that changes nothing. A failure of ours in it is the last that is noted, and the backward goes on."""

        def hook(*gradients: Any) -> None:
            if self.failed:
                return
            try:
                with torch_adapter.without_any_torch_function(), _unseen(*gradients):
                    note(row, *gradients)
            except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must go on
                self.failed = f"{type(error).__name__} at {row.name} (#{row.number}): {error}"

        return hook

    # -- what the hooks note -----------------------------------------------------------------------------------

    def _before_hooks(self, row: AutogradNode, gradients: Sequence[Any]) -> None:
        self.found.inputs_before_hooks[row.number] = tuple(self._kept(row, gradient) for gradient in gradients)

    def _into(self, row: AutogradNode, gradients: Sequence[Any]) -> None:
        entered = []
        for position, gradient in enumerate(gradients):
            sent = self._sent.pop((row.number, position), None)
            entered.append(self._seen(row, gradient, sent))
        self._entered[row.number] = entered
        self.found.inputs[row.number] = tuple(seen.kept if seen is not None else None for seen in entered)

    def _before_post_hooks(self, row: AutogradNode, made: Sequence[Any], _: object) -> None:
        self.found.outputs_before_hooks[row.number] = tuple(self._kept(row, gradient) for gradient in made)

    def _out(self, row: AutogradNode, made: Sequence[Any], inputs: Sequence[Any]) -> None:
        entered = self._entered.pop(row.number, [])
        known: dict[int, _Seen] = {}
        outputs: list[_Seen | None] = []
        for gradient in made:
            seen = known.get(id(gradient))
            if gradient is not None and seen is None:
                seen = known[id(gradient)] = self._made(row, gradient, inputs, entered)
            outputs.append(seen)
        self.found.outputs[row.number] = tuple(seen.kept if seen is not None else None for seen in outputs)
        for edge in row.edges:
            seen = outputs[edge.output] if edge.output < len(outputs) else None
            if seen is not None:
                place = edge.target, edge.input
                self._sent[place] = None if place in self._sent else seen

    def _made(self, row: AutogradNode, gradient: Any, inputs: Sequence[Any], entered: list[_Seen | None]) -> _Seen:
        """What a node made: one of its inputs as it came, a view of one, or something of its own."""
        for source, seen in zip(inputs, entered, strict=False):
            if source is gradient:
                return self._seen(row, gradient, seen) or self._copy(row, gradient)
        if row.kind == "builtin":
            for source, seen in zip(inputs, entered, strict=False):
                view = _view(gradient, source, seen)
                if view is not None:
                    return _Seen(weakref.ref(gradient), version_of(gradient), view)
        return self._copy(row, gradient)

    # -- keeping ------------------------------------------------------------------------------------------------

    def _seen(self, row: AutogradNode, gradient: Any, earlier: _Seen | None) -> _Seen | None:
        """A gradient: as it was seen before, if it is still that; otherwise kept anew."""
        if gradient is None:
            return None
        full = earlier is not None and (isinstance(earlier.kept, Gradient) or row.number not in self.leaves)
        if earlier is not None and full and self._is_still(gradient, earlier):
            return earlier
        return self._copy(row, gradient)

    def _is_still(self, gradient: Any, earlier: _Seen) -> bool:
        """Whether a gradient is the tensor that was seen before, and holds what it held then."""
        if earlier.tensor() is not gradient or earlier.version is None or earlier.version != version_of(gradient):
            return False
        if not self._suspicious:
            return True
        return isinstance(earlier.kept, Gradient) and same_bits(gradient, earlier.kept.value)

    def _copy(self, row: AutogradNode, gradient: Any) -> _Seen:
        return _Seen(weakref.ref(gradient), version_of(gradient), self._kept(row, gradient))

    def _kept(self, row: AutogradNode, gradient: Any) -> Any:
        if gradient is None:
            return None
        size = bytes_of(gradient)
        always = size <= SMALL or row.number in self.leaves or not can_be_fingerprinted(gradient)
        if not always and size > self.budget.left:
            self.found.fingerprints += 1
            return fingerprint(gradient)
        if row.number not in self.leaves:
            self.found.bytes += size
            self.budget.left -= size
        return Gradient(compact_copy(gradient), strides_of(gradient))


def _unseen(*gradients: Sequence[Any]) -> AbstractContextManager[Any]:
    """A context in which no dispatch mode of the user's sees what is done with plain tensors; others need theirs."""
    if not torch_adapter.modes_are_on():
        return nullcontext()
    plain = all(each is None or type(each) is torch.Tensor for part in gradients for each in part)
    return torch_adapter.below_modes() if plain else nullcontext()


def _view(gradient: torch.Tensor, source: Any, seen: _Seen | None) -> GradientSnapshot | None:
    """What was kept of a node's input, seen as its output, if that is a view of it and nothing was written since."""
    if source is None or seen is None or not isinstance(seen.kept, Gradient) or seen.version is None:
        return None
    kept = seen.kept.value
    dense = type(gradient) is type(source) is torch.Tensor and gradient.layout is source.layout is torch.strided
    if not dense or gradient.dtype is not source.dtype or not torch_adapter.share_storage(gradient, source):
        return None
    offset = gradient.storage_offset() - source.storage_offset()
    reach = offset + sum((size - 1) * step for size, step in zip(gradient.size(), gradient.stride(), strict=True))
    marks = gradient.is_conj() or gradient.is_neg() or source.is_conj() or source.is_neg()
    # A copy has the strides of what it was made of only if that was dense; then it spans just its own elements.
    spans = kept.stride() == source.stride() and offset >= 0 and reach < source.numel() and 0 not in kept.stride()
    if marks or not spans or 0 in gradient.size() or version_of(source) != seen.version:
        return None
    view = kept.as_strided(gradient.size(), gradient.stride(), kept.storage_offset() + offset)
    return Gradient(view, strides_of(gradient))
