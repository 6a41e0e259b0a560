"""The steps of the user's own backward, each with the gradients that went into and came out of it, as they were kept.

For one autograd node:

    gradients sent to it ── sum ── hooks of tensors ── pre-hooks ── the node ── post-hooks ── gradients that it sends

The steps come in the order of the eager engine: of the nodes that are ready the one made last, and accumulations first
(`ReadyQueue` in torch/csrc/autograd/engine.h).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from cabw_viz.record.divergence import StepKind
from cabw_viz.record.kinds import HookKind
from cabw_viz.record.model import AutogradNode, CaptureRecord
from cabw_viz.runtime.capture_state import CaptureState
from cabw_viz.runtime.gradient_snapshots import Gradient, GradientSnapshot
from cabw_viz.runtime.value_ranges import is_finite

Snapshots = tuple[GradientSnapshot | None, ...]


@dataclass(frozen=True)
class BackwardStep:
    """A step of the backward: an autograd node, a sum of gradients, hooks, a write between two nodes."""

    kind: StepKind
    node: AutogradNode
    name: str
    inputs: Snapshots
    outputs: Snapshots
    where: str = ""
    """`file:line` of a hook's definition; empty for everything else."""


def backward_steps(record: CaptureRecord, state: CaptureState) -> Iterator[BackwardStep]:
    """The steps of which both sides were kept."""
    gradients = state.node_gradients
    if gradients is None:
        return
    arrivals: dict[tuple[int, int], list[GradientSnapshot | None]] = {}
    for edge in record.autograd_nodes[0].edges:
        arrivals.setdefault((edge.target, edge.input), []).append(_root_gradient(state, edge.output))
    for number in engine_order(record):
        node = record.by_number[number]
        inputs = gradients.inputs.get(number)
        if inputs is None:
            continue
        before = gradients.inputs_before_hooks.get(number, inputs)
        for position, snapshot in enumerate(before):
            yield from _joined(record, node, position, arrivals.get((number, position), []), snapshot)
        if number in gradients.inputs_before_hooks:
            yield _hooks(record, node, ("pre_hook",), before, inputs)
        outputs = gradients.outputs.get(number)
        if outputs is None:
            continue
        made = gradients.outputs_before_hooks.get(number, outputs)
        yield BackwardStep(node.kind, node, record.label(node), inputs, made)
        if number in gradients.outputs_before_hooks:
            yield _hooks(record, node, ("post_hook",), made, outputs)
        for edge in node.edges:
            sent = outputs[edge.output] if edge.output < len(outputs) else None
            arrivals.setdefault((edge.target, edge.input), []).append(sent)


def _root_gradient(state: CaptureState, position: int) -> GradientSnapshot | None:
    """The gradient that the call begins with at a root; None for ones, and where it was not kept."""
    roots = state.forward_values.roots
    kept = roots[position].gradient if position < len(roots) else None
    value = None if kept is None else kept.value
    return None if value is None else Gradient(value, None)


def _joined(
    record: CaptureRecord,
    node: AutogradNode,
    position: int,
    sent: Sequence[GradientSnapshot | None],
    taken: GradientSnapshot | None,
) -> Iterator[BackwardStep]:
    """What stands between the gradients that are sent to an input and the one that the node takes."""
    parts = tuple(each for each in sent if each is not None)
    if not parts or taken is None or (len(parts) == 1 and parts[0] is taken):
        return
    label = record.label(node)
    hooks = [hook for hook in node.hooks if hook.kind in _ON_TENSORS and hook.input in (position, None)]
    if len(sent) > 1:
        total = _sum_of(parts) if hooks else taken
        if total is not None:
            yield BackwardStep("gradient_sum", node, f"sum into {label}, input {position}", parts, (total,))
            parts = (total,)
    if hooks:
        names = ", ".join(hook.name for hook in hooks)
        name = f"{'hook' if len(hooks) == 1 else 'hooks'} {names} of {label}"
        yield BackwardStep("hook", node, name, parts, (taken,), hooks[0].where)
    elif len(sent) == 1:
        yield BackwardStep(
            "in_place_write", node, f"hook on, or write to, what {label} takes, input {position}", parts, (taken,)
        )


_ON_TENSORS: tuple[HookKind, ...] = ("tensor_pre_hook", "cpp_tensor_pre_hook")


def _sum_of(parts: Snapshots) -> GradientSnapshot | None:
    """The sum of gradients that were kept in full; None where one was not, or it cannot be computed."""
    values = [part.value for part in parts if isinstance(part, Gradient)]
    if len(values) < len(parts):
        return None
    try:
        with torch.no_grad():
            total = values[0]
            for value in values[1:]:
                total = total + value
    except RuntimeError:
        return None
    return Gradient(total, None) if is_finite(total) is not None else None


def _hooks(
    record: CaptureRecord, node: AutogradNode, kinds: tuple[HookKind, ...], inputs: Snapshots, outputs: Snapshots
) -> BackwardStep:
    hooks = [hook for hook in node.hooks if hook.kind in kinds]
    names = ", ".join(hook.name for hook in hooks)
    name = f"{'hook' if len(hooks) == 1 else 'hooks'} {names} of {record.label(node)}"
    return BackwardStep("hook", node, name, inputs, outputs, hooks[0].where if hooks else "")


def engine_order(record: CaptureRecord) -> Iterator[int]:
    """Numbers of the autograd nodes in the order in which the eager engine runs them, the root left out."""
    waiting: dict[int, int] = {}
    for node in record.autograd_nodes:
        for edge in node.edges:
            waiting[edge.target] = waiting.get(edge.target, 0) + 1
    ready = [(0, 0)]
    while ready:
        _, number = heapq.heappop(ready)
        if number:
            yield number
        for edge in record.by_number[number].edges:
            waiting[edge.target] -= 1
            if not waiting[edge.target]:
                target = record.by_number[edge.target]
                first = -len(record.autograd_nodes)
                heapq.heappush(ready, (first if target.order is None else -target.order, edge.target))
