"""Where the NaN and the infinities of a backward begin, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cabw_viz.record.divergence import StepKind
from cabw_viz.record.source_line import SourceLine

Stage = Literal["leaf", "input", "forward", "root_gradient", "backward"]
"""Where it was first seen: in a leaf (a parameter) or in another tensor that no op of this backward has made, as the
forward took it; in the result of a forward op; in the gradient that the call begins with; in a gradient."""

Way = Literal[
    "overflow",
    "division_by_zero",
    "zero_times_infinity",
    "infinity_minus_infinity",
    "log_of_zero",
    "root_at_zero",
    "outside_domain",
    "masked_row",
    "passed_on",
    "held",
    "hook",
    "custom_function",
    "compiled_region",
    "in_place_write",
]
"""How a NaN or an infinity is made. `root_at_zero`: the derivative of a root, or of a power below 1, at 0.
`outside_domain`: the root or the logarithm of a negative number and the like. `masked_row`: a softmax over nothing but
negative infinities. `passed_on`: a saved tensor holds it since the forward. `held`: a tensor held it before."""


@dataclass(frozen=True)
class ValueRange:
    """The elements of a tensor in figures; of complex numbers those of both parts."""

    shape: tuple[int, ...]
    dtype: str
    low: float
    """Smallest finite element; NaN where there is none. Of a fingerprint with a NaN it is not known: NaN."""
    high: float
    """Largest finite element; as above."""
    smallest: float | None
    """Smallest magnitude other than 0 of the finite elements; None where there is none, or where it is not known."""
    zeros: int | None
    """How many elements are 0; None where that is not known."""
    nans: int
    positive: int
    """Infinities above 0; of a fingerprint all of them."""
    negative: int

    @property
    def infinities(self) -> int:
        """How many elements are infinite."""
        return self.positive + self.negative

    @property
    def is_finite(self) -> bool:
        """Whether no element is NaN or infinite."""
        return not self.nans and not self.infinities

    @property
    def largest(self) -> float:
        """Largest magnitude of the finite elements; NaN where there is none."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True)
class NonFiniteOrigin:
    """A place where NaN or infinity begins."""

    stage: Stage
    kind: StepKind
    number: int
    """NodeCall number of the autograd node: for the forward, the one that its op has made."""
    name: str
    """`ExpBackward0`; `sum into TanhBackward0, input 0`; `hook double of TanhBackward0`; a leaf's names."""
    what: str
    """Which tensor holds it: `result, saved by ExpBackward0 (#4)`, `output 0`."""
    module: str = ""
    visit: int = 0
    line: SourceLine | None = None
    ways: tuple[Way, ...] = ()
    """How it is made: of several it is one, and not known which; of none nothing is known."""
    of_infinity: bool = False
    """Whether infinities flow in, of which it makes a NaN; what flows in is finite otherwise, or was not seen."""
    into: tuple[ValueRange, ...] = ()
    """What flows in, as far as it was kept."""
    out: ValueRange | None = None
    others: tuple[int, ...] = ()
    """Numbers of further autograd nodes whose forward op may have made it instead: what they made was not kept."""
    note: str = ""


@dataclass(frozen=True)
class NonFiniteTensor:
    """A saved tensor that holds NaN or infinity."""

    number: int
    """Of the autograd node that saves it."""
    field: str
    made_by: int | None
    values: ValueRange
    is_mask: bool = False
    """Whether it holds negative infinities alone, which no op has made of finite numbers: as masks do."""


@dataclass(frozen=True)
class NonFiniteSearch:
    """The NaN and the infinities of one backward."""

    loss: tuple[ValueRange, ...] = ()
    """Of each root of the call that is not finite."""
    origins: tuple[NonFiniteOrigin, ...] = ()
    """Where they begin, the earliest cause first: those of the forward, then of the backward in its order."""
    saved: tuple[NonFiniteTensor, ...] = ()
    """The saved tensors that hold any, in the order of the forward."""
    leaves: tuple[tuple[str, ValueRange], ...] = ()
    """The leaves whose gradient is not finite."""
    compared: tuple[int, int, int] = (0, 0, 0)
    """How many losses, gradients and saved tensors were looked at."""
    gaps: tuple[str, ...] = ()
    """What was not looked at, and what would be needed for it, in whole sentences."""

    @property
    def first(self) -> NonFiniteOrigin | None:
        """The earliest cause; None where none was seen."""
        return self.origins[0] if self.origins else None
