"""The reference gradients: copies taken while the user's own run makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.record.model import AutogradNode, Leaf
from cabw_viz.runtime.capture_state import CaptureState
from cabw_viz.runtime.gradient_snapshots import Gradient, detached_copy, strides_of
from cabw_viz.tracing.node_gradients import Budget, NodeWatch
from cabw_viz.tracing.node_numbering import NumberedNodes


@contextmanager
def watched_run(
    live: CaptureState,
    leaves: Sequence[Leaf],
    nodes: Sequence[AutogradNode],
    walk: NumberedNodes,
    budget: Budget | None,
) -> Iterator[None]:
    """Keep each accumulated gradient of the eager backward made inside, by a pre-hook behind all other hooks.

    A pre-hook on an accumulate node sees what is about to be added to `.grad`, after tensor hooks; so neither an
    older `.grad` nor an optimizer in a post-accumulate hook can disturb the copy.

    Args:
        live: what gets them.
        leaves: whose gradients the call computes.
        nodes: the record's autograd nodes.
        walk: the nodes themselves.
        budget: for the gradients into and out of all other nodes, which are kept too; None keeps none of them.
    """
    places = {i: leaf.autograd_node for i, leaf in enumerate(leaves) if leaf.output is None and leaf.autograd_node}
    of_leaves = frozenset(places.values())
    watch = NodeWatch(nodes, walk, budget or Budget(0), of_leaves, leaves_only=budget is None)
    with watch.watching():
        yield
    for index, number in places.items():
        entered = watch.found.inputs.get(number, ())
        kept = entered[leaves[index].input] if leaves[index].input < len(entered) else None
        if isinstance(kept, Gradient):
            live.reference[index] = Gradient(kept.value, None)
    live.node_gradients = watch.found if budget is not None else None
    live.has_reference, live.reference_error = not watch.failed, watch.failed


def keep_returned(live: CaptureState, leaves: Sequence[Leaf], returned: Sequence[Any]) -> None:
    """Keep copies of what `torch.autograd.grad` returned."""
    for index, leaf in enumerate(leaves):
        if leaf.output is not None and returned[leaf.output] is not None:
            gradient = returned[leaf.output]
            kept = live.reference[index] = Gradient(detached_copy(gradient), strides_of(gradient))
            # The engine stops at such a node, whose hooks then see nothing.
            if live.node_gradients is not None and leaf.autograd_node is not None:
                entered = live.node_gradients.inputs.get(leaf.autograd_node, ())
                places = (*entered, *[None] * (leaf.input + 1 - len(entered)))
                if places[leaf.input] is None:
                    live.node_gradients.inputs[leaf.autograd_node] = (
                        *places[: leaf.input], kept, *places[leaf.input + 1 :],
                    )  # fmt: skip


def watch_accumulations(graph: torch.fx.GraphModule, live: CaptureState, variables: Sequence[Any]) -> None:
    """Let the code of a captured graph copy each gradient that it accumulates, the first time it runs.

    The graph's nodes stay as they are; only the generated code calls the accumulation through ours.
    """
    index_of = {id(variable): index for index, variable in enumerate(variables) if variable is not None}

    def accumulate(*args: Any) -> Any:
        index = index_of.pop(id(torch_adapter.accumulated_variable(args)), None)
        gradient = torch_adapter.accumulated_gradient(args)
        if index is not None and gradient is not None:
            live.reference[index] = Gradient(detached_copy(gradient), None)
        return torch_adapter.call_accumulate_grad(*args)

    nodes = graph.graph.find_nodes(op="call_function", target=torch_adapter.call_accumulate_grad)
    for node in nodes:
        node.target = accumulate
    graph.recompile()
    for node in nodes:
        node.target = torch_adapter.call_accumulate_grad


def keep_grads_before(live: CaptureState, variables: Sequence[Any]) -> None:
    """Copy every `.grad` before the user's compiler adds to it; None in the place of what is no accumulated leaf."""
    for index, variable in enumerate(variables):
        if variable is not None and variable.grad is not None:
            live.grads_before[index] = detached_copy(variable.grad)


def keep_grads_after(live: CaptureState, variables: Sequence[Any]) -> None:
    """Copy every `.grad` that the user's compiler has left."""
    for index, variable in enumerate(variables):
        if variable is not None and variable.grad is not None:
            live.reference[index] = Gradient(detached_copy(variable.grad), None)
