"""What the inspector's panels can have computed, and with which options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from cabw_viz.record.comparison import Comparison
from cabw_viz.record.divergence import Divergence
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.options import HOOK_POLICIES
from cabw_viz.replay.placement.devices import available_devices

TASKS = ("parity", "audit", "divergence", "lower", "times")
"""Methods of a capture that a panel may call."""

AS_CAPTURED = "as captured"
"""The choice that leaves an option out."""


class Compared(Protocol):
    """The result of a comparison."""

    comparison: Comparison


class Searched(Protocol):
    """The result of a search for the first divergence."""

    divergence: Divergence


class CaptureApi(Protocol):
    """What the inspector asks of a capture that it shows. A method that is absent is not offered."""

    @property
    def record(self) -> CaptureRecord:
        """The plain data."""

    @property
    def last_parity(self) -> Comparison | None:
        """What parity came to so far."""

    @property
    def last_divergence(self) -> Divergence | None:
        """What the search for the first divergence came to so far."""

    @property
    def parity(self) -> Callable[..., Compared]:
        """Compares the graph, run again, with the user's own run."""

    @property
    def audit(self) -> Callable[..., object]:
        """Runs the graph watched, and puts what was read into the record."""

    @property
    def divergence(self) -> Callable[..., Searched]:
        """Compares what flows into and out of every node."""

    @property
    def lower(self) -> Callable[..., object]:
        """Lowers the graph to aten operators, and puts them into the record."""

    @property
    def times(self) -> Callable[..., object]:
        """Times the graph's nodes, and puts the seconds into the record."""


def choices_of(capture: CaptureApi) -> dict[str, dict[str, list[str]]]:
    """With what each task may be run here: the options that the capture's method takes, the first is the default."""
    here = available_devices()
    known: dict[str, list[str]] = {
        "device": [AS_CAPTURED, *here] if len(here) > 1 else here,
        "dtype": [AS_CAPTURED, "float64", "float32", "bfloat16", "float16"],
        "backend": ["eager", *_compilers()],
        "hooks": list(HOOK_POLICIES),
    }
    methods = {what: getattr(capture, what, None) for what in TASKS}
    return {
        what: {name: known[name] for name in known if name in inspect.signature(method).parameters}
        for what, method in methods.items()
        if method is not None
    }


def _compilers() -> list[str]:
    """Compilers that need nothing beside torch, as far as this torch has them."""
    here = torch.compiler.list_backends(exclude_tags=())
    wanted = ["aot_eager", "inductor", *(["cudagraphs"] if torch.cuda.is_available() else [])]
    return [name for name in wanted if name in here]


def allowed(capture: CaptureApi, what: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are among the choices: a message from a page is not to be trusted with more."""
    choices = choices_of(capture)[what]
    return {
        name: value
        for name, value in options.items()
        if value in choices.get(name, ())[1:]  # the first is what is done without being told
    }
