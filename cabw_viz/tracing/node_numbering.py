"""The autograd nodes of a backward call, numbered as compiled autograd will number them.

`_compiled_autograd_impl` (torch/csrc/dynamo/python_compiled_autograd.cpp) runs nodes last in, first out, from
GraphRoot over all roots, each when its last consumer has run; with `inputs=`, edges to nodes below which no input
lies are skipped. The numbering must be made before the backward, which frees the nodes of new leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cabw_viz import torch_adapter

Edges = Sequence[tuple[Any, int]]
"""Autograd nodes, each with which of its gradients it is; a node may be None."""

ROOT = None
"""Stands for GraphRoot, which Python cannot hold."""


@dataclass(frozen=True)
class NumberedNodes:
    """The nodes of one call: `nodes[number]`; `nodes[0]` is GraphRoot, for which None stands."""

    nodes: tuple[Any, ...]
    roots: tuple[tuple[Any, int], ...]
    """(node, which of its gradients) of each root of the call."""
    following: dict[Any, Edges] = field(default_factory=dict)
    """Where the gradients of each node go, read once: PyTorch makes new objects of it each time."""

    @cached_property
    def numbers(self) -> dict[Any, int]:
        """NodeCall number of each autograd node."""
        return {node: number for number, node in enumerate(self.nodes)}

    def number_of(self, node: Any) -> int | None:
        """NodeCall number of an autograd node; None where the call does not run it."""
        return self.numbers.get(node)

    def targets(self, node: Any) -> Edges:
        """Where the gradients of a node go, those that go nowhere and those outside of the call included."""
        return self.roots if node is ROOT else self.following[node]

    def edges(self, number: int) -> tuple[tuple[int, int, int], ...]:
        """(output, target number, target's input) of a node's edges within the call."""
        numbers = self.numbers
        return tuple(
            (i, numbers[n], nr)
            for i, (n, nr) in enumerate(self.targets(self.nodes[number]))
            if n is not ROOT and n in numbers
        )


def number_nodes(roots: Sequence[Any], inputs: Sequence[Any] = ()) -> NumberedNodes:
    """Number the autograd nodes below the roots of a call.

    Args:
        roots: Tensors or GradientEdges that the backward starts from.
        inputs: Tensors or GradientEdges that it is limited to; empty for none.
    """
    root_edges = tuple(torch_adapter.gradient_edge(root) for root in roots)
    following: dict[Any, Edges] = {}
    children_of: dict[Any, list[Any]] = {ROOT: [node for node, _ in root_edges]}

    def children(node: Any) -> list[Any]:
        if node not in children_of:
            following[node] = node.next_functions
            children_of[node] = [child for child, _ in following[node] if child is not None]
        return children_of[node]

    consumers, all_nodes = _consumer_counts(children)
    targets = {torch_adapter.gradient_edge(target)[0] for target in inputs}
    needed = _ancestors(targets, children) if targets else all_nodes
    return NumberedNodes(tuple(_execution_order(children, consumers, needed)), root_edges, following)


def _consumer_counts(children: Callable[[Any], list[Any]]) -> tuple[Counter[Any], set[Any]]:
    """How many edges lead to each node, and all nodes."""
    consumers: Counter[Any] = Counter()
    all_nodes, stack = {ROOT}, [ROOT]
    while stack:
        for child in children(stack.pop()):
            consumers[child] += 1
            if child not in all_nodes:
                all_nodes.add(child)
                stack.append(child)
    return consumers, all_nodes


def _ancestors(targets: Iterable[Any], children: Callable[[Any], list[Any]]) -> set[Any]:
    """The nodes from which a target can be reached, targets included."""
    ancestors, visited = set(targets), set()
    stack: list[tuple[Any, bool]] = [(ROOT, False)]
    while stack:
        node, children_are_done = stack.pop()
        if children_are_done:
            if any(child in ancestors for child in children(node)):
                ancestors.add(node)
        elif node not in visited:
            visited.add(node)
            stack.append((node, True))
            stack += [(child, False) for child in children(node)]
    return ancestors


def _execution_order(children: Callable[[Any], list[Any]], consumers: Counter[Any], needed: set[Any]) -> list[Any]:
    """The nodes in the order in which the tracer runs them."""
    order: list[Any] = []
    ready: list[Any] = [ROOT]
    while ready:
        node = ready.pop()
        order.append(node)
        for child in children(node):
            if child in needed:
                consumers[child] -= 1
                if not consumers[child]:
                    ready.append(child)
    return order
