"""What each node of a captured graph reads when it really runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.kinds import PLUMBING
from cabw_viz.record.model import GraphNode, Touch
from cabw_viz.record.options import HookPolicy
from cabw_viz.replay.interpreter import GradientCollector
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.replay.replay import Replay
from cabw_viz.replay.watched import Watch, unwatched
from cabw_viz.runtime.capture_state import Captured


@dataclass(frozen=True)
class Audit:
    """A run on watched tensors."""

    touches: tuple[Touch, ...]
    """What each graph node read, which ops it ran, on whose behalf, in order of first reading."""
    gradients: dict[int, torch.Tensor]
    """Gradient of each leaf by its index in the record; a leaf without gradient is absent."""


class Auditing(GradientCollector):
    """Interprets a captured graph on watched tensors.

    call_function   reads count while a node's call runs, and not in between; tensors go watched from node to node,
    │               but plain into what goes before a compiled region's backward, which checks their class
    └─ GradientCollector   as in a replay
    """

    def __init__(self, graph: PlacedGraph) -> None:
        super().__init__(graph)
        self.watch = Watch()

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call, its reads noted and its tensors watched."""
        assert self.current is not None  # set by run_node
        row = self.rows[self.current.name]
        if torch_adapter.is_aot_prologue(target):
            args, kwargs = unwatched(args), unwatched(kwargs)
        with self.watch.reading(row.ordinal, row.autograd_node, Auditing.call_function.__code__):
            result = super().call_function(target, args, kwargs)
        return self.watch.watched(result) if self._is_read(row) else result

    def _kept(self, gradient: Any) -> Any:
        return super()._kept(unwatched(gradient))  # a copy is no read of the node's

    def location(self) -> str:
        """Where the run is; a lifted input by its names."""
        number = self.rows[self.current.name].ordinal if self.current is not None else None
        lifted = next((row for row in self.record.inputs if row.graph_node == number), None)
        return super().location() if lifted is None else self.record.input_label(lifted)

    def failure(self, error: Exception) -> CabwError:
        """What to raise for an error of the run."""
        if isinstance(error, CabwError):
            return CabwError(f"{self.location()}: {error.seen}", expected=error.expected, try_=error.try_)
        return CabwError(
            f"this graph cannot be run on watched tensors: {self.location()} raised {type(error).__name__}: {error}",
            expected="a graph that PyTorch can run again, and code in it that takes tensors of a subclass",
            try_="cap.replay(), which runs on the tensors as they are: where it fails too, it is not the watching",
        )

    def _is_read(self, row: GraphNode) -> bool:
        """Whether a node's result is a tensor that others compute with."""
        if row.kind == "lifted_input":  # a leaf that is only accumulated into is not read
            return any(self.record.graph_nodes[user].kind != "accumulate_grad" for user in row.users)
        return row.kind not in PLUMBING


def audit(captured: Captured, hooks: HookPolicy = "run") -> Audit:
    """Run a captured graph once on watched tensors; see `Replay` for what is left out and what fires again.

    Raises:
        CabwError: as `Replay`, and where a tensor cannot be watched.
    """
    replay = Replay(captured, hooks=hooks)
    auditing = Auditing(replay.graph)
    try:
        gradients = replay.run(auditing)
    finally:
        auditing.watch.over = True  # a tensor that a hook kept is the real one from here on
    return Audit(auditing.watch.touches(), unwatched(gradients))
