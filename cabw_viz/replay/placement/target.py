"""Where, in what dtype and under what backend a captured graph is run again."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cabw_viz.errors import CabwError
from cabw_viz.record.options import EAGER
from cabw_viz.replay.placement.devices import Compiler, resolve_backend, resolve_device, resolve_dtype

HALF_BITS = 16


@dataclass(frozen=True)
class Target:
    """Where a captured graph is run again; `AS_CAPTURED` is as it was captured."""

    device: torch.device | None = None
    """None leaves every tensor where it is."""
    dtype: torch.dtype | None = None
    """The floating dtype of everything; complex numbers take the one of the same precision. None leaves all as it is.
    Another dtype gives the backward of the saved forward in that dtype: the forward is not run again."""
    backend: str | Compiler = EAGER
    """`eager`, a backend of torch.compile by name, or a callable that takes a GraphModule."""

    @property
    def compiles(self) -> bool:
        """Whether the graph goes through a compiler."""
        return self.backend != EAGER

    @property
    def moves(self) -> bool:
        """Whether the graph is to run on a certain device or in a certain dtype."""
        return self.device is not None or self.dtype is not None

    @property
    def placement(self) -> Target:
        """Device and dtype alone: a graph is placed alike for every backend."""
        return Target(self.device, self.dtype)

    @property
    def description(self) -> str:
        """`on cuda:0 in torch.float64`; empty where the graph stays as it is."""
        device = "" if self.device is None else f"on {self.device}"
        return " ".join(filter(None, (device, "" if self.dtype is None else f"in {self.dtype}")))

    @property
    def backend_name(self) -> str:
        """What to call the backend."""
        if isinstance(self.backend, str):
            return self.backend
        return str(getattr(self.backend, "__name__", type(self.backend).__name__))


AS_CAPTURED = Target()


def resolve_target(
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    backend: str | Compiler = EAGER,
) -> Target:
    """The target that these names mean.

    Args:
        device: anything torch names, `auto` for the current accelerator, or None.
        dtype: a floating dtype, with or without `torch.`, or None.
        backend: `eager`, a name that torch.compile knows, or a callable.

    Raises:
        CabwError: there is no such thing here; lists what there is.
    """
    resolved = None if dtype is None else resolve_dtype(dtype)
    if resolved is not None and (resolved.is_complex or torch.finfo(resolved).bits < HALF_BITS):
        raise CabwError(
            f"a graph cannot be run in {resolved}",
            expected="float64, float32, bfloat16 or float16; complex numbers follow in the same precision",
            try_="dtype='float64'",
        )
    return Target(
        None if device is None else torch.empty(0, device=resolve_device(device)).device,  # `cuda:0` for `cuda`
        resolved,
        EAGER if backend == EAGER else resolve_backend(backend),
    )
