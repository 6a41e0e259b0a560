"""Function.backward rebuilds a local graph and calls torch.autograd.grad (implicit-layer style)"""

import torch

NAME = "fn_grad_inside_backward"
SOURCE = "pytorch/pytorch#51978"
POINT = "Function.backward rebuilds a local graph and calls torch.autograd.grad (implicit-layer style)"
EXPECT = "parity"


class Implicit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, b):
        z = torch.zeros_like(b)
        for _ in range(30):
            z = torch.tanh(w @ z * 0.3 + b)
        ctx.save_for_backward(w, b, z)
        return z

    @staticmethod
    def backward(ctx, g):
        w, b, z = ctx.saved_tensors
        with torch.enable_grad():
            wi, bi, zi = (t.detach().requires_grad_() for t in (w, b, z))
            f = torch.tanh(wi @ zi * 0.3 + bi)
        u = g
        for _ in range(30):
            u = g + torch.autograd.grad(f, zi, u, retain_graph=True)[0]
        return torch.autograd.grad(f, (wi, bi), u)


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    p = {
        "w": torch.randn(4, 4, device=device, dtype=dtype).requires_grad_(),
        "b": torch.randn(4, device=device, dtype=dtype).requires_grad_(),
    }
    return p, lambda: Implicit.apply(p["w"], p["b"]).square().sum()
