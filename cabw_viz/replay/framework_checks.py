"""Refuses what a replay cannot run without harm: code that needs a live engine, or that gathers sharded parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.kinds import HookKind
from cabw_viz.record.model import AutogradNode, CaptureRecord
from cabw_viz.record.options import HookPolicy
from cabw_viz.replay.hook_policy import is_left_out
from cabw_viz.runtime.capture_state import RunnableCapture

CHECKPOINT = "torch.utils.checkpoint"
"""The module of the hooks that recompute what a checkpoint did not save."""


def check_frameworks(capture: RunnableCapture, hooks: HookPolicy) -> None:
    """Refuse, before anything runs, what would leave the user's model changed.

    Hooks of frameworks that are known are left out and need no check (`torch_adapter.framework_hooks`).

    Raises:
        CabwError: names the autograd node.
    """
    for node, kind, lifted in _lifted_objects(capture):
        label = "a node" if node is None else f"{capture.record.label(node)} (#{node.number})"
        is_ctx = kind is None
        if (kind is None or not is_left_out(node, kind, hooks)) and torch_adapter.queues_callback(lifted):
            raise CabwError(
                f"{label} {'queues' if is_ctx else 'has a hook that queues'} a callback in the engine, which takes "
                "callbacks only during backward pass",
                expected="code that needs no running engine",
                try_="reading the gradients of your own run: no replay of this backward is possible"
                if is_ctx
                else 'hooks="drop", which leaves hooks out',
            )
        framework = torch_adapter.unknown_function_of(lifted)
        if framework:
            raise CabwError(
                f"{label} is a Function of {framework}, which gathers and frees parameters when it runs",
                expected="a backward without Functions that change the model",
                try_=f"capturing the model without {framework}",
            )
        if kind == "unpack_hook" and getattr(lifted, "__module__", "") == CHECKPOINT:
            _check_recomputation(capture.record, label)


def _check_recomputation(record: CaptureRecord, label: str) -> None:
    sharding = [name for name in record.frameworks if name in torch_adapter.SHARDING]
    if sharding:
        raise CabwError(
            f"{label} takes saved tensors from a checkpoint, which calls modules of {sharding[0]} again: they would "
            "gather and free parameters",
            expected=f"a backward of {sharding[0]} without checkpoints",
            try_="capturing the model without checkpoints",
        )


def _lifted_objects(capture: RunnableCapture) -> Iterator[tuple[AutogradNode | None, HookKind | None, Any]]:
    """The autograd node, kind of hook (None for a ctx), and hook or ctx, in the graph's order."""
    record, arguments = capture.record, capture.arguments
    for node, row in zip(capture.graph.graph.nodes, record.graph_nodes, strict=True):
        kind = torch_adapter.hook_type(node.target, node.kwargs)
        if kind is None and node.target is not torch_adapter.call_backward:
            continue
        index = torch_adapter.lifted_index(node.args[0])
        if index is not None:
            owner = record.by_number.get(row.autograd_node) if row.autograd_node is not None else None
            yield owner, kind, arguments.hooks[index]
