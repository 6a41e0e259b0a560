"""Protects `.grad` during a replay whose nodes start backward passes themselves (reentrant checkpointing).

The backward of a reentrant checkpoint runs the forward again, and then a backward that accumulates into the
parameters. After a replay their `.grad` is restored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cabw_viz import torch_adapter


@contextmanager
def preserving_grad_fields() -> Iterator[None]:
    """A context at whose end every `.grad` is as before, whatever backwards this thread has started in it."""
    before: dict[torch.Tensor, torch.Tensor | None] = {}
    thread = threading.get_ident()

    def set_grads_aside(original: Callable[..., Any], roots: Any, *args: Any, **options: Any) -> Any:
        if threading.get_ident() == thread and options.get("accumulate_grad"):
            for _, leaf in torch_adapter.accumulating_nodes(roots):
                if leaf not in before:
                    before[leaf] = leaf.grad
                    leaf.grad = None  # the engine would add to the user's tensor in place
        return original(roots, *args, **options)

    try:
        with torch_adapter.patched_engine_entry(set_grads_aside):
            yield
    finally:
        for leaf, gradient in before.items():
            leaf.grad = gradient
