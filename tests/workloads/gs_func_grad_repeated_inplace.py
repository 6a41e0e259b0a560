"""torch.func.grad inside the compiled function over a buffer whose column is incremented twice; the result is differentiated again"""

import torch

NAME = "gs_func_grad_repeated_inplace"
SOURCE = "pytorch/pytorch#136662"
POINT = "torch.func.grad inside the compiled function over a buffer whose column is incremented twice; the result is differentiated again"
EXPECT = "parity"
EXPECT_COMPILED = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(3, 4, device=device, dtype=dtype).requires_grad_()

    def energy(t):
        acc = torch.zeros_like(t)
        acc[:, 0] += t[:, 2] ** 3
        acc[:, 0] += t[:, 2] ** 3
        return acc.sum()

    return {"x": x}, lambda: torch.func.grad(energy)(x).square().sum()


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
