"""jacfwd of products of sums and products in float16, compiled"""

import torch

NAME = "gs_jacfwd_half"
SOURCE = "pytorch/pytorch#194706"
POINT = "jacfwd of products of sums and products in float16, compiled"
EXPECT = "rounding: of float16"
EXPECT_COMPILED = "rounding: of float16"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float16
    x = (torch.arange(1, 10, device=device) / 10).to(dtype).view(3, 3).requires_grad_()

    def f(a):
        return (((a.prod() + a) @ (a.sum() + a)) @ (a.sum() + a)).sum()

    def step():
        return torch.func.jacfwd(f)(x).float().square().sum() * 1e-3

    return {"x": x}, step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
