"""chain of 10,000 elementwise nodes: walkers must not recurse"""

import torch

NAME = "cs_deep_chain"
SOURCE = "pytorch/pytorch#5534"
POINT = "chain of 10,000 elementwise nodes: walkers must not recurse"
EXPECT = "parity"


def build(device="cpu", dtype=None, depth=10_000):
    dtype = dtype or torch.float64
    torch.manual_seed(0)
    x = torch.randn(4, device=device, dtype=dtype).requires_grad_()

    def step():
        h = x
        for _ in range(depth):
            h = h * 1.0001
        return h.sum()

    return {"x": x}, step
