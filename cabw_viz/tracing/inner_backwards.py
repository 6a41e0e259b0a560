"""What gets a gradient while a captured call runs in eager, and is no leaf of that call.

Code in a backward may start another backward, as a reentrant checkpoint does: what that accumulates is no part of the
captured graph. Such calls are seen at the engine's entry. Calls that code in C++ makes are not, nor is what a hook
puts into a `.grad`; these show in the `.grad` of the subject's tensors, before and after. No tensor is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import warn
from cabw_viz.record.inner_backward import InnerBackward
from cabw_viz.record.model import Leaf
from cabw_viz.runtime.tensor_state import version_of
from cabw_viz.torch_adapter import EngineCall
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes

GradState = dict[int, tuple[int, int | None]]
"""By identity of a tensor: identity and version of its `.grad`."""


class InnerBackwards:
    """Watches one call of the user's while it runs.

    watching            around the run
    └─ inside           around each backward that is made inside of it
       ├─ node, shares  where it is made, and whether it can be captured by itself
       └─ note_capture  where it was
    found, others       after it
    """

    def __init__(self, leaves: tuple[Leaf, ...], numbering: NumberedNodes, names: Names) -> None:
        self._leaves, self._numbering, self._names = leaves, numbering, names
        self.capture: int | None = None
        """Index of the capture that the call is."""
        self.outer: InnerBackwards | None = None
        """Those of the captured call in which this one is made."""
        self._open: list[tuple[int | None, int | None]] = []
        """Of the inner calls that run now: the autograd node in which each was made, and its index in `found`."""
        self.found: list[InnerBackward] = []
        self.others: tuple[str, ...] = ()
        """Labels of tensors that got a gradient otherwise."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context for the run of the call."""
        tensors: list[tuple[tuple[str, ...], torch.Tensor]] = []
        try:
            with torch_adapter.without_any_torch_function():
                tensors += self._tensors()
            before = _grads(tensors)
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must be made
            before = None
            warn(f"the .grad of this backward's tensors could not be read ({type(error).__name__}: {error})")
        yield
        if before is None:
            return
        try:
            known = {leaf.names for leaf in self._leaves}
            inner = {label for each in self.found for label in each.leaves}
            after = _grads(tensors)
            changed = [names for names, tensor in tensors if after.get(id(tensor)) != before.get(id(tensor))]
            labels = (" = ".join(names) for names in changed if names not in known)
            self.others = tuple(label for label in labels if label not in inner)
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward has been made
            warn(f"it is not known what else got a gradient in this backward ({type(error).__name__}: {error})")

    @contextmanager
    def inside(self, call: EngineCall) -> Iterator[None]:
        """A context for a call that is made inside; noted where it accumulates: other gradients are returned."""
        number = self._numbering.number_of(torch_adapter.running_node())
        position = len(self.found) if call.accumulates else None
        self._open.append((self.node if number is None else number, position))
        try:
            if position is not None:
                self.found.append(InnerBackward(self.node, self._labels(call)))
            yield
        finally:
            self._open.pop()

    @property
    def node(self) -> int | None:
        """The autograd node in which the innermost call that runs now was made; None where that is not known."""
        return self._open[-1][0] if self._open else None

    def shares(self, numbering: NumberedNodes) -> bool:
        """Whether a call has autograd nodes of this one, whose hooks are ours while it runs, or of one around it."""
        own = any(node in self._numbering.numbers for node in numbering.nodes if node is not ROOT)
        return own or (self.outer is not None and self.outer.shares(numbering))

    def note_nested(self, found: Iterable[InnerBackward]) -> None:
        """Those that were made in the innermost call that runs now are inside this one too."""
        self.found += [replace(each, autograd_node=self.node) for each in found]

    def note_capture(self, index: int) -> None:
        """The innermost call that runs now was captured."""
        position = self._open[-1][1] if self._open else None
        if position is not None:
            self.found[position] = replace(self.found[position], capture=index)

    def _labels(self, call: EngineCall) -> tuple[str, ...]:
        try:
            return tuple(dict.fromkeys(" = ".join(names) for names in self._names_of_leaves(call)))
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's call must be made
            warn(f"a backward inside another could not be read ({type(error).__name__}: {error})")
            return ()

    def _names_of_leaves(self, call: EngineCall) -> Iterator[tuple[str, ...]]:
        """Names of the subject's tensors and of parameters; other leaves may be made in the backward."""
        for variable in _accumulated(call):
            names = self._names.names_of(variable)
            if names:
                yield names
            elif isinstance(variable, torch.nn.Parameter):
                yield self._names.leaf_names(variable)

    def _tensors(self) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
        return ((names, each) for names, each in self._names.named_tensors() if each.is_leaf and each.requires_grad)


def _grads(tensors: Iterable[tuple[tuple[str, ...], torch.Tensor]]) -> GradState:
    with torch_adapter.without_any_torch_function():
        pairs = ((tensor, tensor.grad) for _, tensor in tensors)
        return {id(tensor): (id(grad), version_of(grad)) for tensor, grad in pairs if grad is not None}


def _accumulated(call: EngineCall) -> Iterator[torch.Tensor]:
    """The leaves that a call accumulates into."""
    wanted = {torch_adapter.gradient_edge(target)[0] for target in call.inputs}
    return (leaf for node, leaf in torch_adapter.accumulating_nodes(call.roots) if not wanted or node in wanted)
