"""second derivative of a product with two zeros"""

import torch

NAME = "ho_prod_zero_twice"
SOURCE = "pytorch/pytorch#106789"
POINT = "second derivative of a product with two zeros"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float64
    x = torch.tensor([2.0, 3.0, 0.0, 0.0], device=device, dtype=dtype).requires_grad_()
    c = torch.tensor([1.0, -2.0, 0.5, 3.0], device=device, dtype=dtype)

    def step():
        (g,) = torch.autograd.grad(x.prod() + x.square().sum(), x, create_graph=True)
        return (g * c).sum()

    return {"x": x}, step
