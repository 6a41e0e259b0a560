"""What a lowered graph takes for granted of its inputs, and the error where it does not hold.

Tracing with symbolic sizes answers some questions by the captured values (is this dimension 1? are these two equal?).
Each answer is a guard: where another input would have given another answer, the graph is not that input's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from cabw_viz.errors import CabwError

_SYMBOL = re.compile(r"[A-Za-z_]\w*")
_EQUALS = re.compile(r"([A-Za-z_]\w*) == (-?\d+)")

ANOTHER = "the lowered graph of a capture that has these sizes: other.lower()"


@dataclass(frozen=True)
class Expected:
    """What one input must be. Numbers that may differ from call to call are expressions of symbols: `s0`, `8*s1`."""

    name: str
    """Of the placeholder: `inputs_3`, `sizes_0`, `packed_1`."""
    label: str
    """What to call it in a message."""
    shape: tuple[str, ...] | None = None
    """None for a size, which is a number itself."""
    strides: tuple[str, ...] | None = None
    """None where the layout has none."""
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    value: str = ""
    """Of a size."""


@dataclass(frozen=True)
class Guards:
    """All that a lowered graph takes for granted."""

    inputs: tuple[Expected, ...]
    conditions: tuple[str, ...] = ()
    """Python expressions of the symbols."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The conditions, with the dimensions by name: `inputs[1].shape[0] == inputs[6].shape[0]`."""
        names = {symbol: place for symbol, place, _ in reversed(list(self._symbols()))}
        return tuple(dict.fromkeys(_named(condition, names) for condition in self.conditions))

    def check(self, given: Sequence[Any]) -> None:
        """Raise a CabwError for the first input that is not as expected, and for the first guard that is violated."""
        if len(given) != len(self.inputs):
            raise CabwError(
                f"the lowered graph was called with {len(given)} inputs",
                expected=f"{len(self.inputs)}: {_shortened([each.name for each in self.inputs])}",
                try_="lowered(*lowered.example_inputs()), or lowered.gradients(capture)",
            )
        known: dict[str, int] = {}
        for expected, value in zip(self.inputs, given, strict=True):
            _check_kind(expected, value)
        self._bind(given, known)
        for expected, value in zip(self.inputs, given, strict=True):
            _check_strides(expected, value, known)
        names = {symbol: place for symbol, place, _ in reversed(list(self._symbols()))}
        for condition in self.conditions:
            if _holds(condition, known) is False:
                raise _violated(condition, names, known)

    def _symbols(self) -> Any:
        """(expression, its place in words, (input, dimension)) of every number, in order."""
        for index, expected in enumerate(self.inputs):
            if expected.shape is None:
                yield expected.value, expected.label, (index, None)
            for dimension, size in enumerate(expected.shape or ()):
                yield size, f"dimension {dimension} of {expected.label}", (index, dimension)

    def _bind(self, given: Sequence[Any], known: dict[str, int]) -> None:
        first: dict[str, str] = {}
        for expression, place, (index, dimension) in self._symbols():
            value = given[index] if dimension is None else given[index].shape[dimension]
            if not _SYMBOL.fullmatch(expression):
                if value != int(expression):
                    raise CabwError(f"{place} is {value}", expected=f"{expression}, as when captured", try_=ANOTHER)
            elif known.setdefault(expression, value) != value:
                raise CabwError(
                    f"{place} is {value}, but {first[expression]} is {known[expression]}",
                    expected="equal sizes: they were equal when captured, and are taken for one",
                    try_="cap.lower(tied=False), which takes as equal only what must be, or sizes that differ",
                )
            first.setdefault(expression, place)


def _check_kind(expected: Expected, value: Any) -> None:
    if expected.shape is None:
        if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
            return
        raise CabwError(f"{expected.label} is {_brief(value)}", expected="an int")
    if not isinstance(value, torch.Tensor):
        raise CabwError(f"{expected.label} is {_brief(value)}", expected="a tensor")
    if value.dim() != len(expected.shape):
        shape = f"({', '.join(expected.shape)})"
        raise CabwError(f"{expected.label} has shape {tuple(value.shape)}", expected=f"{shape}", try_=ANOTHER)
    for attribute in ("dtype", "device"):
        seen, wanted = getattr(value, attribute), getattr(expected, attribute)
        if seen != wanted:
            raise CabwError(f"{expected.label} has {attribute} {seen}", expected=f"{wanted}", try_=ANOTHER)


def _check_strides(expected: Expected, value: Any, known: Mapping[str, int]) -> None:
    """Strides along dimensions of more than one element; those of the others mean nothing."""
    for dimension, stride in enumerate(expected.strides or ()):
        wanted = _value(stride, known)
        if wanted is not None and value.shape[dimension] > 1 and value.stride(dimension) != wanted:
            raise CabwError(
                f"the stride of {expected.label} along dimension {dimension} is {value.stride(dimension)}",
                expected=f"{wanted}, laid out as when captured",
                try_="inputs with the same memory format and views, or " + ANOTHER,
            )


def _violated(condition: str, names: Mapping[str, str], known: Mapping[str, int]) -> CabwError:
    equals = _EQUALS.fullmatch(condition)
    if equals and equals[1] in names:
        place = names[equals[1]]
        return CabwError(f"{place} is {known[equals[1]]}", expected=f"{equals[2]}, as when captured", try_=ANOTHER)
    seen = [f"{names.get(symbol, symbol)} is {known[symbol]}" for symbol in _symbols_in(condition, known)]
    return CabwError(
        f"the guard {_named(condition, names)} is violated: {', '.join(seen)}",
        expected="sizes for which all that the trace took for granted holds; lowered.guards lists it",
        try_=ANOTHER,
    )


def _symbols_in(expression: str, known: Mapping[str, int]) -> list[str]:
    return [symbol for symbol in dict.fromkeys(_SYMBOL.findall(expression)) if symbol in known]


def _named(expression: str, names: Mapping[str, str]) -> str:
    def name(match: re.Match[str]) -> str:
        return f"[{names[match[0]]}]" if match[0] in names else match[0]

    return _SYMBOL.sub(name, expression)


def _holds(condition: str, known: Mapping[str, int]) -> bool | None:
    found = _value(condition, known)
    return None if found is None else bool(found)


def _value(expression: str, known: Mapping[str, int]) -> Any:
    """None where it hangs on something that no input tells."""
    if expression.isdigit():
        return int(expression)
    try:
        return eval(_compiled(expression), _FUNCTIONS, known)  # noqa: S307  # written by sympy's printer, not by anybody
    except NameError:
        return None


@functools.lru_cache(maxsize=65536)
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<guard>", "eval")


def _brief(value: Any) -> str:
    return f"of type {type(value).__name__}"


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, … {names[-1]}"  # noqa: PLR2004


def _functions() -> dict[str, Any]:
    import math  # noqa: PLC0415  # only for these expressions

    return {"math": math, "max": max, "min": min, "abs": abs, "int": int, "float": float, "round": round}


_FUNCTIONS: dict[str, Any] = {"__builtins__": {}, **_functions()}
