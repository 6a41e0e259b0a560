"""Which gradients flow where between the autograd nodes of a record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from cabw_viz.record.kinds import HookKind
from cabw_viz.record.model import AutogradNode, CaptureRecord, Hook, Leaf


@dataclass(frozen=True)
class Source:
    """One gradient on its way: output `output` of the autograd node numbered `number`."""

    number: int
    output: int


Entering = dict[int, list[Source]]
"""By input of an autograd node: the gradients that meet there, in the order in which their producers run."""

BEFORE: tuple[HookKind, ...] = ("tensor_pre_hook", "cpp_tensor_pre_hook", "pre_hook")
"""The hooks that run before their node, in the engine's order."""

AFTER: tuple[HookKind, ...] = ("post_acc_grad_hook", "post_hook")
"""Those that run after it. A post-accumulate hook is called inside AccumulateGrad, hence before the post hooks."""

ON_TENSORS: frozenset[HookKind] = frozenset({"tensor_pre_hook", "cpp_tensor_pre_hook"})
"""The hooks that see one gradient; the others see all that enter or leave their node."""


def incoming(record: CaptureRecord) -> dict[int, Entering]:
    """The gradients that enter each autograd node, by its number.

    Edges to nodes that are not part of the record (pruned by `inputs=`) are left out.
    """
    sources: dict[int, Entering] = defaultdict(lambda: defaultdict(list))
    for node in record.autograd_nodes:
        for edge in node.edges:
            if edge.target in record.by_number:
                sources[edge.target][edge.input].append(Source(node.number, edge.output))
    return {number: dict(sorted(entering.items())) for number, entering in sources.items()}


def summed(entering: Entering) -> dict[int, int]:
    """How many gradients are summed, for each input of a node that receives more than one."""
    return {index: len(sources) for index, sources in entering.items() if len(sources) > 1}


def hooks_of(node: AutogradNode, kinds: tuple[HookKind, ...]) -> list[tuple[int, Hook]]:
    """The node's hooks of these kinds with their places in `node.hooks`, in the order in which they run."""
    hooks = [(place, hook) for place, hook in enumerate(node.hooks) if hook.kind in kinds]
    return sorted(hooks, key=lambda item: kinds.index(item[1].kind))


def reached(record: CaptureRecord, node: AutogradNode) -> bool:
    """Whether the trace came as far as this node; nodes are traced in the order of their numbers."""
    stop = None if record.failure is None else record.failure.autograd_node
    return stop is None or node.number <= stop


def returned_leaves(record: CaptureRecord) -> dict[int, list[Leaf]]:
    """The leaves whose gradients the call returns instead of accumulating them, by the node that these enter."""
    leaves: dict[int, list[Leaf]] = defaultdict(list)
    for leaf in record.leaves:
        if leaf.output is not None and leaf.autograd_node in record.by_number:
            leaves[leaf.autograd_node].append(leaf)
    return dict(leaves)


def hooked_input(record: CaptureRecord, node: AutogradNode, hook: Hook, entering: Entering) -> int | None:
    """Which of the node's inputs a hook on a tensor sees; None where the record does not tell."""
    if hook.input is not None:
        return hook.input if hook.input in entering else None
    if len(entering) == 1:
        return next(iter(entering))
    if hook.graph_node is None:
        return None
    producers = _producers(record, node.number, record.graph_nodes[hook.graph_node].inputs)
    fitting = [index for index, sources in entering.items() if producers == {source.number for source in sources}]
    return fitting[0] if len(fitting) == 1 else None


def _producers(record: CaptureRecord, number: int, values: Iterable[int]) -> set[int]:
    """The autograd nodes from which these graph values come, past picking, summing and this node's own hooks."""
    producers, visited, todo = set(), set[int](), list(values)
    while todo:
        ordinal = todo.pop()
        if ordinal in visited:
            continue
        visited.add(ordinal)
        value = record.graph_nodes[ordinal]
        own_hook = value.kind == "hook" and value.autograd_node == number
        if own_hook or value.kind in {"getitem", "gradient_sum"}:
            todo.extend(value.inputs)
        elif value.autograd_node is not None:
            producers.add(value.autograd_node)
    return producers
