"""non-reentrant checkpoint nested in an ambient save_on_cpu pack/unpack pair"""

import torch

NAME = "ck_nonreentrant_save_on_cpu"
SOURCE = "pytorch/pytorch#147565"
POINT = "non-reentrant checkpoint nested in an ambient save_on_cpu pack/unpack pair"
EXPECT = "parity"

from torch.utils.checkpoint import checkpoint


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    a = torch.randn(3, 3, device=device, dtype=dtype).requires_grad_()

    def step():
        with torch.autograd.graph.save_on_cpu():
            h = a.pow(2)
            h = checkpoint(lambda t: t.pow(2).sin().pow(2), h, use_reentrant=False)
            return h.pow(2).sum()

    return {"a": a}, step
