"""The callbacks of compiled autograd's tracer: the argument lists that the package knows, and fallback answers.

C++ calls them by position (`torch/csrc/dynamo/python_compiled_autograd.cpp`). A PyTorch that renames a callback, or
moves an argument, needs a change here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch._dynamo import compiled_autograd

TracerBase = compiled_autograd.AutogradCompilerInstance

_HOME = compiled_autograd.make_compile_context.__code__.co_filename


def is_unpatched_tracer() -> bool:
    """Whether all of the tracer class is PyTorch's own code; a patch may be older than the import of this package."""
    return all(map(_is_own, vars(TracerBase).values()))


def _is_own(attribute: Any) -> bool:
    function = attribute.__func__ if isinstance(attribute, staticmethod | classmethod) else attribute
    return not callable(function) or getattr(getattr(function, "__code__", None), "co_filename", "") == _HOME


Answer = Callable[[Any, Mapping[str, Any]], Any]
"""Makes a fallback answer of the tracer and the callback's arguments by name."""


@dataclass(frozen=True)
class Callback:
    """One callback: its known argument lists (torch 2.8 to 2.15), and its answer once a trace has failed."""

    signatures: tuple[tuple[str, ...], ...]
    fallback: Answer | None = None
    """Tensors of no meaning, as many as C++ expects; None for callbacks that may raise."""


def _callback(*signatures: str, fallback: Answer | None = None) -> Callback:
    return Callback(tuple(tuple(names.split()) for names in signatures), fallback)


def _dummies(tracer: Any, expected: Sequence[Any]) -> list[Any]:
    return [tracer.allocate_dummy() for _ in expected]


_BACKWARD = "inputs output_metadatas saved_tensors backward_idx ctx maybe_backward_state_idx"

CALLBACKS: dict[str, Callback] = {
    "begin_capture": _callback("inputs sizes scalars origins accumulate_grad check_nans"),
    "remove_unused_sizes": _callback(""),
    "end_capture": _callback("outputs"),
    "set_node_origin": _callback("node_name nodecall_index pyobj", fallback=lambda _, __: None),
    "apply_functional": _callback(
        "fn_name grads args output_metadata",
        fallback=lambda tracer, call: _dummies(tracer, call["output_metadata"]),
    ),
    "proxy_call_backward": _callback(
        _BACKWARD,
        f"{_BACKWARD} opaque_object_indices",  # since 2.11
        fallback=lambda tracer, call: tuple(
            None if entry is None else tracer.allocate_dummy() for entry in call["output_metadatas"]
        ),
    ),
    "call_copy_slices_prologue": _callback(
        "inputs base_sizes base_strides base_storage_offset view_sizes view_strides view_storage_offset",
        fallback=lambda tracer, _: _dummies(tracer, range(3)),
    ),
    "call_copy_slices_epilogue": _callback(
        "needs_input_grad result res grad_slice",
        fallback=lambda tracer, call: _dummies(tracer, call["needs_input_grad"]),
    ),
    "validate_outputs": _callback("_ outputs args output_metadata", fallback=lambda _, call: call["outputs"]),
    "accumulate": _callback("old_var new_var", fallback=lambda tracer, _: tracer.allocate_dummy()),
    "accumulate_grad": _callback(
        "variable grad has_post_hooks",
        "variable variable_grad grad has_post_hooks",  # since 2.13
        fallback=lambda tracer, call: tracer.allocate_dummy_like(call["variable"]),
    ),
    "tensor_pre_hook": _callback("inputs hook_id i", fallback=lambda _, call: call["inputs"]),
    "cpp_tensor_pre_hook": _callback("inputs hook_id i", fallback=lambda _, call: call["inputs"]),
    "pre_hook": _callback("inputs hook_id", fallback=lambda _, call: call["inputs"]),
    "post_hook": _callback("outputs inputs hook_id", fallback=lambda _, call: call["outputs"]),
    "post_acc_grad_hook": _callback("input hook_id", fallback=lambda _, call: [call["input"]]),
    "unpack_hook": _callback("hook_id data_id", fallback=lambda tracer, _: tracer.allocate_dummy()),
}
"""The callbacks that the package overrides, by name. `check()` compares their arguments with PyTorch's."""

GUARDED_CALLBACKS = tuple(name for name, callback in CALLBACKS.items() if callback.fallback is not None)
"""The callbacks that must not raise before the last node has been put back; each has a fallback answer."""

_CTX = CALLBACKS["proxy_call_backward"].signatures[0].index("ctx")


def fallback_answer(name: str, tracer: Any, args: Sequence[Any]) -> Any:
    """What a guarded callback returns once the trace has failed."""
    callback = CALLBACKS[name]
    assert callback.fallback is not None
    names = next((known for known in callback.signatures if len(known) == len(args)), callback.signatures[-1])
    return callback.fallback(tracer, dict(zip(names, args, strict=False)))


def ctx_of_backward(args: Sequence[Any]) -> Any:
    """The context of the Python Function whose backward `proxy_call_backward` was called for."""
    return args[_CTX]
