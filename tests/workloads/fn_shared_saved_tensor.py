"""the same Function applied twice with a different non-differentiable saved tensor each time (drawers merged the nodes)"""

import torch

NAME = "fn_shared_saved_tensor"
SOURCE = "szagoruyko/pytorchviz#60"
POINT = "the same Function applied twice with a different non-differentiable saved tensor each time (drawers merged the nodes)"
EXPECT = "parity"


class FixedGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, grad_x):
        ctx.save_for_backward(grad_x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g, None


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(3, device=device, dtype=dtype).requires_grad_()
    d1, d2 = torch.rand(3, dtype=dtype), torch.rand(3, dtype=dtype)
    return {"x": x}, lambda: (FixedGrad.apply(x, d1) + FixedGrad.apply(x, d2)).sum()
