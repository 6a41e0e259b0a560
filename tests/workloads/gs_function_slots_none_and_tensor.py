"""one tensor in three argument places of a custom Function whose backward returns a tensor, None and another tensor"""

import torch

NAME = "gs_function_slots_none_and_tensor"
SOURCE = "pytorch/pytorch#181146"
POINT = (
    "one tensor in three argument places of a custom Function whose backward returns a tensor, None and another tensor"
)
EXPECT = "raises: add(): argument 'other' (position 2) must be Tensor, not NoneType"
EXPECT_COMPILED = "parity"


class ThreePlaces(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, q, r):
        ctx.save_for_backward(q)
        return p * 2 + q.detach() + r * 5

    @staticmethod
    def backward(ctx, g):
        (q,) = ctx.saved_tensors
        return g * 2 * q, None, g * 5


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(4, device=device, dtype=dtype).requires_grad_()
    y = torch.randn(4, device=device, dtype=dtype).requires_grad_()
    return {"x": x, "y": y}, lambda: ThreePlaces.apply(x, x, x).sum() + (ThreePlaces.apply(y, x, y) * x).sum()


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
