"""The autograd engine: the function by which Python enters it, its calls, and what the thread is doing.

Read in `torch/autograd/graph.py` and `torch/csrc/autograd/engine.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    if not isinstance(target, torch.Tensor):
        return target.node, target.output_nr
    if target.grad_fn is None and target.requires_grad and not _can_be_viewed(target):
        node, position = _any_function_of(target).next_functions[0]
        return node, position
    edge = torch.autograd.graph.get_gradient_edge(target)
    return edge.node, edge.output_nr


def accumulating_nodes(roots: Iterable[Any]) -> Iterator[tuple[Any, torch.Tensor]]:
    """(node, leaf) of each autograd node below the roots of a backward call that accumulates into a leaf."""
    todo = [gradient_edge(root)[0] for root in roots if not isinstance(root, torch.Tensor) or root.requires_grad]
    visited = set(todo)
    while todo:
        node = todo.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            yield node, leaf
        for following, _ in node.next_functions:
            if following is not None and following not in visited:
                visited.add(following)
                todo.append(following)


def _can_be_viewed(leaf: torch.Tensor) -> bool:
    """Whether `get_gradient_edge` can make the view of a leaf from which it reads the leaf's node."""
    return leaf.layout in (torch.strided, torch.jagged)


def _any_function_of(leaf: torch.Tensor) -> Any:
    """The autograd node of a Function of a leaf: every layout has that, while sparse ones have no views."""
    with torch.enable_grad():
        return _EmptyResult.apply(leaf).grad_fn


class _EmptyResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        del ctx, leaf
        return torch.empty(0)


def backward_is_running() -> bool:
    """Whether this thread is inside a backward."""
    return bool(torch._C._current_graph_task_id() != -1)


graph_task: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the backward that runs in this thread; that of one inside another is larger. -1 for none."""

running_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)
"""The autograd node whose call runs in this thread; None where none does."""


TRACES_INSIDE = torch.__version__ >= "2.13"
"""Whether compiled autograd can be switched on inside an eager backward. The engine of earlier releases (engine.cpp,
`set_compiled_autograd`) may refuse it, and is of no use after that."""


def compiler_is_tracing() -> bool:
    """Whether Dynamo or AOTAutograd is tracing in this thread."""
    return torch._guards.TracingContext.try_get() is not None


class FirstAccumulateHook:
    """A hook that runs when the engine has accumulated into a leaf's `.grad`, before all others of that kind.

    Args:
        tensor: the leaf.
        hook: called with it.
    """

    def __init__(self, tensor: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
        self._tensor, self._had_none = tensor, tensor._post_accumulate_grad_hooks is None
        self._handle = tensor.register_post_accumulate_grad_hook(disable_dynamo(hook))
        hooks = tensor._post_accumulate_grad_hooks
        later = {key: each for key, each in hooks.items() if key != self._handle.id}
        for key in later:
            del hooks[key]
        hooks.update(later)

    def remove(self) -> None:
        """Leave the leaf with the hooks that it had."""
        self._handle.remove()
        if self._had_none and not self._tensor._post_accumulate_grad_hooks:
            self._tensor._post_accumulate_grad_hooks = None  # type: ignore[assignment]  # the stub lacks that it may be
