"""vmap over a function that takes jacrev with aux, compiled"""

import torch

NAME = "gs_vmap_jacrev_inner_compiled"
SOURCE = "pytorch/pytorch#154036"
POINT = "vmap over a function that takes jacrev with aux, compiled"
EXPECT = "parity"
EXPECT_COMPILED = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float64
    torch.manual_seed(0)
    nu = torch.tensor(0.3, device=device, dtype=dtype).requires_grad_()
    x = torch.linspace(-1, 1, 7, device=device, dtype=dtype).requires_grad_()

    def phi(u):
        return torch.exp(-(u - 0.2).square() / (4 * nu))

    def velocity(u):
        slope, value = torch.func.jacrev(lambda v: (phi(v), phi(v)), has_aux=True)(u)
        return -2 * nu * slope / value

    def step():
        return torch.vmap(velocity)(x).square().sum()

    return {"nu": nu, "x": x}, step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
