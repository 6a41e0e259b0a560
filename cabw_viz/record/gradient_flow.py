"""How the size of gradients goes through a model, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cabw_viz.record.source_line import SourceLine

ChangeKind = Literal["falls", "rises", "dies"]
"""Of the largest gradient on the way from the loss: by more than the factor, or to zero everywhere."""


@dataclass(frozen=True)
class FlowPoint:
    """The gradients of one call of a module; of nodes outside of any module those that run next to each other."""

    module: str
    """Path of the module, the class in brackets for the subject itself; empty outside of any."""
    visit: int
    number: int
    """Of the first autograd node of it that runs."""
    rms: float | None
    """Largest root mean square of the gradients that flow into it from elsewhere; None where none is known."""
    leaf_rms: float | None
    """The same of the gradients of its own leaves; None where it has none."""


@dataclass(frozen=True)
class FlowChange:
    """A part of the backward over which gradients fall or rise by more than the factor."""

    kind: ChangeKind
    factor: float
    """How many times smaller or larger; infinite for what dies."""
    start: float
    """Root mean square where it begins, nearer to the loss."""
    end: float
    first: int
    """Number of the autograd node after which it begins."""
    last: int
    """Number of the autograd node with which it ends."""
    steepest: int
    """Number of the autograd node at which it changes most."""
    module: str
    """Of that node."""
    line: SourceLine | None
    """Of that node."""
    modules: tuple[str, str]
    """Where it begins and where it ends."""


@dataclass(frozen=True)
class Flow:
    """The flow through one backward."""

    factor: float
    points: tuple[FlowPoint, ...]
    """From the model's input to its loss."""
    changes: tuple[FlowChange, ...]
    """In the order of the backward."""
    zero_leaves: tuple[tuple[str, str], ...] = ()
    """Module and name of each leaf whose gradient is zero everywhere."""
