"""What a test, or the package, may have left switched on in this process.

`remaining` only looks; `remove` puts back what it can, so that one test's leftover does not fail all that follow.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch._dynamo
import torch._guards
import torch.autograd.graph
from torch._dynamo import compiled_autograd, convert_frame, eval_frame
from torch._dynamo.callback import callback_handler
from torch.utils import _python_dispatch

ENGINE = torch._C._dynamo.compiled_autograd
ENTRY = torch.autograd.graph._engine_run_backward
"""PyTorch's own function, if this module was imported before anything replaced it; `remaining` checks that too."""
TRACER = dict(vars(compiled_autograd.AutogradCompilerInstance))
MODULE_CALL = torch.nn.Module.__call__
SWITCH = eval_frame._maybe_set_eval_frame
COMPILE = eval_frame._TorchDynamoContext.__call__
TRACE_FRAME = getattr(convert_frame, "trace_frame", None)


def remaining() -> list[str]:
    """Everything that is not as in a new process, in words. Empty is how it should be."""
    return [text for text, is_so in _states() if is_so] + list(_gradient_is_wrong())


def forget_compiled() -> None:
    """Reset Dynamo, if it has compiled anything."""
    if convert_frame.FRAME_COUNTER:
        torch._dynamo.reset()


def _states() -> Iterator[tuple[str, bool]]:
    yield "torch.autograd._engine_run_backward is not PyTorch's own", _is_replaced(torch.autograd._engine_run_backward)
    yield (
        "torch.autograd.graph._engine_run_backward is not PyTorch's own",
        _is_replaced(ENTRY) or _is_replaced(torch.autograd.graph._engine_run_backward),
    )
    yield "a method of AutogradCompilerInstance is not PyTorch's own", _tracer() != TRACER
    yield "torch.nn.Module.__call__ is not PyTorch's own", torch.nn.Module.__call__ is not MODULE_CALL
    yield "a function of Dynamo's is not PyTorch's own", _dynamo() != (SWITCH, COMPILE, TRACE_FRAME, False)
    yield "a compiler is set in the engine", _compiler()[0] is not None
    yield "compiled_autograd_enabled is set", compiled_autograd.compiled_autograd_enabled
    yield "compiled_autograd_enabled_force_eager is set", compiled_autograd.compiled_autograd_enabled_force_eager
    yield "in_compiled_autograd_region is set", compiled_autograd.in_compiled_autograd_region
    yield "active_disable_ctx is set", compiled_autograd.active_disable_ctx
    yield "compiled autograd's depth is not 0", compiled_autograd.depth != 0
    yield "torch._dynamo.config.compiled_autograd is set", torch._dynamo.config.compiled_autograd
    yield "torch.compiler's stance is not the default", eval_frame._stance.stance != "default"
    yield "a TorchDispatchMode is on the stack", bool(_python_dispatch._get_current_dispatch_mode_stack())
    yield "a TorchFunctionMode is on the stack", torch._C._len_torch_function_stack() > 0
    yield "a CompileContext is active", torch._guards.CompileContext.try_get() is not None
    yield "a TracingContext is active", torch._guards.TracingContext.try_get() is not None
    yield "a backward is running", torch._C._current_graph_task_id() != -1
    yield "gradients are disabled", not torch.is_grad_enabled()
    yield "anomaly detection is on", torch.is_anomaly_enabled()
    yield "the engine's threads are switched off", not torch._C._is_multithreading_enabled()
    yield "saved-tensor hooks are active", torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _is_replaced(function: Callable[..., object]) -> bool:
    code = getattr(function, "__code__", None)
    return code is None or Path(code.co_filename) != Path(inspect.getfile(torch.autograd.graph))


def _tracer() -> dict[str, object]:
    return dict(vars(compiled_autograd.AutogradCompilerInstance))


def _dynamo() -> tuple[object, ...]:
    own = "install_callbacks" in vars(callback_handler)
    trace_frame = getattr(convert_frame, "trace_frame", None)
    return eval_frame._maybe_set_eval_frame, eval_frame._TorchDynamoContext.__call__, trace_frame, own


def _compiler() -> tuple[object, bool]:
    prior: tuple[object, bool] = ENGINE.set_autograd_compiler(None, False)
    ENGINE.set_autograd_compiler(*prior)
    return prior


def _gradient_is_wrong() -> Iterator[str]:
    try:
        with torch.enable_grad():
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            (x * x).sum().backward()
        gradient = None if x.grad is None else x.grad.tolist()
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
        yield f"a plain backward raises {type(error).__name__}: {error}"
    else:
        if gradient != [2.0, 4.0]:
            yield f"a plain backward gives {gradient}, not [2.0, 4.0]"


def remove() -> None:
    """Puts back what Python can reach; modes and contexts of others stay."""
    torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward = ENTRY
    torch.nn.Module.__call__ = MODULE_CALL
    eval_frame._maybe_set_eval_frame, eval_frame._TorchDynamoContext.__call__ = SWITCH, COMPILE
    if TRACE_FRAME is not None:
        convert_frame.trace_frame = TRACE_FRAME
    vars(callback_handler).pop("install_callbacks", None)
    for name, value in _tracer().items():
        if TRACER.get(name) is not value and not name.startswith("__"):
            if name in TRACER:
                setattr(compiled_autograd.AutogradCompilerInstance, name, TRACER[name])
            else:
                delattr(compiled_autograd.AutogradCompilerInstance, name)
    compiled_autograd.compiled_autograd_enabled_force_eager = False
    compiled_autograd.in_compiled_autograd_region = False
    compiled_autograd.active_disable_ctx = False
    compiled_autograd.depth = 0
    compiled_autograd.reset()
    torch._dynamo.config.compiled_autograd = False
    torch.set_grad_enabled(True)
    torch.autograd.set_detect_anomaly(False)
    torch._C._set_multithreading_enabled(True)
