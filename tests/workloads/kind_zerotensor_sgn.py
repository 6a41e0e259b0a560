"""sgn backward yields a ZeroTensor that is then summed with a normal grad"""

import torch

NAME = "kind_zerotensor_sgn"
SOURCE = "pytorch/pytorch#197067"
POINT = "sgn backward yields a ZeroTensor that is then summed with a normal grad"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(3, device=device, dtype=dtype).requires_grad_()
    y = torch.randn(3, device=device, dtype=dtype).requires_grad_()
    return {"x": x, "y": y}, lambda: (torch.sgn(x) * y).sum() + x.square().sum() + torch.sgn(y).sum()
