"""What the gradients of a replay must be in a sharded model, by an unsharded model of the same weights."""

from __future__ import annotations

from typing import Any

import torch

import cabw_viz
from tests.stacks.table import STACKS, data, plain_layers


def local_gradient_faults(name: str) -> list[str]:
    """Differences between a replay's gradients and those of the plain model on this process's own data.

    FSDP2 and DistributedDataParallel have a gradient for each parameter; FSDP1 one for each flat parameter, which
    begins with those of its own, one behind the other.
    """
    expected = _plain_gradients(half="half" in name)
    training = STACKS[name].build()
    with cabw_viz.capture(training.model) as session:
        training.loss(0).backward()
    (capture,) = session
    lowered = capture.lower()
    faults = []
    for made, gradients in {"replay": capture.replay(), "lowered": lowered.gradients()}.items():
        shapes = sorted(tuple(each.shape) for each in gradients.values())
        if "fsdp1" in name:
            flats = _flat(expected)
            faults += [
                f"{made}: {label} is none of the flat gradients"
                for label, gradient in gradients.items()
                if not any(torch.equal(gradient.reshape(-1)[: flat.numel()], flat) for flat in flats)
            ]
            continue
        if shapes != sorted(expected):
            faults.append(f"{made}: gradients of {shapes}, where {sorted(expected)} were expected")
        faults += [
            f"{made}: {label} is not the unsharded gradient"
            for label, gradient in gradients.items()
            if not torch.equal(gradient, expected.get(tuple(gradient.shape), torch.zeros(())))
        ]
    return faults


def _plain_gradients(*, half: bool) -> dict[tuple[int, ...], torch.Tensor]:
    """The gradient of each parameter of the plain model, by its shape: each has one of its own."""
    model, inputs = plain_layers(), data(0)
    if half:
        model, inputs = model.bfloat16(), inputs.bfloat16()
    model(inputs).float().square().mean().backward()
    gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
    return {tuple(gradient.shape): gradient for gradient in gradients}


def _flat(gradients: dict[tuple[int, ...], torch.Tensor]) -> list[torch.Tensor]:
    """The flat gradients of FSDP1: of the layer that is wrapped alone, and of the others together."""
    each = list(gradients.values())
    return [torch.cat([grad.reshape(-1) for grad in part]) for part in (each[2:4], each[:2] + each[4:])]
