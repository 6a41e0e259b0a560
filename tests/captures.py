"""Captures of one backward, and what several test files capture: a small model, its data, custom Functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import cabw_viz
from cabw_viz.surfaces.capture import Capture
from cabw_viz.surfaces.session import Session

# ------------------------------------------------------------------------------------------------------- captures


def session_of(subject: Any, run: Callable[[], object], /, **options: Any) -> Session:
    """The session of a block that calls `run`; subject and options as for `cabw_viz.capture`."""
    with cabw_viz.capture(subject, **options) as session:
        run()
    return session


def capture_of(subject: Any, loss: Callable[[], torch.Tensor], /, **options: Any) -> Capture:
    """The capture of `loss().backward()`; the forward runs in the block too."""
    return capture_of_run(subject, lambda: loss().backward(), **options)


def capture_of_run(subject: Any, run: Callable[[], object], /, **options: Any) -> Capture:
    """The capture of the only backward call that `run` makes."""
    (capture,) = session_of(subject, run, **options)
    return capture


# ------------------------------------------------------------------------------------------------ models and tensors


def model(width: int = 8) -> nn.Sequential:
    """Two linear layers with a tanh between them, for `data()`."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))


def data() -> torch.Tensor:
    """Three rows of four float32 numbers, the same at each call."""
    return torch.arange(12.0).reshape(3, 4) / 7


def leaf(*shape: int, **options: Any) -> torch.Tensor:
    """Random numbers that require a gradient; options as for `torch.randn`."""
    return torch.randn(*shape, **options).requires_grad_()


# ------------------------------------------------------------------------------------------------------- Functions


class Twice(torch.autograd.Function):
    """Its input times two."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class OverwritesGradient(torch.autograd.Function):
    """A copy of its input; the backward writes to the gradient that it gets, past the version counter."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        result = g * 1.0
        g.data.mul_(100)
        return result


def faulty_once(
    fault: Callable[[torch.Tensor], torch.Tensor] = lambda g: g * 1.001,
    correct: Callable[[torch.Tensor], torch.Tensor] = lambda g: g,
) -> type[torch.autograd.Function]:
    """A Function that copies its input, and whose first backward has a fault: the user's run, and no replay."""

    class FaultyOnce(torch.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            FaultyOnce.calls += 1
            return fault(g) if FaultyOnce.calls == 1 else correct(g)

    return FaultyOnce
