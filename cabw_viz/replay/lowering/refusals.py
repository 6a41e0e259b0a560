"""Why a backward cannot be lowered: the errors of a trace that failed."""

from __future__ import annotations

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError

COMPILED = "symbolically trace a dynamo-optimized function"
"""In the message of Dynamo's error for a compiled function that is called in a trace."""

LEAVES_TORCH = (
    "not supported for tensor subclasses",  # .numpy(), .tolist()
    "data pointer",
    "its data is not allocated yet",
    "does not have storage",
    "doesn't have storage",
)
"""In the messages of PyTorch's errors for reading the memory of a stand-in."""


def reads_memory(error: Exception) -> bool:
    """Whether an error is one for reading the memory of a stand-in."""
    return any(words in str(error) for words in LEAVES_TORCH)


def nested_backward_error() -> CabwError:
    """The error for a backward that starts another one, which accumulates."""
    return CabwError(
        "a backward of its own accumulates into .grad (a reentrant checkpoint does)",
        expected="nothing but gradients that are returned",
        try_="torch.utils.checkpoint(..., use_reentrant=False)",
    )


OTHER_FORWARDS = {"GroupedMmBackward": 'experts_implementation="eager" where the model is one of transformers\''}
"""Nodes whose fake kernel refuses what the real one takes (float32, torch 2.13): a forward that makes others."""


def explain_lowering_error(place: str, error: Exception, *, works_with_numbers: bool, pytorchs: str) -> CabwError:
    """The error of a trace that failed: at which autograd node, and why.

    Args:
        place: the autograd node and the graph node at which it failed.
        error: what was raised there.
        works_with_numbers: whether the backward can be lowered for the captured sizes alone.
        pytorchs: the name of the autograd node, if it is one of PyTorch's own.
    """
    head = f"this backward cannot be lowered: {place}"
    text = str(error)
    if isinstance(error, CabwError):
        return CabwError(f"{head}: {error.seen}", expected=error.expected, try_=error.try_)
    if works_with_numbers:
        return CabwError(
            f"{head} takes sizes only as numbers: {type(error).__name__}: {_first_line(error)}",
            expected="ops that take symbolic sizes",
            try_="cap.lower(symbolic=False), for the captured sizes alone",
        )
    if isinstance(error, torch_adapter.UNTRACEABLE) or "data-dependent" in text:
        return CabwError(
            f"{head} reads a tensor's values, on which the graph would depend ({_first_line(error)})",
            expected="ops whose shapes and Python code do not depend on values",
            try_='hooks="drop" where it is a hook; cap.replay(), which runs on real tensors',
        )
    if isinstance(error, torch_adapter.NO_FAKE_KERNEL):
        own = "; torch.library.register_fake for an op of your own"
        return CabwError(
            f"{head} calls {_first_line(error)}, an op that has no fake kernel",
            expected="ops that compute their outputs' shapes without values",
            try_=f"cap.replay(), which runs on real tensors{'' if pytorchs else own}",
        )
    if COMPILED in text:
        return CabwError(
            f"{head} calls a compiled function, whose kernels cannot be traced",
            expected="backwards that run ops; the backward of a compiled region is lowered as its graph",
            try_='hooks="drop" where it is a hook; a checkpoint around code that is not compiled',
        )
    if reads_memory(error):
        return CabwError(
            f"{head} leaves torch: {type(error).__name__}: {_first_line(error)}",
            expected="code that computes with torch's ops alone, and reads no tensor's memory itself",
            try_="cap.replay(), which runs on real tensors; where it is code of yours, torch.library.custom_op around "
            'what uses numpy or pointers; hooks="drop" where it is a hook',
        )
    if pytorchs:
        other = next((way for name, way in OTHER_FORWARDS.items() if pytorchs.startswith(name)), "other operators")
        return CabwError(
            f"{head}: PyTorch cannot trace this node: {type(error).__name__}: {_first_line(error)}",
            expected="operators that take stand-ins for all tensors that they take themselves",
            try_=f"cap.replay(), which runs on real tensors; in the forward, {other}",
        )
    return CabwError(
        f"{head} raised {type(error).__name__} on stand-ins: {text}",
        expected="a graph that PyTorch can run again, and code in it that takes stand-ins for tensors",
        try_="cap.replay(), which runs on real tensors: where it fails too, it is not the lowering",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
