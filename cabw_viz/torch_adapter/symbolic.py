"""Symbolic shapes and fake tensors: the pieces of which a trace on fake tensors is built, and `make_fx`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.fx
from torch._dynamo.source import ConstantSource, TensorProperty, TensorPropertySource
from torch._subclasses import fake_tensor
from torch.fx import _lazy_graph_module
from torch.fx.experimental import _config as symbolic_shapes_config
from torch.fx.experimental import proxy_tensor, symbolic_shapes
from torch.utils import _pytree

from cabw_viz.torch_adapter.patching import replaced

UNTRACEABLE: tuple[type[Exception], ...] = (
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.DataDependentOutputException,
    symbolic_shapes.GuardOnDataDependentSymNode,
)
"""What a trace on fake tensors raises where the program asks for a tensor's values."""

NO_FAKE_KERNEL: tuple[type[Exception], ...] = (fake_tensor.UnsupportedOperatorException,)
"""What it raises for an op that computes no shapes without values (`torch.library.register_fake` would)."""

named_source: Callable[[str], Any] = ConstantSource
"""The source of a traced value, by the value's name."""


def size_source(source: Any, dimension: int) -> Any:
    """The source of one size of the tensor from a source."""
    return TensorPropertySource(source, TensorProperty.SIZE, dimension)


def shape_env() -> Any:
    """A new environment of symbols, each size a symbol of its own, 0 and 1 too."""
    return symbolic_shapes.ShapeEnv(specialize_zero_one=False, duck_shape=False)


def fake_mode(environment: Any | None, *, symbolic: bool) -> Any:
    """A mode that makes fake tensors.

    Args:
        environment: of the symbols; also of numbers that a graph computes itself, with sizes that are numbers.
        symbolic: whether sizes may be symbols.
    """
    return fake_tensor.FakeTensorMode(
        shape_env=environment,
        allow_non_fake_inputs=True,
        allow_fallback_kernels=False,
        static_shapes=not symbolic,
    )


def new_symbol(environment: Any, value: int, source: Any) -> Any:
    """A symbol of an environment for a positive size."""
    manner = symbolic_shapes.DimDynamic.DYNAMIC
    return environment.create_symbol(value, source, dynamic_dim=manner, positive=True)


def symbolic_size(environment: Any, symbol: Any, value: int, source: Any) -> Any:
    """A `torch.SymInt` of a symbol."""
    return environment.create_symintnode(symbol, hint=value, source=source)


def fake_with_numbers(mode: Any, tensor: torch.Tensor, source: Any) -> Any:
    """A fake tensor whose sizes are numbers."""
    return mode.from_tensor(tensor, source=source, static_shapes=True)


def fake_with_symbols(mode: Any, tensor: torch.Tensor, source: Any, symbols: Mapping[int, Any]) -> Any:
    """A fake tensor with these symbols for sizes, by dimension; its other sizes are numbers."""
    manner = symbolic_shapes.DimDynamic
    cache = {_name_of(size_source(source, dimension)): symbol for dimension, symbol in symbols.items()}
    context: Any = symbolic_shapes.StatefulSymbolicContext(
        dynamic_sizes=[manner.DYNAMIC if each in symbols else manner.STATIC for each in range(tensor.dim())],
        tensor_source=source,
        shape_env_to_source_to_symbol_cache={id(mode.shape_env): cache},
    )
    return mode.from_tensor(tensor, source=source, symbolic_context=context)


def _name_of(source: Any) -> str:
    name = source.name  # a method before torch 2.11
    return str(name() if callable(name) else name)


@contextmanager
def decided_by_captured_sizes(environment: Any) -> Iterator[None]:
    """Context in which ops ask about an environment's symbols and take the way of the captured sizes, with few guards.

    Many questions may be left open ("is it 1?", "is it contiguous?"; `guard_or_false` and `guard_or_true` in
    torch/fx/experimental/symbolic_shapes.py). PyTorch guards on each answer, or under `backed_size_oblivious` leaves
    all open: another way than eager's then, as `reshape` copies where eager makes a view. Here a question is left open
    where that is what the captured sizes answer too, and else is answered by these, with a guard.
    """
    name = "_guard_or"
    config: Any = symbolic_shapes_config  # a module of another class, of which the stub knows nothing
    original = getattr(symbolic_shapes, name, None)
    if original is None or not hasattr(config, "backed_size_oblivious"):
        yield
        return

    def guard_or(question: Any, default: bool) -> bool:
        if not isinstance(question, torch.SymBool) or question.node.shape_env is not environment:
            return bool(original(question, default))
        known = symbolic_shapes._static_eval_sym_bool(question)
        if known is not None:
            return bool(known)
        if question.node.hint is None or question.node.hint == default:
            return default
        return bool(symbolic_shapes.guard_bool(question))

    with replaced(symbolic_shapes, name, guard_or), config.patch(backed_size_oblivious=True):
        yield


def traced_on_fakes(
    function: Callable[..., Any], fakes: Sequence[Any], mode: Literal["symbolic", "fake"]
) -> torch.fx.GraphModule:
    """The graph of the ops that a function runs on fake tensors; PyTorch logs nothing of an op that fails.

    The module writes its Python code when it is first read or called. With sizes that are numbers, ops lack PyTorch's
    `torch_fn` in their `meta`: the mode that notes it sees each read of an attribute, a third of the time.
    """
    options: dict[str, Any] = {"tracing_mode": mode, "_allow_non_fake_inputs": True}
    if mode == "fake" and _NO_FUNCTION_NAMES in inspect.signature(proxy_tensor.make_fx).parameters:
        options[_NO_FUNCTION_NAMES] = True
    with _failures_not_logged(), _lazy_graph_module._use_lazy_graph_module(should_use=True):
        traced: torch.fx.GraphModule = proxy_tensor.make_fx(function, **options)(*fakes)
    return traced


_NO_FUNCTION_NAMES = "_disable_torch_fn_metadata_mode"


@contextmanager
def _failures_not_logged() -> Iterator[None]:
    """Context in which PyTorch does not log an op that fails on fake tensors: the caller reports it."""
    log = logging.getLogger(fake_tensor.__name__)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def with_concrete_sizes(value: Any) -> Any:
    """A value with numbers for the symbolic sizes in it; PyTorch guards on these numbers."""
    return _pytree.tree_map_only(torch.SymInt, int, value)


def is_symbolic(value: Any) -> bool:
    """Whether a number, or one of several, is symbolic."""
    return any(isinstance(number, torch.SymInt) for number in (value if isinstance(value, tuple) else (value,)))


def operators_of(function: Callable[..., Any], tensors: Sequence[torch.Tensor], mode: Any) -> torch.fx.GraphModule:
    """The graph of the operators that a function runs on these tensors, as a dispatch mode passes them on."""

    def in_mode(*args: torch.Tensor) -> Any:
        with mode:
            return function(*args)

    # A number that PyTorch has wrapped in a tensor would be traced as a number; a copy of it is a tensor.
    detached = [tensor.detach() if tensor.dim() else tensor.detach().clone() for tensor in tensors]
    graph: torch.fx.GraphModule = proxy_tensor.make_fx(in_mode, _allow_non_fake_inputs=True)(*detached)
    return graph
