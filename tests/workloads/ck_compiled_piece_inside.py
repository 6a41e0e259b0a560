"""compiled elementwise function inside a non-reentrant checkpointed module, parameters shared by two blocks"""

import torch

NAME = "ck_compiled_piece_inside"
SOURCE = "pytorch/pytorch#106555"
POINT = "compiled elementwise function inside a non-reentrant checkpointed module, parameters shared by two blocks"
EXPECT = "parity"

from torch.utils.checkpoint import checkpoint

_gate = torch.compile(lambda a, b, c: a * torch.sigmoid(b + c), backend="aot_eager")


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    l1, l2 = (torch.nn.Linear(6, 6, bias=False, device=device, dtype=dtype) for _ in range(2))
    bias = torch.zeros(6, device=device, dtype=dtype).requires_grad_()
    x = torch.randn(3, 6, device=device, dtype=dtype)
    block = lambda t: _gate(l1(t), l2(t), bias)
    ps = {"l1": l1.weight, "l2": l2.weight, "bias": bias}
    return ps, lambda: block(checkpoint(block, x, use_reentrant=False)).sum()
