"""Why a backward cannot be lowered, in words."""

from __future__ import annotations

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError

COMPILED = "symbolically trace a dynamo-optimized function"
"""What Dynamo says where a compiled function is called in a trace."""

LEAVES_TORCH = (
    "not supported for tensor subclasses",  # .numpy(), .tolist()
    "data pointer",
    "does not have storage",
    "doesn't have storage",
)
"""What PyTorch says where a stand-in is asked for its memory."""


def nested() -> CabwError:
    """For a backward that runs another one, which accumulates."""
    return CabwError(
        "a backward of its own accumulates into .grad (a reentrant checkpoint does)",
        expected="nothing but gradients that are returned",
        try_="torch.utils.checkpoint(..., use_reentrant=False)",
    )


def refusal(place: str, error: Exception, *, symbolic: bool) -> CabwError:
    """Why a trace failed, at which autograd node."""
    head = f"this backward cannot be lowered: {place}"
    text = str(error)
    if isinstance(error, CabwError):
        return CabwError(f"{head}: {error.seen}", expected=error.expected, try_=error.try_)
    if isinstance(error, torch_adapter.UNTRACEABLE) or "data-dependent" in text:
        return CabwError(
            f"{head} asks for a tensor's values, on which the graph would hang ({_first_line(error)})",
            expected="ops whose shapes and Python code do not hang on values",
            try_='hooks="drop" where it is a hook; cap.replay(), which runs on real tensors',
        )
    if isinstance(error, torch_adapter.NO_FAKE_KERNEL):
        return CabwError(
            f"{head} calls {_first_line(error)}, an op that has no fake kernel",
            expected="ops that compute their outputs' shapes without values",
            try_="torch.library.register_fake for an op of your own",
        )
    if COMPILED in text:
        return CabwError(
            f"{head} calls a compiled function, whose kernels cannot be traced",
            expected="backwards that run ops; the backward of a compiled region is lowered as its graph",
            try_='hooks="drop" where it is a hook; a checkpoint around code that is not compiled',
        )
    if any(word in text for word in LEAVES_TORCH):
        return CabwError(
            f"{head} leaves torch: {type(error).__name__}: {_first_line(error)}",
            expected="code that computes with torch's ops alone",
            try_='hooks="drop" where it is a hook; torch.library.custom_op around code that uses numpy or pointers',
        )
    if symbolic and "symbolic" in text:
        return CabwError(
            f"{head} insists on sizes that are numbers: {type(error).__name__}: {_first_line(error)}",
            expected="ops that take symbolic sizes",
            try_="cap.lower(symbolic=False), for the captured sizes alone",
        )
    return CabwError(
        f"{head} raised {type(error).__name__} on stand-ins: {text}",
        expected="a graph that PyTorch can run again, and code in it that takes stand-ins for tensors",
        try_="cap.replay(), which runs on real tensors: where it fails too, it is not the lowering",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
