"""custom Function whose backward adds the gradient to a saved tensor that the step also returns"""

import torch

NAME = "fn_backward_writes_saved_output"
SOURCE = "pytorch/pytorch#172956"
POINT = "custom Function whose backward adds the gradient to a saved tensor that the step also returns"
EXPECT = "parity"
EXPECT_COMPILED = "raises: Node add was invalid, but is output"


class Counts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seen):
        ctx.save_for_backward(seen)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (seen,) = ctx.saved_tensors
        seen.add_(g)
        return g * 2, None


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(4, device=device, dtype=dtype).requires_grad_()

    def step():
        seen = x.detach().clone()
        return Counts.apply(x, seen).square().sum(), seen

    return {"x": x}, step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
