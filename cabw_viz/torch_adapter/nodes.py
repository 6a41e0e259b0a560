"""Autograd nodes: their names, inputs, sequence numbers, and the contexts of Python Functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from cabw_viz.torch_adapter.tensors import plain_shape


def name_of_node(node: Any) -> str:
    """An autograd node's name without its namespaces; template arguments stay: `CppNode<mine::Scale>`."""
    name: str = node.name()
    head, bracket, tail = name.partition("<")
    return head.rpartition("::")[2] + bracket + tail


def input_count(node: Any) -> int:
    """How many gradients flow into an autograd node."""
    return len(node._input_metadata)


def input_metadata(node: Any, position: int) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a gradient that flows into an autograd node, as the forward op left them.

    Of a nested tensor of the strided layout, which has no shape, an empty one.
    """
    return _shape_and_dtype(node._input_metadata[position])


def _shape_and_dtype(metadata: Any) -> tuple[tuple[int, ...], str]:
    try:
        shape = plain_shape(metadata.shape)
    except RuntimeError:
        if not metadata.is_nested_tensor:
            raise
        shape = ()
    return shape, str(metadata.dtype)


def expects_nested(node: Any, position: int) -> bool:
    """Whether a gradient that flows into an autograd node is a nested tensor."""
    return position < len(node._input_metadata) and bool(node._input_metadata[position].is_nested_tensor)


def is_python_function(node: Any) -> bool:
    """Whether an autograd node belongs to a Python `autograd.Function`."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""The number that the next autograd node made in this thread will get."""

jit_tracing_state = torch._C._get_tracing_state
"""The state of `torch.jit.trace` in this thread; None outside of it. It names values after variables in the frames."""

_NO_NUMBER = 2**64 - 1


def sequence_number_of(node: Any) -> int | None:
    """The sequence number that an autograd node drew when it was made; None for accumulations, which draw none."""
    number: int = node._sequence_nr()
    return None if number == _NO_NUMBER else number


def ctx_tensors(node: Any) -> Iterator[tuple[str, Any]]:
    """(attribute, tensor) of the tensors among `ctx_attributes`."""
    for name, value in ctx_attributes(node).items():
        if isinstance(value, torch.Tensor):
            yield name, value


def gradient_specs(node: Any) -> list[tuple[tuple[int, ...], str] | None]:
    """Shape and dtype of each gradient that flows into an autograd node; None where the forward op left none."""
    return [_spec(metadata) for metadata in node._input_metadata]


def _spec(metadata: Any) -> tuple[tuple[int, ...], str] | None:
    try:
        return _shape_and_dtype(metadata)
    except (AttributeError, RuntimeError):  # an undefined output; a nested tensor, which has no shape
        return None


def moved_to_front(handle: Any) -> Any:
    """The handle of an autograd node's hook, moved before the others: C++ calls them in a plain dict's order."""
    hooks = handle.hooks_dict_ref()
    for key in [key for key in hooks or () if key != handle.id]:
        hooks[key] = hooks.pop(key)
    return handle


class HookDicts(NamedTuple):
    """The Python hooks of an autograd node in the order in which C++ calls them: dicts that it reads at each call."""

    pre: dict[Any, Any]
    post: dict[Any, Any]


def pre_hooks(node: Any) -> dict[Any, Any]:
    """The dict of a node's pre-hooks. Only the handle of a new hook leads to it; the new one is removed again."""
    return _dict_behind(node.register_prehook(_no_hook))


def post_hooks(node: Any) -> dict[Any, Any]:
    """The dict of a node's post-hooks, as `pre_hooks`."""
    return _dict_behind(node.register_hook(_no_hook))


def _dict_behind(handle: Any) -> dict[Any, Any]:
    hooks: dict[Any, Any] = handle.hooks_dict_ref()
    del hooks[handle.id]
    return hooks


def _no_hook(*_: Any) -> None:
    """Changes nothing."""


def hooks_on_leaf(leaf: torch.Tensor) -> list[Any]:
    """The Python hooks on a leaf's gradient, which run before it is accumulated."""
    return list((leaf._backward_hooks or {}).values())


def hooks_after_accumulation(leaf: torch.Tensor) -> list[Any]:
    """The Python hooks that run when a leaf's gradient was accumulated."""
    return list((leaf._post_accumulate_grad_hooks or {}).values())


def ctx_attributes(ctx: Any) -> dict[str, Any]:
    """What a Python Function has set on its `ctx` by name, beside what `save_for_backward` saves."""
    return dict(getattr(ctx, "__dict__", {}))
