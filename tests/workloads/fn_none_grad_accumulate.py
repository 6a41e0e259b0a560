"""Function returns None for an input that also gets a real grad from another path, so the engine adds undefined + tensor"""

import torch

NAME = "fn_none_grad_accumulate"
SOURCE = "pytorch/pytorch#3241"
POINT = "Function returns None for an input that also gets a real grad from another path, so the engine adds undefined + tensor"
EXPECT = "raises: must be Tensor, not NoneType"


class Stop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return None


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(4, device=device, dtype=dtype).requires_grad_()

    def step():
        h = x.exp()
        return (Stop.apply(h) + h.sqrt()).sum()

    return {"x": x}, step
