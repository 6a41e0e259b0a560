"""Compiled regions: the backward that AOTAutograd has made of each, and the saved tensors that it may overwrite.

Read in `torch/_functorch/_aot_autograd/runtime_wrappers.py` and `graph_compile.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.fx

from cabw_viz.torch_adapter.modes import below_modes, without_function_modes
from cabw_viz.torch_adapter.nodes import is_python_function
from cabw_viz.torch_adapter.patching import replaced
from cabw_viz.torch_adapter.saved import saved_values


def is_aot_context(ctx: Any) -> bool:
    """Whether a Python Function's context belongs to the backward of a compiled region."""
    return hasattr(ctx._forward_cls, "_aot_id")


def is_aot_backward(node: Any) -> bool:
    """Whether an autograd node is the backward of a compiled region."""
    return is_python_function(node) and is_aot_context(node)


_DESERIALIZED: WeakKeyDictionary[type, Any] = WeakKeyDictionary()
"""Backward graphs by the Function of their region: to make one takes a symbolic trace."""


def backward_graph(ctx: Any) -> Any:
    """The backward of a compiled region as a graph of aten operators, not lowered; None where it is not at hand.

    Where AOTAutograd's cache on disk was hit, the graph is still serialized (`CachedAutogradLazyBackwardCompileInfo`).
    Deserializing is a symbolic trace, and its proxies need `__torch_function__`, which is off during our own trace.
    """
    info = getattr(ctx._forward_cls, "_lazy_backward_info", None)
    deserialize = getattr(info, "bw_module_fn", None)
    if deserialize is None:
        return getattr(info, "bw_module", None)
    if ctx._forward_cls not in _DESERIALIZED:
        with torch._C._EnableTorchFunction(), without_function_modes(), below_modes():
            _DESERIALIZED[ctx._forward_cls] = deserialize()
    return _DESERIALIZED[ctx._forward_cls]


def aot_placeholders(node: Any) -> tuple[str, ...]:
    """Names in a compiled region's backward graph of what its forward saved; empty where the graph is not at hand."""
    module = backward_graph(node)
    if module is None:
        return ()
    return tuple(placeholder.name for placeholder in module.graph.find_nodes(op="placeholder"))[len(node.symints) :]


@contextmanager
def traceable_aot_backward(ctx: Any) -> Iterator[None]:
    """A context for the trace of a compiled region's backward, which leaves the backward's own graph as it was.

    Tracing changes `aten.view` into `aten.reshape` in it, for good; and it would deserialize the graph once more.
    """
    module = backward_graph(ctx)
    before = [(node, node.target) for node in module.graph.nodes] if module is not None else []
    info = ctx._forward_cls._lazy_backward_info
    try:
        with ExitStack() as stack:
            if hasattr(info, "bw_module_fn"):
                stack.enter_context(replaced(info, "bw_module_fn", lambda: module))
            yield
    finally:
        for node, target in before:
            if node.target is not target:
                node.target = target


def donated_tensors(node: Any) -> Iterator[torch.Tensor]:
    """The saved tensors of an autograd node that the run of its backward may overwrite: those donated to Inductor.

    Inductor reuses their memory, and no version counts that. They are what a compiled region has saved that is neither
    its input nor its output nor shares memory with one (`collect_bw_donated_buffer_idxs`). What a hook has packed is
    left out.
    """
    donated = getattr(node._forward_cls.metadata, "bw_donated_idxs", None) if is_aot_backward(node) else None
    if donated:
        saved = [value for _, value, _ in saved_values(node)] + list(getattr(node, "_tensors_no_vc_check", None) or ())
        positions = [index - len(node.symints) for index in donated]
        yield from (saved[at] for at in positions if at < len(saved) and isinstance(saved[at], torch.Tensor))
