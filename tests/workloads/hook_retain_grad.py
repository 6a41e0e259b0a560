"""retain_grad() on activations, including one later replaced in place; .grad of activations is compared"""

import torch

NAME = "hook_retain_grad"
SOURCE = "pytorch/pytorch#138901"
POINT = "retain_grad() on activations, including one later replaced in place; .grad of activations is compared"
EXPECT = "parity"

ACTS = {}


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    w = torch.randn(5, 5, device=device, dtype=dtype).requires_grad_()
    x = torch.randn(3, 5, device=device, dtype=dtype)

    def step():
        a = x @ w
        a.retain_grad()
        b = a.exp()
        b.retain_grad()
        c = b.clone()
        c.retain_grad()
        c.mul_(2)
        ACTS.clear()
        ACTS.update(a=a, b=b, c=c)
        return c.log1p().sum()

    return {"w": w}, step


def backward(loss, params):
    loss.backward()
    return {k: (None if t.grad is None else t.grad.clone()) for k, t in ACTS.items()}
