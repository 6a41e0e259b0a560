"""Activation checkpoints without reentrant backwards: what they run again, and how often.

Read in `torch/utils/checkpoint.py`. The hook that unpacks a saved tensor closes over the frame of its checkpoint, and
the frame holds the function that computes the saved tensors again. Outside of the engine it does so for each saved
tensor, unless a `GraphExecGroup` is active (torch 2.10 and later).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree, checkpoint

_GROUP: Any = getattr(checkpoint, "GraphExecGroup", None)
_FRAME: Any = getattr(checkpoint, "_CheckpointFrame", ())
_KEPT: Any = getattr(checkpoint, "_VersionWrapper", None)
_CACHED: Any = getattr(checkpoint, "_CachedTorchDispatchMode", ())


def checkpoint_frame(hook: Any) -> Any:
    """The frame of the checkpoint whose saved tensor a hook unpacks; None for any other hook."""
    values = [_content(cell) for cell in getattr(hook, "__closure__", None) or ()]
    return next((value for value in values if isinstance(value, _FRAME)), None)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def recomputed_objects(frame: Any) -> Iterator[Any]:
    """What a checkpoint runs again, and with which arguments that are no tensors."""
    yield frame.recompute_fn
    saver = getattr(getattr(frame, "input_saver", None), "get_args", None)  # of an autograd node, in earlier releases
    earlier = [_content(cell) for cell in getattr(saver, "__closure__", None) or ()]
    for argument in (*getattr(frame, "saved_args", ()), *earlier):
        if not isinstance(argument, torch.Tensor | torch._C._autograd.SavedTensor):
            yield argument


def kept_results(frame: Any) -> dict[Any, Any] | None:
    """What a selective checkpoint keeps of its forward, by operator; used up by one backward. None for any other."""
    closure = getattr(frame.recompute_fn, "__closure__", None) or ()
    mode = next((value for value in map(_content, closure) if isinstance(value, _CACHED)), None)
    return None if mode is None else mode.storage


def kept_tensors(kept: dict[Any, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """(operator, tensor) of all that a selective checkpoint keeps."""
    for operator, results in kept.items():
        for entry in _pytree.tree_leaves(results):
            value = getattr(entry, "val", None)
            if isinstance(value, torch.Tensor):
                yield str(operator), value


def unused_results(kept: dict[Any, Any]) -> dict[Any, Any]:
    """The same results for another backward: one uses them up, and writes to the versions of views among them."""

    def unused(entry: Any) -> Any:
        return _KEPT(entry.val.data) if isinstance(getattr(entry, "val", None), torch.Tensor) else entry

    return {operator: _pytree.tree_map(unused, results) for operator, results in kept.items()}


@contextmanager
def one_recomputation() -> Iterator[Any]:
    """A context in which each checkpoint runs its function again once; yields the key of what it makes, or None.

    A `GraphExecGroup` of the user's is set aside, for each may unpack a saved tensor once only.
    """
    if _GROUP is None:
        yield None
        return
    before = torch._C._get_graph_exec_group()
    torch._C._set_graph_exec_group(None)
    try:
        with _GROUP() as group:
            yield group
    finally:
        torch._C._set_graph_exec_group(before)


def drop_recomputed(group: Any, frames: Iterable[Any], packed: Iterable[Any]) -> None:
    """Drop what checkpoints have computed again in a context and nothing has unpacked."""
    for frame in frames:
        for table in (frame.recomputed, frame.recomp_counter, frame.is_recomputed):
            table.pop(group, None)
    for holder in packed:
        handles = getattr(holder, "handles", None)
        if isinstance(handles, dict):
            handles.pop(group, None)
