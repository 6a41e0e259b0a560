"""A step to compare, and the same with a fault."""

from __future__ import annotations

import torch
from torch import nn

CHEAP = ["eager", "compiled_autograd"]


def conv_net():
    """Convolutions before batch norms, whose biases' gradients consist of rounding; dropout draws random numbers."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 3)
    )


def step_of(net):
    """A step of the net, which returns its loss."""
    x = torch.randn(5, 2, 6, 6)
    return lambda: net(x).square().mean()


def faulty(net, step, *, name="5.weight", fault=lambda grad: grad * 1.001, calls=(0, 1, 2)):
    """The step with a fault in one gradient, in some calls of each run."""
    count = [0]

    def whole():
        index = count[0] % 3
        count[0] += 1
        loss = step()
        loss.backward()
        param = net.get_parameter(name)
        if index in calls:
            param.grad = fault(param.grad)
        return loss

    return whole
