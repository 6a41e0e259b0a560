"""one call with three roots of which the first two lie on the path of the third, each with its own cotangent"""

import torch

NAME = "cs_roots_depend_on_each_other"
SOURCE = "pytorch/pytorch#1605"
POINT = "one call with three roots of which the first two lie on the path of the third, each with its own cotangent"
EXPECT = "parity"

ROOTS = {}


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(6, device=device, dtype=dtype).requires_grad_()

    def step():
        y = x**2
        z = y.sin()
        ROOTS["all"] = (y, z, (z * x).sum())
        return ROOTS["all"][2]

    return {"x": x}, step


def backward(loss, params):
    y, z, s = ROOTS["all"]
    one = torch.ones_like(y)
    torch.autograd.backward([y, z, s, x_root := params["x"] * 1], [one * 0.5, one.cumsum(0), None, -one])
    return {"root_is_leaf": x_root.is_leaf}
