"""diagonal_scatter then a full reduction: gradient of the overwritten base tensor"""

import torch

NAME = "gs_diagonal_scatter"
SOURCE = "pytorch/pytorch#182012"
POINT = "diagonal_scatter then a full reduction: gradient of the overwritten base tensor"
EXPECT = "parity"
EXPECT_COMPILED = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    base = torch.randn(7, 7, device=device, dtype=dtype).requires_grad_()
    diag = torch.randn(6, device=device, dtype=dtype).requires_grad_()
    return {"base": base, "diag": diag}, lambda: torch.diagonal_scatter(base, diag, 1).sum()


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
