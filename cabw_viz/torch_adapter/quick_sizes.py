"""Lifted sizes as symbols that only remember where they come from and how large they are.

C++ asks a symbolic size through the interface `SymNode` of torch/fx/experimental/sym_node.py, by name
(`PythonSymNodeImpl` in torch/csrc/utils/python_symnode.h). PyTorch answers with sympy and guards. A trace that is not
compiled needs neither: a comparison is decided by the sizes of the call there too, since guards are suppressed, and a
computed size never gets into the graph.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch


class QuickSize:
    """A number with a symbol's interface."""

    __slots__ = ("pytype", "value")

    constant = None

    def __init__(self, value: Any) -> None:
        self.value, self.pytype = value, type(value)

    def is_int(self) -> bool:
        """Whether it is an integer."""
        return self.pytype is int

    def is_float(self) -> bool:
        """Whether it is a float."""
        return self.pytype is float

    def is_bool(self) -> bool:
        """Whether it is a truth value."""
        return self.pytype is bool

    def is_symbolic(self) -> bool:
        """Always: C++ takes the ways of symbolic sizes."""
        return True

    has_hint = is_symbolic

    def is_nested_int(self) -> bool:
        """Never the ragged size of a jagged tensor."""
        return False

    is_constant = is_nested_int

    def maybe_as_int(self) -> None:
        """No number, as for PyTorch's own symbols."""
        return

    constant_int = constant_bool = nested_int = nested_int_coeff = maybe_as_int

    def wrapped(self, value: Any) -> QuickSize:
        """Another number."""
        return QuickSize(value)

    wrap_int = wrap_float = wrap_bool = wrapped

    def decided(self, *_: Any) -> Any:
        """The value in this call, which decides every question."""
        return self.value

    guard_int = guard_float = guard_bool = guard_size_oblivious = guard_or_false = guard_or_true = decided
    int_ = bool_ = expect_true = statically_known_true = decided

    def clone(self) -> QuickSize:
        """Itself: it never changes."""
        return self

    def _graph_repr(self) -> str:
        return f"{self.value}"


def _computed(function: Callable[..., Any]) -> Callable[..., QuickSize]:
    def method(self: QuickSize, *others: QuickSize) -> QuickSize:
        return QuickSize(function(self.value, *(other.value for other in others)))

    return method


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod", "neg")},
    **{name: getattr(operator, name) for name in ("eq", "ne", "gt", "lt", "le", "ge")},
    **dict.fromkeys(("float_truediv", "int_truediv"), operator.truediv),
    **dict.fromkeys(("float_pow", "pow_by_natural"), operator.pow),
    "int_floordiv": operator.floordiv,
    "sym_min": min,
    "sym_max": max,
    "sym_and": operator.and_,
    "sym_or": operator.or_,
    "sym_not": operator.not_,
    "sym_ite": lambda condition, one, other: one if condition else other,
    "sym_float": float,
    "ceil": math.ceil,
    "floor": math.floor,
}
setattr(QuickSize, "str", QuickSize._graph_repr)  # noqa: B010  # as a method of that name it would hide the builtin
for _name, _function in _ARITHMETIC.items():
    setattr(QuickSize, _name, _computed(_function))


class QuickSizes:
    """Stands for a tracer's ShapeEnv where it makes symbols of the lifted sizes."""

    def create_unspecified_symint_and_symbol(self, value: int, *_: Any) -> torch.SymInt:
        """A symbol for a lifted size."""
        return torch.SymInt(QuickSize(value))


def quick_value(value: Any) -> Any:
    """The number of a quick size; anything else as it is."""
    return value.node.value if is_quick_size(value) else value


def is_quick_size(value: Any) -> bool:
    """Whether a value is a size of a quick trace."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) and type(value.node) is QuickSize
