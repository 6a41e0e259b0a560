"""scan higher-order op with a weight closed over by its body while the carry starts without requires_grad"""

import torch

NAME = "gs_scan_closed_over_weight"
SOURCE = "pytorch/pytorch#184528"
POINT = "scan higher-order op with a weight closed over by its body while the carry starts without requires_grad"
EXPECT = "parity"
EXPECT_COMPILED = "parity under aot_eager; raises: InductorError (_local_scalar_dense) under inductor"

from torch._higher_order_ops import scan


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float64
    torch.manual_seed(0)
    a = torch.tensor(0.6, device=device, dtype=dtype).requires_grad_()
    x = torch.randn(6, device=device, dtype=dtype)
    start = torch.tensor(0.2, device=device, dtype=dtype)

    def loop():
        c, ys = start, []
        for t in x:
            c = a * c + t
            ys.append(c)
        return torch.stack(ys).square().sum() + c

    def scanned():
        def body(c, t):
            n = a * c + t
            return n.clone(), n.clone()

        c, ys = scan(body, start, x, dim=0)
        return ys.square().sum() + c

    loop.scanned = scanned
    return {"a": a}, loop


def compiled(step, backend="aot_eager"):
    return torch.compile(step.scanned, backend=backend)
