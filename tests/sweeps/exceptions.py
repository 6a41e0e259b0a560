"""What is known not to hold, and why: (check, pattern of the name, pattern of the reason, why).

An entry that no case of the whole sweep needs any more is to be taken out.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.sweeps.cases import Case


class Known(NamedTuple):
    """An exception that was looked into."""

    check: str
    name: str
    reason: str
    why: str


KNOWN: tuple[Known, ...] = (
    Known(
        "float64 parity",
        "matrix_exp",
        "nonfinite",
        "true: eager's bfloat16 kernel gives NaN where float64 gives numbers",
    ),
    Known("float64 divergence", "matrix_exp", "nonfinite", "true: the same"),
    Known(
        "float64 divergence",
        "logcumsumexp",
        "mismatch",
        "true: eager's bfloat16 kernel is off by the whole gradient, for it subtracts numbers near 10,000",
    ),
    Known("fault seen by parity", "segformer", "passes", "the bias of a key has no gradient but rounding (5e-15)"),
    Known("fault charged by divergence", "segformer", "passes", "the bias of a key has no gradient but rounding"),
    Known(
        "float64 divergence",
        "sam",
        "ScaledDotProductFlashAttention",
        "ours: a false alarm where a fused kernel cancels; parity says that it cannot be judged",
    ),
    Known(
        "float64 divergence",
        "norm.inf",
        "nonfinite",
        "ours: a false alarm where a maximum that was saved equals no element in float64; parity says so",
    ),
    Known("fault charged by divergence", "norm.inf", "passes", "ours: missed for complex numbers; parity finds it"),
)


def explanation(case: Case, check: str, reason: str) -> str:
    """Why a check does not hold for a case; empty where that is not known."""
    for known in KNOWN:
        if known.check == check and re.fullmatch(known.name, case.name) and re.search(known.reason, reason):
            return known.why
    return ""
