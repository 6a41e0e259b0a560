"""Guards: what a lowered graph assumes of its inputs, and the errors for inputs that violate it.

Tracing with symbolic sizes answers some questions by the captured values (is this dimension 1? are these two equal?).
Each answer is a guard: the graph is wrong for an input that would have given another answer.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError

_SYMBOL = re.compile(r"[A-Za-z_]\w*")
_EQUALS = re.compile(r"([A-Za-z_]\w*) == (-?\d+)")

ANOTHER = "other.lower(), for a capture that has these sizes"


@dataclass(frozen=True)
class Expected:
    """What one input must be. Numbers that may differ from call to call are expressions of symbols: `s0`, `8*s1`."""

    name: str
    """Of the placeholder: `inputs_3`, `sizes_0`, `packed_1`."""
    label: str = ""
    """More about it: `(7, 8), saved by AddmmBackward0 (#4)`."""
    shape: tuple[str, ...] | None = None
    """None for a size, which is a number itself."""
    strides: tuple[str, ...] | None = None
    """None where the layout has none."""
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    value: str = ""
    """Of a size."""

    def at(self, dimension: int | None) -> str:
        """The name of one of its numbers: `inputs_3.shape[0]`."""
        return self.name if dimension is None else f"{self.name}.shape[{dimension}]"

    def with_label(self, statement: str) -> str:
        """A statement about it, with its label."""
        return f"{statement} ({self.label})" if self.label else statement


@dataclass(frozen=True)
class Guards:
    """Everything that a lowered graph assumes of its inputs."""

    inputs: tuple[Expected, ...]
    conditions: tuple[str, ...] = ()
    """Python expressions of the symbols."""
    symbolic: bool = True
    """Whether there are symbols at all, or all sizes are numbers."""
    tied: bool = False
    """Whether shapes that were equal when captured are assumed to be equal."""

    @property
    def try_(self) -> str:
        """What to try for sizes that do not fit."""
        if not self.symbolic:
            return f"cap.lower(symbolic=True), which holds for other sizes too, or {ANOTHER}"
        if self.tied:
            return f"cap.lower(symbolic=True, tied=False), which takes fewer sizes for equal, or {ANOTHER}"
        return ANOTHER

    @property
    def texts(self) -> tuple[str, ...]:
        """The conditions, with the dimensions by name: `inputs_1.shape[0] == inputs_6.shape[0]`."""
        return tuple(dict.fromkeys(self._named(condition) for condition in self.conditions))

    def check(self, inputs: Sequence[Any]) -> None:
        """Raise a CabwError for the first input that is not as expected, and for the first guard that is violated."""
        if len(inputs) != len(self.inputs):
            raise CabwError(
                f"the lowered graph was called with {len(inputs)} inputs",
                expected=f"{len(self.inputs)}: {_abbreviation([each.name for each in self.inputs])}",
                try_="lowered(*lowered.example_inputs()), or lowered.gradients(capture)",
            )
        for expected, value in zip(self.inputs, inputs, strict=True):
            _check_kind(expected, value)
        known = self._symbols(inputs)
        for index, dimension, stride in self._strides:
            _check_stride(self.inputs[index], inputs[index], dimension, _value(stride, known))
        for condition in self.conditions:
            if _value(condition, known) in (True, None):
                continue
            raise self._violated(condition, known)

    def verify(self, inputs: Sequence[Any]) -> None:
        """Raise a CabwError unless every guard can be evaluated and holds for the captured inputs."""
        known = self._symbols(inputs)
        for condition in self.conditions:
            try:
                if _value(condition, known) in (True, None):
                    continue
                reason = "the captured sizes violate"
            except Exception as error:  # noqa: BLE001  # whatever stops it, the guard cannot be checked
                reason = f"Python cannot evaluate ({type(error).__name__}: {error})"
            raise CabwError(
                f"this backward cannot be lowered: the trace assumed {self._named(condition)}, which {reason}",
                expected="guards that hold for the captured sizes",
                try_="cap.lower(symbolic=False), for the captured sizes alone",
            )

    def _numbers(self) -> Iterator[tuple[str, int, int | None]]:
        """(expression, input, dimension or None) of every number, in order."""
        for index, expected in enumerate(self.inputs):
            if expected.shape is None:
                yield expected.value, index, None
            for dimension, size in enumerate(expected.shape or ()):
                yield size, index, dimension

    @functools.cached_property
    def _plan(self) -> tuple[tuple[int, int | None, str, int | None], ...]:
        """(input, dimension or None, symbol, number or None where it is a symbol), in order."""
        return tuple(
            (index, dimension, expression, None if _SYMBOL.fullmatch(expression) else int(expression))
            for expression, index, dimension in self._numbers()
        )

    @functools.cached_property
    def _strides(self) -> tuple[tuple[int, int, str], ...]:
        """(input, dimension, expression) of every stride."""
        return tuple(
            (index, dimension, stride)
            for index, expected in enumerate(self.inputs)
            for dimension, stride in enumerate(expected.strides or ())
        )

    @functools.cached_property
    def _first(self) -> dict[str, tuple[Expected, int | None]]:
        """The first occurrence of each symbol: (input, dimension or None)."""
        places: dict[str, tuple[Expected, int | None]] = {}
        for expression, index, dimension in self._numbers():
            places.setdefault(expression, (self.inputs[index], dimension))
        return places

    def _symbols(self, inputs: Sequence[Any]) -> dict[str, int]:
        """The values of the symbols, read from the inputs; numbers, and repeated symbols, are compared."""
        known: dict[str, int] = {}
        for index, dimension, symbol, number in self._plan:
            value = inputs[index] if dimension is None else inputs[index].shape[dimension]
            if number is not None:
                if value != number:
                    seen = _number_text(self.inputs[index], dimension, value)
                    raise CabwError(seen, expected=f"{number}, as when captured", try_=self.try_)
            elif value < 1:
                seen = _number_text(self.inputs[index], dimension, value)
                raise CabwError(seen, expected="at least 1: ops go other ways where there is nothing", try_=ANOTHER)
            elif known.setdefault(symbol, value) != value:
                seen = _number_text(self.inputs[index], dimension, value)
                raise CabwError(
                    f"{seen}, but {_number_text(*self._first[symbol], known[symbol])}",
                    expected="equal sizes: shapes that were equal when captured are assumed to be equal",
                    try_=self.try_,
                )
        return known

    def _violated(self, condition: str, known: Mapping[str, int]) -> CabwError:
        equals = _EQUALS.fullmatch(condition)
        if equals and equals[1] in self._first:
            seen = _number_text(*self._first[equals[1]], known[equals[1]])
            return CabwError(seen, expected=f"{equals[2]}, as when captured", try_=self.try_)
        symbols = [symbol for symbol in dict.fromkeys(_SYMBOL.findall(condition)) if symbol in self._first]
        seen = ", ".join(_number_text(*self._first[symbol], known[symbol]) for symbol in symbols)
        return CabwError(
            f"a guard is violated, {self._named(condition)}: {seen}",
            expected="sizes that satisfy every condition that the trace assumed; lowered.guards lists them",
            try_=self.try_,
        )

    def _named(self, condition: str) -> str:
        def name(match: re.Match[str]) -> str:
            expected, dimension = self._first.get(match[0], (None, None))
            return match[0] if expected is None else expected.at(dimension)

        return _SYMBOL.sub(name, condition)


def _number_text(expected: Expected, dimension: int | None, value: int) -> str:
    return expected.with_label(f"{expected.at(dimension)} is {value}")


def _check_kind(expected: Expected, value: Any) -> None:
    if expected.shape is None:
        if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
            return
        raise CabwError(expected.with_label(f"{expected.name} is of type {type(value).__name__}"), expected="an int")
    if not isinstance(value, torch.Tensor):
        raise CabwError(expected.with_label(f"{expected.name} is of type {type(value).__name__}"), expected="a tensor")
    if value.dim() != len(expected.shape):
        seen = expected.with_label(f"{expected.name} has shape {tuple(value.shape)}")
        raise CabwError(seen, expected=f"{len(expected.shape)} dimensions", try_=ANOTHER)
    for attribute in ("dtype", "device"):
        if getattr(value, attribute) != getattr(expected, attribute):
            seen = expected.with_label(f"{expected.name}.{attribute} is {getattr(value, attribute)}")
            raise CabwError(seen, expected=str(getattr(expected, attribute)), try_=ANOTHER)


def _check_stride(expected: Expected, value: Any, dimension: int, expected_stride: int | None) -> None:
    """Compare one stride, if it is along more than one element; others mean nothing."""
    if expected_stride is None or value.stride(dimension) == expected_stride or value.shape[dimension] <= 1:
        return
    raise CabwError(
        expected.with_label(f"{expected.name}.stride({dimension}) is {value.stride(dimension)}"),
        expected=f"{expected_stride}, as when captured",
        try_="inputs with the same memory format and views, or " + ANOTHER,
    )


def _value(expression: str, known: Mapping[str, int]) -> Any:
    """The value of an expression; None for one with a symbol that no input has."""
    if expression.isdigit():
        return int(expression)
    if expression in known:
        return known[expression]
    code, symbols = _compiled(expression)
    if any(symbol not in known for symbol in symbols):
        return None
    return eval(code, torch_adapter.NAMES_IN_GUARDS, known)  # noqa: S307  # written by PyTorch's printer alone


@functools.lru_cache(maxsize=65536)
def _compiled(expression: str) -> tuple[CodeType, tuple[str, ...]]:
    """The code of an expression, and the symbols in it."""
    tree = ast.parse(expression, "<guard>", "eval")
    names = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    symbols = tuple(name for name in names if name not in torch_adapter.NAMES_IN_GUARDS)
    return compile(tree, "<guard>", "eval"), symbols


def _abbreviation(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, … {names[-1]}"
