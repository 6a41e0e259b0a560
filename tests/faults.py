"""Faults planted into the replay of a captured graph: one graph node gives something else than it should.

with planted("tanh_backward0", scaled):
    capture.divergence()
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from cabw_viz.replay.interpreter import GradientCollector

Fault = Callable[[torch.Tensor], torch.Tensor]


def scaled(gradient):
    return gradient * (1 + 1e-3)


def dropped(gradient):
    """One of the terms of which a sum's first row consists is lost: here all of them."""
    lost = gradient.clone()
    lost.reshape(-1)[: max(1, gradient.shape[-1])] = 0.0
    return lost


def transposed(gradient):
    return gradient.transpose(-1, -2).contiguous()


def with_a_nan(gradient):
    wrong = gradient.clone()
    wrong.reshape(-1)[1] = float("nan")
    return wrong


FAULTS: tuple[Fault, ...] = (scaled, dropped, transposed, with_a_nan)


@contextlib.contextmanager
def planted(node: str, fault: Fault) -> Iterator[list[str]]:
    """Every replay's graph node of this name gives its result with a fault in it; yields a name for each time."""
    original, done = GradientCollector.call_function, []

    def call_function(self, target, args, kwargs):
        result = original(self, target, args, kwargs)
        if self.rows[self.current.name].name != node:  # the names of compiled regions are the record's
            return result
        done.append(node)
        result = _changed(result, fault)
        row = self.rows[self.current.name]
        if row.kind == "accumulate_grad":
            self.collected[row.autograd_node] = result
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientCollector, "call_function", call_function)
        yield done


def _changed(result: Any, fault: Fault) -> Any:
    """A result with a fault in its first tensor."""
    if isinstance(result, torch.Tensor):
        return fault(result)
    items = list(result)
    place = next(i for i, item in enumerate(items) if isinstance(item, torch.Tensor))
    items[place] = fault(items[place])
    return type(result)(items) if isinstance(result, tuple) else items
