"""torch.vmap over a closure that calls torch.autograd.grad on an existing graph"""

import torch

NAME = "ho_vmap_over_grad"
SOURCE = "pytorch/pytorch#138422"
POINT = "torch.vmap over a closure that calls torch.autograd.grad on an existing graph"
EXPECT = "parity"

OUT = {}


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(5, device=device, dtype=dtype).requires_grad_()

    def step():
        OUT["y"] = x**2
        return OUT["y"].sum()

    return {"x": x}, step


def backward(loss, params):
    x, y = params["x"], OUT["y"]
    jac = torch.vmap(lambda v: torch.autograd.grad(y, x, v)[0])(torch.eye(5, dtype=x.dtype))
    return {"jac": jac}
