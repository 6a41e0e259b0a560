"""A backward that is made inside another, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InnerBackward:
    """A backward that code inside a captured call made, and whose gradients are no part of that call's graph."""

    autograd_node: int | None
    """Number of the autograd node of the captured call in which it was made; None where that is not known."""
    leaves: tuple[str, ...]
    """Labels of the tensors that it accumulates into, as far as the subject names them or they are parameters."""
    capture: int | None = None
    """Index of the capture that it became; None where it was not captured."""
