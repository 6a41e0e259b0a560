"""Frames of PyTorch's own code, by which the package tells on whose behalf a tensor is read."""

from __future__ import annotations

from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
import torch.fx
from torch._dynamo import compiled_autograd

from cabw_viz.torch_adapter.graph_calls import call_backward, call_hook


def is_call_wrapper(code: CodeType) -> bool:
    """Whether code of torch's only passes a graph node's arguments to the function that the node calls."""
    return code in _WRAPPERS or code.co_filename == _INTERPRETER


_WRAPPERS = frozenset({compiled_autograd.Op.__call__.__code__, call_backward.__code__, call_hook.__code__})

_INTERPRETER = torch.fx.Interpreter.run.__code__.co_filename


def is_called_by_name(operator: Any, frame: FrameType | None) -> bool:
    """Whether Python code has called an op by its name, as the frames at its dispatch show.

    Args:
        operator: the op.
        frame: the innermost frame to look at.
    """
    while frame is not None and frame.f_code.co_filename in _AROUND_MODES:
        frame = frame.f_back
    called = frame is not None and frame.f_code is torch._ops.OpOverload.__call__.__code__
    return called and frame is not None and frame.f_locals.get("self") is operator


def is_dispatch_code(code: CodeType) -> bool:
    """Whether code of torch's only carries a call from C++ to Python and back."""
    return code.co_filename.startswith(_DISPATCH)


def backward_maker(file: str) -> str:
    """Which function of torch's in this file makes backwards for its own ends; empty for none.

    `torch.func` computes its gradients by them, and higher-order operators (`scan`) trace them in their forward.
    """
    if file == _TRANSFORMS:
        return "torch.func"
    return Path(file).stem if file.startswith(_HIGHER_ORDER) else ""


_FOLDER = Path(torch.__file__).parent
_TRANSFORMS = str(_FOLDER / "_functorch" / "eager_transforms.py")
_HIGHER_ORDER = f"{_FOLDER / '_higher_order_ops'}/"

_AROUND_MODES = tuple(str(Path(torch.__file__).parent / path) for path in ("_compile.py", "_dynamo/eval_frame.py"))

_DISPATCH = _AROUND_MODES + tuple(
    str(Path(torch.__file__).parent / path)
    for path in (
        "_ops.py",
        "_subclasses/",
        "autograd/graph.py",
        "fx/experimental/proxy_tensor.py",
        "utils/_python_dispatch.py",
        "utils/_pytree.py",
    )
)
