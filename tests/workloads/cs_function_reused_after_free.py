"""custom Function that saves nothing, with an unused second output, is run again after its graph was freed: eager allows it"""

import torch

NAME = "cs_function_reused_after_free"
SOURCE = "pytorch/pytorch#65536"
POINT = "custom Function that saves nothing, with an unused second output, is run again after its graph was freed: eager allows it"
EXPECT = "raises: Trying to backward through the graph a second time"

OUT = {}


class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return t.clone(), t * 2

    @staticmethod
    def backward(ctx, g, h):
        return g * 3 + h


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    w = torch.randn(5, device=device, dtype=dtype).requires_grad_()

    def step():
        OUT["first"], _ = TwoOutputs.apply(w)
        return (OUT["first"] * 2).sum()

    return {"w": w}, step


def backward(loss, params):
    loss.backward()
    OUT["first"].sum().backward()
