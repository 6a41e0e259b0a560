"""Guards on symbolic sizes as Python expressions, and the names with which these are evaluated."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import sympy  # type: ignore[import-untyped]  # it has no stubs
import torch
from torch.fx.experimental import symbolic_shapes
from torch.utils._sympy import functions
from torch.utils._sympy.printers import PythonPrinter


class _GuardPrinter(PythonPrinter):
    """PyTorch's printer, with a call where it has no form for a function."""

    def _print_TruncToFloat(self, expr: sympy.Expr) -> str:  # noqa: N802  # sympy looks it up by this name
        return str(super()._print_Function(expr))


def expression_of(number: int | torch.SymInt) -> str:
    """A number as a Python expression; a symbol as it was made, whatever has become known of it since."""
    return str(number) if isinstance(number, int) else text_of(number.node.expr)


def guards_of(environment: Any) -> tuple[str, ...]:
    """What a trace assumed of an environment's symbols, as Python expressions, each once."""
    return tuple(dict.fromkeys(text_of(guard.expr) for guard in environment.guards))


def text_of(expression: Any) -> str:
    """A sympy expression of PyTorch's as a Python expression of the names in `NAMES_IN_GUARDS`."""
    return str(_GuardPrinter().doprint(expression))


def _on_numbers(function: Any) -> Callable[..., Any]:
    """A sympy function as one of Python numbers."""

    def call(*numbers: Any) -> Any:
        value = function(*map(sympy.sympify, numbers))
        if value.is_Boolean:
            return bool(value)
        return int(value) if value.is_Integer else float(value)

    return call


NAMES_IN_GUARDS: dict[str, Any] = {
    "__builtins__": {},
    "True": True,
    "False": False,
    "math": math,
    "torch": SimpleNamespace(
        **{name: getattr(torch, name) for name in dir(torch) if name.startswith(("sym_", "_sym_"))}
    ),
    **{
        name: _on_numbers(function)
        for name, function in vars(functions).items()
        if isinstance(function, type) and issubclass(function, sympy.Function)
    },
    **{
        name: function
        for name, function in symbolic_shapes.SYMPY_INTERP.items()
        if name.startswith("IsNonOverlappingAndDense")
    },
    **{function.__name__: function for function in (abs, bool, float, int, max, min, round)},
    "TruncToFloat": lambda number: float(math.trunc(number)),
}
"""What `text_of` may name besides symbols: the functions that `PythonPrinter` writes (torch/utils/_sympy/printers.py),
and those of torch/utils/_sympy/functions.py, which are written by their names where it has no form for them."""
