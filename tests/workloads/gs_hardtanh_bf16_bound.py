"""hardtanh in bfloat16 at inputs equal to the rounded bound"""

import torch

NAME = "gs_hardtanh_bf16_bound"
SOURCE = "pytorch/pytorch#185472"
POINT = "hardtanh in bfloat16 at inputs equal to the rounded bound"
EXPECT = "parity"
EXPECT_COMPILED = "parity (gradients; inductor's forward differs by rounding of the bound)"

import torch.nn.functional as F


def build(device="cpu", dtype=None):
    dtype = dtype or torch.bfloat16
    x = torch.tensor([-0.7, -0.5, 0.3, 0.69921875, 0.7, 0.75], device=device).to(dtype).requires_grad_()
    return {"x": x}, lambda: F.hardtanh(x, -0.7, 0.7).float().sum()


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
