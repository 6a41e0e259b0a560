"""dropout in eval mode returns its very input, which is then doubled in place while the caller goes on using it"""

import torch

NAME = "gs_eval_dropout_alias_inplace"
SOURCE = "pytorch/pytorch#195422"
POINT = "dropout in eval mode returns its very input, which is then doubled in place while the caller goes on using it"
EXPECT = "parity"
EXPECT_COMPILED = "differs: the in-place update is lost (loss and gradient), every AOT backend"

import torch.nn.functional as F


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(5, device=device, dtype=dtype).requires_grad_()

    def step():
        h = x * 3
        d = F.dropout(h, 0.5, False)
        d += d
        return (h * x).sum()

    return {"x": x}, step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
