"""a layer is frozen and thawed between steps of one compiled module; a stale frame would leave .grad missing or present"""

import torch

NAME = "gs_freeze_toggled_in_forward_loop"
SOURCE = "pytorch/pytorch#139476"
POINT = "a layer is frozen and thawed between steps of one compiled module; a stale frame would leave .grad missing or present"
EXPECT = "parity"
EXPECT_COMPILED = "parity"

import torch.nn as nn


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    net = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}).to(device, dtype)
    x = torch.randn(3, 4, device=device, dtype=dtype)
    count = [0]

    def inner(x):
        return net["b"](x + net["a"].bias).square().sum()

    def around(f):
        def step():
            net["b"].requires_grad_(count[0] % 2 == 1)
            count[0] += 1
            with torch.no_grad():
                f(x)
            return f(x) + net["a"].weight.sum()

        return step

    step = around(inner)
    step.inner, step.around = inner, around
    return dict(net.named_parameters()), step


def compiled(step, backend="aot_eager"):
    return step.around(torch.compile(step.inner, backend=backend))
