"""What each node of a captured graph reads when it really runs."""

from __future__ import annotations

from typing import Any

import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.kinds import PLUMBING
from cabw_viz.record.model import CaptureRecord, GraphNode, Touch
from cabw_viz.record.options import HookPolicy
from cabw_viz.replay.placement.labels import input_label
from cabw_viz.replay.runner import GradientCollector, run, said
from cabw_viz.replay.watched import Watch, unwatched
from cabw_viz.runtime.capture_state import CaptureState


class Auditing(GradientCollector):
    """Interprets a captured graph on watched tensors.

    call_function   reads count while a node's call runs, and not in between; tensors go watched from node to node,
    │               but plain into what goes before a compiled region's backward, which checks their class
    └─ GradientCollector   as in a replay
    """

    def __init__(self, graph: torch.fx.GraphModule, record: CaptureRecord, hooks: HookPolicy) -> None:
        super().__init__(graph, record, hooks)
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

    def place(self) -> str:
        """Where the run is; a lifted input by its names."""
        number = self.rows[self.current.name].ordinal if self.current is not None else None
        lifted = next((row for row in self.record.inputs if row.graph_node == number), None)
        return super().place() if lifted is None else input_label(self.record, lifted)

    def failure(self, error: Exception) -> CabwError:
        """What to raise for an error of the run."""
        if isinstance(error, CabwError):
            return CabwError(f"{self.place()}: {error.seen}", expected=error.expected, try_=error.try_)
        return CabwError(
            f"this graph cannot be run on watched tensors: {self.place()} raised {type(error).__name__}: {said(error)}",
            expected="a graph that PyTorch can run again, and code in it that takes tensors of a subclass",
            try_="cap.replay(), which runs on the tensors as they are: where it fails too, it is not the watching",
        )

    def _is_read(self, row: GraphNode) -> bool:
        """Whether a node's result is a tensor that others compute with."""
        if row.kind == "lifted_input":  # a leaf that is only accumulated into is not read
            return any(self.record.graph_nodes[user].kind != "accumulate_grad" for user in row.users)
        return row.kind not in PLUMBING


def audit(record: CaptureRecord, live: CaptureState, *, hooks: HookPolicy = "run") -> tuple[Touch, ...]:
    """Run a captured graph once on watched tensors; see `replay` for what is left out and what fires again.

    Returns:
        What each graph node read, which ops it ran, on whose behalf, in order of first reading.

    Raises:
        CabwError: as `replay`, and where a tensor cannot be watched.
    """
    return audited(record, live, hooks=hooks)[0]


def audited(
    record: CaptureRecord, live: CaptureState, *, hooks: HookPolicy = "run"
) -> tuple[tuple[Touch, ...], dict[int, torch.Tensor]]:
    """An audit, and the gradients of its run by leaf."""
    watches: list[Watch] = []

    def auditing(*args: Any) -> Auditing:
        interpreter = Auditing(*args)
        watches.append(interpreter.watch)
        return interpreter

    try:
        found = run(record, live, auditing, hooks)
    finally:
        for watch in watches:
            watch.over = True  # a tensor that a hook kept is the real one from here on
    return watches[0].touches(), unwatched(found)
