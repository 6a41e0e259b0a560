"""Dtypes by the numbers that captured graphs hold for them (c10/core/ScalarType.h)."""

from __future__ import annotations

import torch

# torch.bits* and the integers below 8 bits cannot have gradients.
DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4"),
    *("bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64"),
    *(f"uint{bits}" for bits in range(1, 8)),
    *(f"int{bits}" for bits in range(1, 8)),
    *("float8_e8m0fnu", "float4_e2m1fn_x2"),
)
"""Names of all dtypes, each at the place of its number."""

_WITH_DIGITS = ("float16", "float32", "float64", "complex32", "complex64", "complex128", "bfloat16")

SCALAR_TYPES = {number: getattr(torch, name) for number, name in enumerate(DTYPES) if name in _WITH_DIGITS}
"""The dtypes of floating-point numbers, by number. Elsewhere in a graph the same number is a dim or a size: only its
place tells which."""


def scalar_type(dtype: torch.dtype) -> int:
    """The number of a dtype of floating-point numbers."""
    return next(number for number, known in SCALAR_TYPES.items() if known is dtype)
