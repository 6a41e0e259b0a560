"""pseudo-inverse of a complex matrix: value and gradient of the first compiled step against later ones"""

import torch

NAME = "gs_complex_pinv"
SOURCE = "pytorch/pytorch#197084"
POINT = "pseudo-inverse of a complex matrix: value and gradient of the first compiled step against later ones"
EXPECT = "parity"
EXPECT_COMPILED = "differs: first call after each compilation only (forward value and gradient), every AOT backend"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.complex64
    torch.manual_seed(0)
    a = torch.randn(4, 3, device=device, dtype=dtype).requires_grad_()
    return {"a": a}, lambda: torch.linalg.pinv(a).abs().square().sum() + torch.linalg.pinv(a).real.sum()


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
