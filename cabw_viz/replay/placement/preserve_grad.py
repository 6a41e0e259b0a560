"""Keeps `.grad` as it is while a graph runs again whose nodes make backward calls of their own.

A reentrant checkpoint does that: its backward runs the forward again, and then a backward that accumulates into the
parameters inside. What it accumulates in a replay is taken out again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cabw_viz import torch_adapter


@contextmanager
def preserving_grad_fields() -> Iterator[None]:
    """A context after whose end no backward made in it, by this thread, has left anything in a `.grad`."""
    before: dict[torch.Tensor, torch.Tensor | None] = {}
    original, here = torch_adapter.door(), threading.get_ident()

    def door(roots: Any, *args: Any, **options: Any) -> Any:
        if threading.get_ident() == here and options.get("accumulate_grad"):
            for leaf in _leaves(roots):
                if leaf not in before:
                    before[leaf] = leaf.grad
                    leaf.grad = None  # and not added to in place, for the tensor is the user's
        return original(roots, *args, **options)

    torch_adapter.set_door(torch_adapter.disable_dynamo(door))  # Dynamo would trace into it
    try:
        yield
    finally:
        torch_adapter.set_door(original)
        for leaf, gradient in before.items():
            leaf.grad = gradient


def _leaves(roots: Any) -> Iterator[torch.Tensor]:
    """The leaves below the roots of a backward call."""
    todo = [torch_adapter.gradient_edge(root)[0] for root in roots if _can_start(root)]
    seen = set(todo)
    while todo:
        node = todo.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            yield variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)


def _can_start(root: Any) -> bool:
    return not isinstance(root, torch.Tensor) or root.requires_grad
