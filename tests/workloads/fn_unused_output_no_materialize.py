"""two-output Function with set_materialize_grads(False); only one output is used, backward sees None"""

import torch

NAME = "fn_unused_output_no_materialize"
SOURCE = "pytorch/pytorch#106391"
POINT = "two-output Function with set_materialize_grads(False); only one output is used, backward sees None"
EXPECT = "parity"


class SinCos(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, gs, gc):
        (x,) = ctx.saved_tensors
        out = torch.zeros_like(x)
        if gs is not None:
            out = out + gs * x.cos()
        if gc is not None:
            out = out - gc * x.sin()
        return out


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(5, device=device, dtype=dtype).requires_grad_()
    return {"x": x}, lambda: SinCos.apply(x * 1.5)[0].sum()
