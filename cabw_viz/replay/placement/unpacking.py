"""Unpacks saved tensors before a graph is compiled, so that a compiler gets plain tensors.

A compiler cannot see into the hooks that unpack (checkpoints, `save_on_cpu`, hooks of the user's): Dynamo would break
the graph at each of them, and compile ever longer pieces of it. All tensors are unpacked at once, in the order in which
the graph would unpack them; between them no hook on a gradient runs.
"""

from __future__ import annotations

import operator
from typing import Any

import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.runtime.capture_state import Arguments


def unpack_first(graph: torch.fx.GraphModule, arguments: Arguments) -> list[Any]:
    """Make a graph take unpacked tensors as inputs behind its others.

    Args:
        graph: changed in place.
        arguments: what it takes now.

    Returns:
        The unpacked tensors, in the order of the inputs.

    Raises:
        CabwError: a hook cannot unpack its tensor again; names the hook.
    """
    unpacked: list[Any] = []
    first = next(iter(graph.graph.nodes))
    for node in list(graph.graph.nodes):
        if torch_adapter.hook_type(node.target, node.kwargs) != "unpack_hook":
            continue
        hook, packed = torch_adapter.hook_index(node.args), torch_adapter.packed_index(node.args)
        if hook is None or packed is None:
            continue
        with graph.graph.inserting_before(node):
            lifted = graph.graph.call_function(operator.getitem, (first, len(arguments.inputs) + len(unpacked)))
        unpacked.append(_unpacked(arguments.hooks[hook], arguments.packed_data[packed]))
        lifted_before = node.all_input_nodes
        node.replace_all_uses_with(lifted)
        graph.graph.erase_node(node)
        for each in lifted_before:
            if not each.users:
                graph.graph.erase_node(each)
    if unpacked:
        graph.recompile()
    return unpacked


def _unpacked(hook: Any, packed: Any) -> Any:
    try:
        return hook(packed)
    except Exception as error:
        name = getattr(hook, "__qualname__", type(hook).__qualname__)
        raise CabwError(
            f"the hook {name} could not unpack a saved tensor again: {type(error).__name__}: {error}",
            expected="hooks that unpack a tensor as often as they are asked to",
            try_="torch.autograd.graph.saved_tensors_hooks with an unpack hook that keeps what it was given",
        ) from error
