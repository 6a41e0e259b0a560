"""abs and angle of a transposed complex tensor, backward under inductor"""

import torch

NAME = "gs_complex_transposed_abs"
SOURCE = "pytorch/pytorch#184101"
POINT = "abs and angle of a transposed complex tensor, backward under inductor"
EXPECT = "parity"
EXPECT_COMPILED = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.complex64
    torch.manual_seed(0)
    z = torch.randn(3, 5, device=device, dtype=dtype).requires_grad_()
    return {"z": z}, lambda: z.mT.abs().sum() + (z.T.angle() * 0.5).sin().sum()


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
