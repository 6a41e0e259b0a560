"""The trace on fake tensors that lowers a graph: which sizes become symbols, and which of them share one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter


@dataclass(frozen=True)
class StandIn:
    """A tensor or a size that a trace computes with, and its numbers as expressions of symbols."""

    value: Any
    shape: tuple[str, ...] | None = None
    strides: tuple[str, ...] | None = None
    text: str = ""
    """Of a size."""


class SymbolicTrace:
    """A trace on fake tensors whose sizes are symbols.

    Sizes up to 1 are numbers, since ops branch on them (broadcasting, empty inputs). The others are assumed to be at
    least 1. Each op goes the way that it goes on the captured sizes (`torch_adapter.decided_by_captured_sizes`).

    Args:
        symbolic: False makes every size a number.
        tied: use one symbol for a dimension of all tensors of one shape. A trace takes several times as long
            without.
    """

    def __init__(self, *, symbolic: bool, tied: bool) -> None:
        self._symbolic, self._tied = symbolic, tied
        self._symbols: dict[tuple[Any, ...], Any] = {}
        self._environment = torch_adapter.shape_env()
        self._mode = torch_adapter.fake_mode(self._environment, symbolic=symbolic)

    def tensor(self, tensor: torch.Tensor, name: str, *, fixed: bool) -> StandIn:
        """A fake tensor for a tensor; its sizes are numbers where `fixed`."""
        source = torch_adapter.named_source(name)
        if not self._symbolic or tensor.layout is not torch.strided:
            return _described(torch_adapter.fake_with_numbers(self._mode, tensor, source))
        symbols = {
            dimension: self._symbol(size, torch_adapter.size_source(source, dimension), (dimension, *tensor.shape))
            for dimension, size in enumerate(tensor.shape)
            if not fixed and size not in (0, 1)
        }
        return _described(torch_adapter.fake_with_symbols(self._mode, tensor, source, symbols))

    def size(self, value: int, name: str, place: tuple[Any, ...], *, fixed: bool) -> StandIn:
        """A symbolic int for a size.

        Args:
            value: the size.
            name: of the traced value.
            place: what shares its symbol: its dimension and the shape it belongs to, or anything else.
            fixed: a number instead.
        """
        if not self._symbolic or fixed or value <= 1:
            return StandIn(value, text=str(value))
        source = torch_adapter.named_source(name)
        symbol = self._symbol(value, source, place)
        size = torch_adapter.symbolic_size(self._environment, symbol, value, source)
        return StandIn(size, text=torch_adapter.expression_of(size))

    def run(self, function: Callable[..., Any], arguments: Sequence[Any]) -> torch.fx.GraphModule:
        """Trace a function of these values into a graph of the ops that it runs."""
        with torch_adapter.decided_by_captured_sizes(self._environment):
            return torch_adapter.traced_on_fakes(function, arguments, "symbolic" if self._symbolic else "fake")

    @property
    def guards(self) -> tuple[str, ...]:
        """What the trace assumed, as Python expressions of the symbols."""
        return torch_adapter.guards_of(self._environment)

    def _symbol(self, value: int, source: Any, place: tuple[Any, ...]) -> Any:
        key = (value, *place)
        if self._tied and key in self._symbols:
            return self._symbols[key]
        symbol = self._symbols[key] = torch_adapter.new_symbol(self._environment, value, source)
        return symbol


def _described(fake: Any) -> StandIn:
    strides = tuple(map(torch_adapter.expression_of, fake.stride())) if fake.layout is torch.strided else None
    return StandIn(fake, tuple(map(torch_adapter.expression_of, fake.shape)), strides)


@contextmanager
def no_nested_accumulation(refusal: Callable[[], Exception]) -> Iterator[None]:
    """A context in which a backward that this thread starts may return gradients, but not add to any `.grad`."""
    thread = threading.get_ident()

    def refuse_accumulation(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if options.get("accumulate_grad") and threading.get_ident() == thread:
            raise refusal()
        return original(*args, **options)

    with torch_adapter.patched_engine_entry(refuse_accumulation):
        yield
