"""a tensor hook tries to switch compiled autograd on while a backward is already running"""

import torch

NAME = "hook_enable_inside_backward"
SOURCE = "unslothai/unsloth#1250"
POINT = "a tensor hook tries to switch compiled autograd on while a backward is already running"
EXPECT = "raises: within another compiled autograd call"

from torch._dynamo import compiled_autograd as _ca


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(3, device=device, dtype=dtype).requires_grad_()

    def hook(g):
        with torch.enable_grad(), _ca._enable(lambda gm: gm):
            y = torch.ones(3, dtype=g.dtype, requires_grad=True)
            y.exp().sum().backward()
        return g * y.grad

    def step():
        h = x * 3
        h.register_hook(hook)
        return h.sum()

    return {"x": x}, step
