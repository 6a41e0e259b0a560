"""The reference gradients: copies of what the user's own run computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import warn
from cabw_viz.record.model import AutogradNode, Leaf
from cabw_viz.runtime.capture_state import CaptureState
from cabw_viz.runtime.gradient_snapshots import Gradient, detached_copy, strides_of
from cabw_viz.runtime.gradient_statistics import norm_of
from cabw_viz.torch_adapter import HookDicts
from cabw_viz.tracing.forward_notes import SavedOfOrigins
from cabw_viz.tracing.leaves import variables_of
from cabw_viz.tracing.node_gradients import Budget, NodeWatch
from cabw_viz.tracing.node_numbering import NumberedNodes


@contextmanager
def watched_run(
    state: CaptureState,
    leaves: Sequence[Leaf],
    nodes: Sequence[AutogradNode],
    numbering: NumberedNodes,
    dicts: Sequence[HookDicts | None],
    budget: Budget | None,
) -> Iterator[None]:
    """A context that copies each accumulated gradient of the eager backward made in it, by a pre-hook after all others.

    A pre-hook of an AccumulateGrad node gets what is about to be added to `.grad`, after tensor hooks; so neither an
    older `.grad` nor an optimizer in a post-accumulate hook can disturb the copy.

    Args:
        state: of the capture; gets the copies.
        leaves: of the call.
        nodes: the record's autograd nodes.
        numbering: the nodes themselves.
        dicts: their hooks, where they were read; else empty.
        budget: bytes for the input and output gradients of all other nodes; None copies none of them.
    """
    nodes_of_leaves = {
        i: leaf.autograd_node for i, leaf in enumerate(leaves) if leaf.output is None and leaf.autograd_node
    }
    origins = SavedOfOrigins(numbering, state.forward_values.tensors) if state.arguments is None else None
    leaf_nodes = frozenset(nodes_of_leaves.values())
    watch = NodeWatch(
        nodes, numbering, budget or Budget(0), leaf_nodes, leaves_only=budget is None, origins=origins, dicts=dicts
    )
    keep_parameter_norms(state, variables_of(tuple(leaves), numbering))
    try:
        with watch.watching():
            yield
    except BaseException:  # what anomaly mode raises, too: the nodes until then show where a NaN begins
        state.node_gradients = watch.gradients if budget is not None else None
        raise
    for index, number in nodes_of_leaves.items():
        inputs = watch.gradients.inputs.get(number, ())
        gradient = inputs[leaves[index].input] if leaves[index].input < len(inputs) else None
        if isinstance(gradient, Gradient):
            state.reference[index] = Gradient(gradient.value, None)
    state.node_gradients = watch.gradients if budget is not None else None
    state.has_reference, state.reference_error = not watch.error, watch.error


def keep_parameter_norms(state: CaptureState, variables: Sequence[Any]) -> None:
    """Keep the norm of each leaf that is accumulated into, before an optimizer in a hook may step."""
    try:
        with torch_adapter.without_any_torch_function(), torch_adapter.unseen_operators():
            norms = {index: norm_of(variable) for index, variable in enumerate(variables) if variable is not None}
    except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must be made
        warn(f"the norms of this backward's parameters were not computed ({type(error).__name__}: {error})")
        return
    state.parameter_norms = {index: norm for index, norm in norms.items() if norm is not None}


def keep_returned(state: CaptureState, leaves: Sequence[Leaf], returned: Sequence[Any]) -> None:
    """Keep copies of what `torch.autograd.grad` returned."""
    try:
        _copy_returned(state, leaves, returned)
    except Exception as error:  # noqa: BLE001  # whatever it is, the user gets their gradients
        state.has_reference, state.reference_error = False, f"{type(error).__name__}: {error}"
        warn(f"the gradients of this backward were not kept ({state.reference_error})")


def _copy_returned(state: CaptureState, leaves: Sequence[Leaf], returned: Sequence[Any]) -> None:
    for index, leaf in enumerate(leaves):
        if leaf.output is not None and returned[leaf.output] is not None:
            value = returned[leaf.output]
            copy = detached_copy(value)
            strides = strides_of(value) if copy.shape == value.shape else strides_of(copy)  # else it has a batch
            gradient = state.reference[index] = Gradient(copy, strides)
            # The engine stops before such a node, and does not call its hooks.
            if state.node_gradients is not None and leaf.autograd_node is not None:
                inputs = state.node_gradients.inputs.get(leaf.autograd_node, ())
                padded = (*inputs, *[None] * (leaf.input + 1 - len(inputs)))
                if padded[leaf.input] is None:
                    state.node_gradients.inputs[leaf.autograd_node] = (
                        *padded[: leaf.input], gradient, *padded[leaf.input + 1 :],
                    )  # fmt: skip


def watch_accumulations(graph: torch.fx.GraphModule, state: CaptureState, variables: Sequence[Any]) -> None:
    """Make the code of a captured graph copy each gradient that it accumulates, the first time it runs.

    The graph's nodes stay as they are; only the generated code calls a function of ours that copies and accumulates.
    """
    keep_parameter_norms(state, variables)
    index_of = {id(variable): index for index, variable in enumerate(variables) if variable is not None}

    def accumulate(*args: Any) -> Any:
        index = index_of.pop(id(torch_adapter.accumulated_variable(args)), None)
        gradient = torch_adapter.accumulated_gradient(args)
        if index is not None and gradient is not None:
            state.reference[index] = Gradient(detached_copy(gradient), None)
        return torch_adapter.call_accumulate_grad(*args)

    nodes = graph.graph.find_nodes(op="call_function", target=torch_adapter.call_accumulate_grad)
    for node in nodes:
        node.target = accumulate
    graph.recompile()
    for node in nodes:
        node.target = torch_adapter.call_accumulate_grad


def keep_grads_before(state: CaptureState, variables: Sequence[Any]) -> None:
    """Copy every `.grad` before the user's compiler adds to it, and keep each leaf's norm.

    `variables` has None for what is not accumulated.
    """
    keep_parameter_norms(state, variables)
    for index, variable in enumerate(variables):
        if variable is not None and variable.grad is not None:
            state.grads_before[index] = detached_copy(variable.grad)


def keep_grads_after(state: CaptureState, variables: Sequence[Any]) -> None:
    """Copy every `.grad` after the user's compiler has added to it."""
    for index, variable in enumerate(variables):
        if variable is not None and variable.grad is not None:
            state.reference[index] = Gradient(detached_copy(variable.grad), None)
