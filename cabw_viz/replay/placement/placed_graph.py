"""A captured graph placed at a target: its constants, inputs and hooks are those of the device and dtype there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.options import HookPolicy
from cabw_viz.replay.placement.closure_tensors import check_closure_tensors, with_unpacking
from cabw_viz.replay.placement.device_dtype_map import DeviceDtypeMap
from cabw_viz.replay.placement.out_of_memory import oom_as_cabw_error
from cabw_viz.replay.placement.preserve_grad import preserving_grad_fields
from cabw_viz.replay.placement.retarget_graph import NO_CHANGES, GraphChanges
from cabw_viz.replay.placement.retarget_mode import RetargetMode
from cabw_viz.replay.placement.target import AS_CAPTURED, Target
from cabw_viz.replay.user_state.guard import unchanged_user_state
from cabw_viz.runtime.bit_sums import bit_sums
from cabw_viz.runtime.capture_state import Arguments, RunnableCapture, ThreadState
from cabw_viz.runtime.recomputation import Recomputation
from cabw_viz.runtime.tensor_state import version_of
from cabw_viz.runtime.user_objects import UserObjects


@dataclass(frozen=True)
class PlacedGraph:
    """A captured graph and what it runs on, at a target."""

    record: CaptureRecord
    module: torch.fx.GraphModule
    """As it was captured, whatever the target."""
    arguments: Arguments
    thread_state: ThreadState
    recomputation: Recomputation
    hooks: HookPolicy
    target: Target = AS_CAPTURED
    """Device and dtype alone; the backend is nothing to the graph."""
    changes: GraphChanges = NO_CHANGES
    """What differs in `module` at the target."""
    mapping: DeviceDtypeMap | None = None
    """None where nothing moves."""
    mode: RetargetMode | None = None
    users: UserObjects | None = None
    """The user's modules and leaves, which a run leaves as they are."""

    @property
    def needs_tracing(self) -> bool:
        """Whether the graph is only right with `mode` between it and the kernels, which a compiler would not see.

        Dtypes are mapped there, and kernels replaced that the device does not have.
        """
        return self.target.dtype is not None or (self.mapping is not None and self.mapping.relocates)

    @property
    def decomposed(self) -> tuple[str, ...]:
        """Operators that have been computed by their formula so far, for want of a kernel."""
        return () if self.mode is None else tuple(self.mode.decomposed)

    @property
    def call_args(self) -> tuple[Any, ...]:
        """The arguments of one run: copies of the lists, for a run pops what it has used, and hooks may edit them."""
        a = self.arguments
        return a.run_inputs, list(a.sizes), list(a.scalars), a.hooks, a.packed_data

    @contextmanager
    def execution_context(self) -> Iterator[None]:
        """A context to run the graph in."""
        autocast = self.thread_state.autocast
        if self.target.dtype is not None:
            autocast = ()  # everything is in that dtype; autocast would make it another
        elif self.mapping is not None:
            autocast = tuple((self.mapping.device(torch.device(kind)).type, dtype) for kind, dtype in autocast)
        with ExitStack() as stack:
            stack.enter_context(unchanged_user_state(self.users, self.record))
            stack.enter_context(replace(self.thread_state, autocast=autocast).restored())
            stack.enter_context(torch_adapter.compiled_autograd_off())
            stack.enter_context(preserving_grad_fields())
            stack.enter_context(_preserved_random_state(self.target.device))
            stack.enter_context(self.recomputation.running())
            if self.mode is not None:
                stack.enter_context(self.mode)
            yield


@contextmanager
def _preserved_random_state(device: torch.device | None) -> Iterator[None]:
    """A context after which a device draws what it would have drawn without it."""
    if device is None or device.type not in ("cuda", "xpu"):
        yield
        return
    index = device.index
    if index is None:  # that of a bare `cuda`
        index = torch.accelerator.current_device_index()  # type: ignore[unreachable]  # torch's stub knows no None
    with torch.random.fork_rng([index], device_type=device.type):
        yield


def place(capture: RunnableCapture, target: Target, hooks: HookPolicy) -> PlacedGraph:
    """The graph of a capture at a target.

    Raises:
        CabwError: something in it cannot go there.
    """
    record, graph, arguments = capture.record, capture.graph, capture.arguments
    if not target.moves:
        return PlacedGraph(
            record, graph, arguments, capture.thread_state, capture.recomputation, hooks, target, users=capture.users
        )
    mapping = DeviceDtypeMap(target, arguments.inputs)
    check_closure_tensors(capture, mapping, hooks=hooks == "run")
    mode = RetargetMode(mapping)
    inputs = _moved_inputs(record, arguments.inputs, mapping)
    moved = replace(
        arguments,
        inputs=inputs,
        hooks=with_unpacking(graph, arguments, mapping, mode.paused),
        versions=tuple(map(version_of, inputs)),
        bits=bit_sums(inputs),
    )
    return PlacedGraph(
        record,
        graph,
        moved,
        capture.thread_state,
        capture.recomputation,
        hooks,
        target,
        GraphChanges.for_target(graph, mapping),
        mapping,
        mode,
        capture.users,
    )


def _moved_inputs(record: CaptureRecord, inputs: list[Any], mapping: DeviceDtypeMap) -> list[Any]:
    """The inputs at the target.

    Left where they are: those that only accumulations read, which a replay leaves out; whole numbers that a kernel
    reads on the host.
    """
    unread = {
        row.index
        for row in record.inputs
        if record.is_only_accumulated(row)
        or (_read_on_the_host(record, row.graph_node) and not inputs[row.index].is_floating_point())
    }
    wanted = [None if index in unread else tensor for index, tensor in enumerate(inputs)]

    def activity() -> str:
        lifted = next((row for row in record.inputs if row.index == mapping.current), None)
        return f"{'the inputs' if lifted is None else record.input_label(lifted)} was being moved"

    with oom_as_cabw_error(activity, mapping.target.device):
        moved = mapping.tensors(wanted)
    return [inputs[index] if index in unread else tensor for index, tensor in enumerate(moved)]


ON_THE_HOST = frozenset({"ops.PackPaddedSequenceBackward0"})
"""Nodes that take the lengths of sequences from a tensor on the CPU, wherever the sequences are."""


def _read_on_the_host(record: CaptureRecord, graph_node: int) -> bool:
    users = record.graph_nodes[graph_node].users
    return any(record.graph_nodes[user].target in ON_THE_HOST for user in users)
