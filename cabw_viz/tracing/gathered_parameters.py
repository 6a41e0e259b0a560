"""Copies of the parameters that a backward reads while a framework has them gathered (FSDP).

Between uses the gathered memory is freed, before the backward and after it: a captured graph would read what is no
longer there. FSDP gathers a module's parameters in a hook on the gradients of the module's outputs; a pre-hook of an
autograd node runs behind the hooks on its gradients (`call_tensor_pre_hooks`, then `call_pre_hooks`, in
torch/csrc/autograd/engine.cpp), and so sees what the node will read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import warn
from cabw_viz.record.model import CaptureRecord, LiftedInput
from cabw_viz.runtime.capture_state import CaptureState
from cabw_viz.runtime.tensor_state import copy_of
from cabw_viz.tracing.leaves import variables_of
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes


@contextmanager
def gathered_parameters(
    state: CaptureState, record: CaptureRecord, numbering: NumberedNodes, names: Names
) -> Iterator[None]:
    """A context for the user's run; at its end the capture has copies of the gathered parameters among its inputs.

    Args:
        state: of the capture.
        record: of the capture.
        numbering: its autograd nodes.
        names: of the tensors of the subject.
    """
    if state.arguments is None or torch_adapter.SHARDING.isdisjoint(record.frameworks):
        yield
        return
    copies: dict[int, Any] = {}
    handles: list[Any] = []
    try:
        try:
            for row in _parameters(state, record, numbering, names):
                tensor = state.arguments.inputs[row.index]
                if not torch_adapter.is_freed(tensor):
                    copies[row.index] = _copy(tensor)
                    continue
                for number in sorted(_readers(record, row)):
                    if numbering.nodes[number] is not ROOT:
                        hook = _copying(copies, row.index, tensor)
                        handles.append(numbering.nodes[number].register_prehook(hook))
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must be made
            warn(f"sharded parameters were not copied ({type(error).__name__}: {error}); replays will refuse")
        yield
    finally:
        for handle in handles:
            handle.remove()
        if state.arguments is not None:
            state.arguments = state.arguments.with_inputs(copies)


def _parameters(
    state: CaptureState, record: CaptureRecord, numbering: NumberedNodes, names: Names
) -> Iterator[LiftedInput]:
    """The inputs that are read and freed, or that share memory with a parameter."""
    assert state.arguments is not None  # the caller has looked
    leaves = [leaf for leaf in variables_of(record.leaves, numbering) if leaf is not None]
    named = [tensor for _, tensor in names.named_tensors()]
    storages = {key for tensor in (*leaves, *named) for key, _ in torch_adapter.storages_of(tensor)}
    for row in record.inputs:
        tensor = state.arguments.inputs[row.index]
        if record.is_only_accumulated(row):
            continue
        is_parameter = bool(row.names or row.view_of)  # FSDP1's root is gathered, and its parameter a shard already
        if (
            is_parameter
            or torch_adapter.is_freed(tensor)
            or any(key in storages for key, _ in torch_adapter.storages_of(tensor))
        ):
            yield row


def _readers(record: CaptureRecord, row: LiftedInput) -> set[int]:
    """Numbers of the autograd nodes that read an input."""
    users = (record.graph_nodes[user] for user in record.graph_nodes[row.graph_node].users)
    return {user.autograd_node for user in users if user.autograd_node is not None}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that the user's modes do not see."""
    with torch_adapter.without_any_torch_function(), torch_adapter.unseen_operators():
        copy: torch.Tensor = copy_of(tensor)
    return copy


def _copying(copies: dict[int, Any], index: int, tensor: torch.Tensor) -> Callable[..., None]:
    """A hook that copies a tensor when it is there; it changes nothing, and raises nothing."""

    def hook(*_: Any) -> None:
        if index in copies:
            return
        try:
            if not torch_adapter.is_freed(tensor):
                copies[index] = _copy(tensor)
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must go on
            copies[index] = tensor
            warn(f"a sharded parameter was not copied ({type(error).__name__}: {error}); replays will refuse")

    return hook
