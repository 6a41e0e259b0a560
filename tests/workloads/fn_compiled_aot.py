"""custom Function inside a forward compiled with aot_eager (no graph break), then backward under compiled autograd"""

import torch

NAME = "fn_compiled_aot"
SOURCE = "pytorch/pytorch#160757"
POINT = (
    "custom Function inside a forward compiled with aot_eager (no graph break), then backward under compiled autograd"
)
EXPECT = "raises: list index out of range"


class MatMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.mT, a.mT @ g


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    a = torch.randn(2, 3, device=device, dtype=dtype).requires_grad_()
    b = torch.randn(3, 3, device=device, dtype=dtype).requires_grad_()
    f = torch.compile(lambda u, v: MatMul.apply(u, v), backend="aot_eager")
    return {"a": a, "b": b}, lambda: f(a, b).sum()
