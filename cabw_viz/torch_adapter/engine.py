"""The autograd engine: the function by which Python enters it, its calls, and what the thread is doing.

Read in `torch/autograd/graph.py` and `torch/csrc/autograd/engine.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from cabw_viz.torch_adapter.dynamo import disable_dynamo
from cabw_viz.torch_adapter.patching import replaced

ENGINE_ENTRY = "_engine_run_backward"
"""Name in `torch.autograd` of the function through which every Python backward enters the engine."""


def engine_entry() -> Callable[..., Any]:
    """The function through which `.backward()`, `autograd.backward` and `autograd.grad` enter the engine."""
    function: Callable[..., Any] = getattr(torch.autograd, ENGINE_ENTRY)
    return function


@contextmanager
def patched_engine_entry(function: Callable[..., Any]) -> Iterator[None]:
    """A context in which every backward call of the process runs `function(original, *args, **options)`.

    `original` is the entry as it was before. At the end it returns to its place; where another tool has patched the
    entry inside the context, that patch stays, and ours underneath it passes every call to `original`.
    """
    original = engine_entry()
    active: Callable[..., Any] | None = function

    def patched(*args: Any, **options: Any) -> Any:
        return original(*args, **options) if active is None else active(original, *args, **options)

    # torch.compile(train_step) would otherwise trace into this function.
    with replaced(torch.autograd, ENGINE_ENTRY, disable_dynamo(patched)):
        try:
            yield
        finally:
            active = None  # a patch that stays under another tool's keeps no tensors of ours alive


@dataclass(frozen=True)
class EngineCall:
    """One call of the engine entry, its arguments by name."""

    original: Callable[..., Any]
    roots: tuple[Any, ...]
    """Tensors or GradientEdges."""
    grads: tuple[Any, ...]
    keep_graph: bool
    create_graph: bool
    inputs: tuple[Any, ...]
    """Tensors or GradientEdges; empty for a plain backward."""
    rest: tuple[Any, ...]
    options: dict[str, Any]

    @classmethod
    def parse(cls, original: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> EngineCall:
        """Name the entry's positional arguments."""
        roots, grads, keep_graph, create_graph, *more = args
        inputs = tuple(more[0]) if more and more[0] else ()
        return cls(
            original, tuple(roots), tuple(grads), bool(keep_graph), bool(create_graph), inputs, tuple(more), options
        )

    @property
    def accumulates(self) -> bool:
        """Whether gradients go into `.grad` (`backward`) or are returned (`grad`)."""
        return bool(self.options.get("accumulate_grad"))

    def run(self, *, keep_graph: bool | None = None) -> Any:
        """Make the call as the user made it; `keep_graph` overrides their choice."""
        keep = self.keep_graph if keep_graph is None else keep_graph
        return self.original(self.roots, self.grads, keep, self.create_graph, *self.rest, **self.options)


def gradient_edge(target: Any) -> tuple[Any, int]:
    """The autograd node that a Tensor's or GradientEdge's gradient enters, and as which of its inputs."""
    edge = torch.autograd.graph.get_gradient_edge(target) if isinstance(target, torch.Tensor) else target
    return edge.node, edge.output_nr


def backward_is_running() -> bool:
    """Whether this thread is inside a backward."""
    return bool(torch._C._current_graph_task_id() != -1)


def compiler_is_tracing() -> bool:
    """Whether Dynamo or AOTAutograd is tracing in this thread."""
    return torch._guards.TracingContext.try_get() is not None
