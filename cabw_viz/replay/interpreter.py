"""Interprets a captured graph: gradients are collected, nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.model import AutogradNode, CaptureRecord
from cabw_viz.replay.hook_policy import is_left_out
from cabw_viz.replay.placement.engine_rules import accumulations_to_copy, copy_of_gradient, sum_of_gradients
from cabw_viz.replay.placement.inductor_random import draw_of, drawn
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.replay.progress import NO_PROGRESS


class GradientCollector(torch.fx.Interpreter):
    """Interprets a captured graph; `Replay.run` runs it.

    run_node               notes which graph node runs
    └─ call_function
       ├─ accumulate_grad  gradient collected under its autograd node's number; `.grad` untouched
       ├─ torch.add        as the engine sums gradients: one that does not exist is left out
       ├─ inductor_random  numbers as Inductor's kernels draw them
       ├─ call_hook        those that follow an accumulation left out; the others run, unless hooks="drop"
       ├─ C++ hooks        left out: they are those of retain_grad(), which only look
       └─ everything else  as PyTorch would
    """

    def __init__(self, graph: PlacedGraph) -> None:
        super().__init__(graph.module)
        self.extra_traceback = False  # or torch appends "While executing" to the message of a user's own exception
        self.placed, self.record = graph, graph.record
        self.rows = dict(zip((node.name for node in graph.module.graph.nodes), graph.record.graph_nodes, strict=True))
        self.current: torch.fx.Node | None = None
        self.progress = NO_PROGRESS
        self.while_unpacking: Callable[[], AbstractContextManager[object]] = nullcontext
        """Makes a context in which hooks unpack saved tensors."""
        self.collected: dict[int, Any] = {}
        """Gradient by number of the accumulate node, or of the node at which the engine stops. Copied where code that
        runs later could write to it; the original is mostly dropped then, so that this costs time and little memory."""
        self._copied = accumulations_to_copy(graph)
        self._inputs = next(iter(graph.module.graph.nodes))

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one graph node."""
        self.current = n
        self.progress.step()
        value = super().run_node(n)
        if self._inputs in self.user_to_last_uses.get(n, ()):
            self.env[self._inputs].clear()  # the caller holds the list to the end; each input goes with its last use
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call; the class lists the calls that are treated apart."""
        if target is torch_adapter.call_accumulate_grad:
            return self._accumulate(torch_adapter.accumulated_gradient(args))
        if target is torch.add and self._is_sum():
            return sum_of_gradients(*args)
        draw = draw_of(target)
        if draw is not None:
            return drawn(draw, args, kwargs, self.placed.target.dtype)
        if target is torch_adapter.call_cpp_tensor_pre_hooks:
            return self._collect(self._kept(torch_adapter.hook_input(args)))
        kind = torch_adapter.hook_type(target, kwargs)
        if kind is not None and is_left_out(self._autograd_node(), kind, self.placed.hooks):
            return torch_adapter.hook_input(args)
        if kind == "unpack_hook":
            with self.while_unpacking():
                return super().call_function(target, args, kwargs)
        return super().call_function(target, args, kwargs)

    def fetch_args_kwargs_from_env(self, n: torch.fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a node, as they are at the target."""
        args, kwargs = self.placed.changes.arguments_of(n)
        return self.map_nodes_to_values(args, n), self.map_nodes_to_values(kwargs, n)  # type: ignore[return-value]  # of the kinds that it takes

    def fetch_attr(self, target: str) -> Any:
        """An attribute of the graph, as it is at the target."""
        attributes = self.placed.changes.attributes
        return attributes[target] if target in attributes else super().fetch_attr(target)

    def location(self) -> str:
        """The autograd node and the graph node at which the run is."""
        row = self.rows[self.current.name] if self.current is not None else self.record.graph_nodes[0]
        node = self._autograd_node()
        graph_node = f"graph node {row.name}"
        return graph_node if node is None else f"{self.record.label(node)} (#{node.number}), {graph_node}"

    def failure(self, error: Exception) -> CabwError:
        """What to raise for an error of the run."""
        target = self.placed.target
        if target.moves:
            return CabwError(
                f"this graph cannot be run {target.description}: "
                f"{self.location()} raised {type(error).__name__}: {error}",
                expected="kernels for that device and dtype, and code that uses no tensors but those that it saved: "
                "tensors that a custom Function or a hook takes from its closure or from a global are not moved",
                try_="cap.replay(): where that fails too, the reason is not the device or the dtype",
            )
        return CabwError(
            "PyTorch cannot run this graph again outside of the engine: "
            f"{self.location()} raised {type(error).__name__}: {error}",
            expected="a graph that needs neither a live engine nor state that its first run has used up",
            try_='hooks="drop", which leaves hooks out'
            if self._is_in_hook()
            else "reading the gradients of your own run: no replay of this backward is possible",
        )

    def _is_in_hook(self) -> bool:
        """Whether the run is in a hook that `hooks="drop"` leaves out."""
        row = None if self.current is None else self.rows[self.current.name]
        return row is not None and row.kind == "hook" and self.placed.hooks != "drop"

    def _is_sum(self) -> bool:
        return self.current is not None and self.rows[self.current.name].kind == "gradient_sum"

    def _accumulate(self, gradient: Any) -> Any:
        return self._collect(self._kept(gradient))

    def _kept(self, gradient: Any) -> Any:
        """What accumulation keeps of a gradient: no later write to the gradient changes it."""
        copies = self.current is not None and self.current.name in self._copied
        return copy_of_gradient(gradient) if copies else gradient

    def _autograd_node(self) -> AutogradNode | None:
        """The autograd node whose graph node runs; None between them."""
        number = self.rows[self.current.name].autograd_node if self.current is not None else None
        return None if number is None else self.record.by_number.get(number)

    def _collect(self, gradient: Any) -> Any:
        number = self.rows[self.current.name].autograd_node if self.current is not None else None
        if number is not None:
            self.collected[number] = gradient
        return gradient


class VisitingCollector(GradientCollector):
    """Hands each gradient on when it is accumulated, and does not keep it.

    What stands behind the last gradient that is wanted does not run.

    Args:
        graph: the graph.
        visit: gets a leaf's index in the record, and its gradient, where no mode and no profiler sees what it does.
        leaves: those that are wanted; None for all, and to the end of the graph.
    """

    def __init__(
        self, graph: PlacedGraph, visit: Callable[[int, torch.Tensor], None], leaves: Collection[int] | None = None
    ) -> None:
        super().__init__(graph)
        self._visit = visit
        self._waiting = None if leaves is None else set(leaves)
        every = enumerate(self.record.leaves)
        self._leaves = {leaf.autograd_node: i for i, leaf in every if leaf.output is None}

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one graph node, unless all that is wanted is there."""
        if self._waiting is None or self._waiting:
            return super().run_node(n)
        returned = n.args[0] if n.op == "output" else None
        return [None for _ in returned] if isinstance(returned, list | tuple) else None

    def _accumulate(self, gradient: Any) -> Any:
        number = self.rows[self.current.name].autograd_node if self.current is not None else None
        if number is None or number not in self._leaves or not isinstance(gradient, torch.Tensor):
            return super()._accumulate(gradient)
        self.collected.pop(number, None)
        leaf = self._leaves[number]
        if self._waiting is None or leaf in self._waiting:
            with torch_adapter.unseen_operators():
                self._visit(leaf, gradient.detach())
        if self._waiting is not None:
            self._waiting.discard(leaf)
        return None


def leaf_gradients(record: CaptureRecord, collected: dict[int, Any], returned: Sequence[Any]) -> dict[int, Any]:
    """What a run made for each leaf, by its index in the record.

    Args:
        record: the capture.
        collected: gradients by number of the autograd node that they enter.
        returned: what the graph returned.
    """
    gradients = {}
    for index, leaf in enumerate(record.leaves):
        gradient = collected.get(leaf.autograd_node or -1) if leaf.output is None else returned[leaf.output]
        if isinstance(gradient, list | tuple):
            gradient = gradient[leaf.input]
        if gradient is not None:
            gradients[index] = gradient
    return gradients
