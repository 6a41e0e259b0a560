"""Tensor.register_hook on an intermediate that rescales its grad, plus two stacked hooks on a leaf"""

import torch

NAME = "hook_intermediate_scale"
SOURCE = "pytorch/pytorch#91468"
POINT = "Tensor.register_hook on an intermediate that rescales its grad, plus two stacked hooks on a leaf"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(7, device=device, dtype=dtype).requires_grad_()
    x.register_hook(lambda g: g + 1)
    x.register_hook(lambda g: g * 2)

    def step():
        y = x.sin()
        y.register_hook(lambda g: 3 * g)
        z = y * y
        z.register_hook(lambda g: None)
        return z.sum()

    return {"x": x}, step
