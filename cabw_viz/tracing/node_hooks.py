"""The hooks of autograd nodes, read from the nodes themselves: for calls of which there is no captured graph.

Python cannot list hooks that C++ code has registered (those of DistributedDataParallel's reducer), nor those on tensors
that are no leaves. Of these, the ones that were registered in the block are known (`tensor_hooks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from cabw_viz import torch_adapter
from cabw_viz.record.changed import changed
from cabw_viz.record.kinds import HookKind
from cabw_viz.record.model import AutogradNode, Hook
from cabw_viz.torch_adapter import HookDicts
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes
from cabw_viz.tracing.tensor_hooks import hook_row


def with_hooks(
    nodes: Sequence[AutogradNode],
    numbering: NumberedNodes,
    dicts: Sequence[HookDicts | None],
    on_tensors: Callable[[Any], Iterable[Hook]],
) -> tuple[AutogradNode, ...]:
    """Autograd nodes with their hooks, and the frameworks of their Functions.

    What a trace has come to stays: hooks on tensors, and the graph nodes that call hooks.

    Args:
        nodes: with their saved tensors.
        numbering: the nodes themselves, before they run.
        dicts: their hooks; None for GraphRoot.
        on_tensors: the hooks that are known to hang on the tensors of a node.
    """
    rows = zip(nodes, numbering.nodes, dicts, strict=True)
    return tuple(
        node if hooks is None else _with_hooks(node, live, [*on_tensors(live), *_hooks(node, live, hooks)])
        for node, live, hooks in rows
    )


def dicts_of(numbering: NumberedNodes) -> list[HookDicts | None]:
    """The dicts of the hooks of each node; None for GraphRoot."""
    return [
        None if live is ROOT else HookDicts(torch_adapter.pre_hooks(live), torch_adapter.post_hooks(live))
        for live in numbering.nodes
    ]


def _with_hooks(node: AutogradNode, live: Any, read: Sequence[Hook]) -> AutogradNode:
    context = torch_adapter.without_framework(live) if node.kind == "custom_function" else None
    framework = context.framework if isinstance(context, torch_adapter.FrameworkContext) else ""
    return changed(node, hooks=_joined(node, read), framework=framework) if read or framework else node


def _joined(node: AutogradNode, read: Sequence[Hook]) -> tuple[Hook, ...]:
    """The hooks that were read, with the graph nodes of a trace, behind those that only the trace has seen."""
    calls: dict[HookKind, list[int | None]] = {}
    for hook in node.hooks:
        calls.setdefault(hook.kind, []).append(hook.graph_node)
    kinds = {hook.kind for hook in read}
    unread = [hook for hook in node.hooks if hook.kind not in kinds]
    pairs = ((hook, calls.get(hook.kind)) for hook in read)
    return (*unread, *(replace(hook, graph_node=left.pop(0)) if left else hook for hook, left in pairs))


def _hooks(node: AutogradNode, live: Any, hooks: HookDicts) -> Iterator[Hook]:
    leaf = getattr(live, "variable", None)
    if leaf is not None:
        yield from (hook_row("tensor_pre_hook", hook, 0) for hook in torch_adapter.hooks_on_leaf(leaf))
    yield from (hook_row("pre_hook", hook) for hook in hooks.pre.values())
    if any(row.packed for row in node.saved):
        yield from (hook_row("unpack_hook", hook) for hook in torch_adapter.unpack_hooks(live))
    yield from (hook_row("post_hook", hook) for hook in hooks.post.values())
    if leaf is not None:
        yield from (hook_row("post_acc_grad_hook", hook) for hook in torch_adapter.hooks_after_accumulation(leaf))
