"""expand_as template tensor: eager leaves its grad None, an AOT backward may give zeros"""

import torch

NAME = "aot_expand_as_unused_grad"
SOURCE = "pytorch/pytorch#151884"
POINT = "expand_as template tensor: eager leaves its grad None, an AOT backward may give zeros"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    a = torch.randn(3, 1, device=device, dtype=dtype).requires_grad_()
    b = torch.randn(3, 4, device=device, dtype=dtype).requires_grad_()
    f = torch.compile(lambda s, t: s.expand_as(t).sum(), backend="aot_eager")
    return {"a": a, "b": b}, lambda: f(a, b) + a.expand_as(b).sum()
