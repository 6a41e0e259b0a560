"""Activation checkpoints without reentrant backwards: what they run again, and how often.

Read in `torch/utils/checkpoint.py`. The hook that unpacks a saved tensor closes over the frame of its checkpoint, and
the frame holds the function that computes the saved tensors again. Outside of the engine it does so for each saved
tensor, unless a `GraphExecGroup` is active (torch 2.10 and later).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree, checkpoint

from cabw_viz.torch_adapter.functions import closure_values

_GROUP: Any = getattr(checkpoint, "GraphExecGroup", None)
_FRAME: Any = getattr(checkpoint, "_CheckpointFrame", ())
_KEPT: Any = getattr(checkpoint, "_VersionWrapper", None)
_CACHED: Any = getattr(checkpoint, "_CachedTorchDispatchMode", ())


def checkpoint_frame(hook: Any) -> Any:
    """The frame of the checkpoint whose saved tensor a hook unpacks; None for any other hook."""
    return next((value for _, value in closure_values(hook) if isinstance(value, _FRAME)), None)


def recomputed_objects(frame: Any) -> Iterator[Any]:
    """What a checkpoint runs again, and with which arguments that are no tensors."""
    yield frame.recompute_fn
    saver = getattr(getattr(frame, "input_saver", None), "get_args", None)  # of an autograd node, in earlier releases
    earlier = [value for _, value in closure_values(saver)]
    for argument in (*getattr(frame, "saved_args", ()), *earlier):
        if not isinstance(argument, torch.Tensor | torch._C._autograd.SavedTensor):
            yield argument


@dataclass(frozen=True)
class KeptResults:
    """What a selective checkpoint keeps of its forward, by operator, for one backward to use up.

    One backward also writes to the versions of views among the kept tensors, and to the tensors themselves where
    `allow_cache_entry_mutation` says so. Only then are they copied.
    """

    storage: dict[Any, Any]
    at_capture: dict[Any, Any]
    are_written: bool

    @classmethod
    def of(cls, frame: Any) -> KeptResults | None:
        """As they are before any backward; None for a checkpoint that is not selective."""
        mode = next((value for _, value in closure_values(frame.recompute_fn) if isinstance(value, _CACHED)), None)
        if mode is None:
            return None
        are_written = bool(getattr(mode, "allow_cache_entry_mutation", False))
        return cls(mode.storage, _unused(mode.storage, copied=are_written), are_written)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(operator, tensor) of those whose bits must stay."""
        for operator, results in {} if self.are_written else self.storage.items():
            for entry in _pytree.tree_leaves(results):
                value = getattr(entry, "val", None)
                if isinstance(value, torch.Tensor):
                    yield str(operator), value

    @contextmanager
    def unused(self) -> Iterator[None]:
        """A context in which a backward can use them up; afterwards the checkpoint keeps what it kept before."""
        before = dict(self.storage)
        _replace_content(self.storage, _unused(self.at_capture, copied=self.are_written))
        try:
            yield
        finally:
            _replace_content(self.storage, before)


def _unused(storage: dict[Any, Any], *, copied: bool) -> dict[Any, Any]:
    def unused(entry: Any) -> Any:
        value = getattr(entry, "val", None)
        if not isinstance(value, torch.Tensor):
            return entry
        return _KEPT(value.detach().clone() if copied else value.data)

    return {operator: _pytree.tree_map(unused, results) for operator, results in storage.items()}


def _replace_content(storage: dict[Any, Any], content: dict[Any, Any]) -> None:
    storage.clear()
    storage.update(content)


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
