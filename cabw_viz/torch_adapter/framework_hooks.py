"""Hooks and Functions of training frameworks, which change the model while a backward runs.

They gather parameters, resize storages, assign `.data`, step optimizers, queue callbacks in the engine, and wait for
other processes: right once, in the user's own backward, and never again. A capture keeps a stand-in for each, which
passes gradients on as they are, so that no later run can call the framework's own.

What this cannot see: hooks of a framework that is not in the table, which are taken for the user's own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CodeType
from typing import Any

from cabw_viz.torch_adapter.functions import closure_values

FRAMEWORKS: dict[str, str] = {
    "torch.distributed.tensor": "",  # DTensor: its hooks compute
    "torch.distributed.fsdp": "FSDP",
    "torch.nn.parallel": "DistributedDataParallel",
    "torch.distributed": "torch.distributed",  # optimizers in the backward, pipelines, trackers of memory
    "torch._functorch": "AOTAutograd",  # notes stacks while it traces
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron",
    "fairscale": "FairScale",
    "colossalai": "ColossalAI",
}
"""Packages whose hooks are a framework's, the innermost first; its name, empty for hooks that run like the user's."""

SHARDING = frozenset({"FSDP", "DeepSpeed", "FairScale", "ColossalAI"})
"""Frameworks that free parameters between uses, and gather them when a module is called."""

REDUCING = SHARDING | {"DistributedDataParallel", "Megatron"}
"""Frameworks whose hooks reduce gradients over processes."""

PASSING_ON: dict[tuple[str, str], int] = {
    ("torch.distributed.fsdp", "RegisterPostBackwardFunction"): 1,
    ("torch.distributed.fsdp", "RegisterPreBackwardFunction"): 1,
    ("torch.nn.parallel", "_DDPSink"): 1,
}
"""Functions whose backward passes its gradients on, by package and class: after how many None."""

_WRAPPERS = ("torch.autograd.graph", "torch.utils.hooks", "torch._dynamo", "torch.nn.modules.module")
"""Modules of functions that call a hook of others, which is in their closure."""

_DEEPEST = 3
"""How many functions within functions are searched."""


class FrameworkHook:
    """Stands for a hook of a framework; changes nothing.

    Args:
        hook: what it stands for; not kept.
        framework: name of the framework.
    """

    def __init__(self, hook: Any, framework: str) -> None:
        self.framework = framework
        self.described = innermost(hook)
        """The framework's own function, without the object that it is bound to: for its name and place."""

    def __call__(self, *_: Any) -> None:
        """Leave the gradient as it is."""


class FrameworkContext:
    """Stands for the ctx of a framework's Function; its backward passes gradients on.

    Args:
        framework: name of the framework.
        before: how many arguments without gradient come first.
    """

    def __init__(self, framework: str, before: int) -> None:
        self.framework = framework
        self._forward_cls = _passing_on(before)


def _passing_on(before: int) -> type:
    """What `call_backward` reads of a ctx: a class with a static `backward`."""

    class PassingOn:
        @staticmethod
        def backward(_: Any, *gradients: Any) -> tuple[Any, ...]:
            return (*[None] * before, *gradients)

    return PassingOn


def without_framework(lifted: Any) -> Any:
    """A hook or ctx of a captured graph, or the stand-in for one of a framework."""
    function = getattr(lifted, "_forward_cls", None)
    if function is not None:
        before, framework = _passed_on(function)
        return lifted if before is None else FrameworkContext(framework, before)
    framework = framework_of(lifted)
    return FrameworkHook(lifted, framework) if framework else lifted


def _passed_on(function: type) -> tuple[int | None, str]:
    for (package, name), before in PASSING_ON.items():
        if name == function.__name__ and _is_in(function.__module__, package):
            return before, FRAMEWORKS[package]
    return None, ""


def framework_of(hook: Any) -> str:
    """The framework that a hook belongs to; empty for any other."""
    names = (_framework(_module_of(function)) for function in _called(hook, _DEEPEST))
    return next(filter(None, names), "")


def unknown_function_of(lifted: Any) -> str:
    """The framework of a Function whose backward is not known to pass gradients on; empty for any other."""
    function = getattr(lifted, "_forward_cls", None)
    if function is None or isinstance(lifted, FrameworkContext):
        return ""
    return "DeepSpeed" if _is_in(getattr(function, "__module__", ""), "deepspeed.runtime.zero") else ""


def innermost(hook: Any) -> Any:
    """The function behind partials, methods and wrappers."""
    for _ in range(_DEEPEST):
        inner = getattr(hook, "func", None) if isinstance(hook, functools.partial) else None
        inner = inner or getattr(hook, "__func__", None) or getattr(hook, "__wrapped__", None)
        if inner is None:
            break
        hook = inner
    return hook


def _called(hook: Any, depth: int) -> Iterator[Any]:
    """A hook's own function, and the hooks that PyTorch's wrappers around it call."""
    function = innermost(hook)
    yield function
    if depth and _module_of(function).startswith(_WRAPPERS):
        for _, value in closure_values(function):
            if callable(value):
                yield from _called(value, depth - 1)


def _framework(module: str) -> str:
    return next((name for package, name in FRAMEWORKS.items() if _is_in(module, package)), "")


def _module_of(function: Any) -> str:
    module = getattr(function, "__module__", None) if hasattr(function, "__code__") else type(function).__module__
    return module if isinstance(module, str) else ""


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


# -- callbacks that only a running engine takes ---------------------------------------------------------------


def queues_callback(lifted: Any) -> bool:
    """Whether a hook, or the backward of a ctx's Function, queues a callback in the engine: none is running later."""
    backward = getattr(getattr(lifted, "_forward_cls", None), "backward", None)
    return _queues(innermost(lifted if backward is None else backward), _DEEPEST, set())


def _queues(function: Any, depth: int, visited: set[int]) -> bool:
    if not hasattr(function, "__code__") and not isinstance(function, type):
        function = getattr(type(function), "__call__", None)  # noqa: B004  # the function that an object's call runs
    code = getattr(function, "__code__", None)
    if code is None or id(code) in visited:
        return False
    visited.add(id(code))
    if any("queue_callback" in each.co_names for each in _codes(code)):
        return True
    if not depth or _module_of(function).startswith("torch."):
        return False
    inner = map(innermost, _values_used(function, code))
    return any(_queues(value, depth - 1, visited) for value in inner if hasattr(value, "__code__"))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _values_used(function: Any, code: CodeType) -> Iterator[Any]:
    yield from (value for _, value in closure_values(function))
    names = getattr(function, "__globals__", {})
    yield from (names[name] for name in code.co_names if name in names)
