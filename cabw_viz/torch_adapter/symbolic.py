"""Symbolic shapes and fake tensors: the pieces of which a trace on fake tensors is built, and `make_fx`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
import torch.fx
from torch._dynamo.source import ConstantSource, TensorProperty, TensorPropertySource
from torch._subclasses import fake_tensor
from torch.fx.experimental import _config as symbolic_shapes_config
from torch.fx.experimental import proxy_tensor, symbolic_shapes
from torch.utils import _pytree
from torch.utils._sympy.printers import PythonPrinter

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


def fake_mode(environment: Any | None) -> Any:
    """A mode that makes fake tensors; without an environment their sizes are numbers."""
    return fake_tensor.FakeTensorMode(
        shape_env=environment,
        allow_non_fake_inputs=True,
        allow_fallback_kernels=False,
        static_shapes=environment is None,
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


def expression_of(number: int | torch.SymInt) -> str:
    """A number as a Python expression; a symbol as it was made, whatever has become known of it since."""
    return str(number) if isinstance(number, int) else PythonPrinter().doprint(number.node.expr)


def guards_of(environment: Any) -> tuple[str, ...]:
    """What a trace assumed of an environment's symbols, as Python expressions, each once."""
    printer = PythonPrinter()
    return tuple(dict.fromkeys(printer.doprint(guard.expr) for guard in environment.guards))


def sizes_are_not_one() -> AbstractContextManager[Any]:
    """Context in which a symbol counts as neither 0 nor 1 where an op asks in a way that allows it."""
    config: Any = symbolic_shapes_config  # a module of another class, of which the stub knows nothing
    return config.patch(backed_size_oblivious=True) if hasattr(config, "backed_size_oblivious") else nullcontext()


def traced_on_fakes(
    function: Callable[..., Any], fakes: Sequence[Any], mode: Literal["symbolic", "fake"]
) -> torch.fx.GraphModule:
    """The graph of the ops that a function runs on fake tensors; PyTorch logs nothing of an op that fails."""
    with _failures_not_logged():
        return proxy_tensor.make_fx(function, tracing_mode=mode, _allow_non_fake_inputs=True)(*fakes)


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
