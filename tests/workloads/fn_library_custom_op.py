"""torch.library.custom_op with register_autograd in the graph"""

import torch

NAME = "fn_library_custom_op"
SOURCE = "pytorch/pytorch#135057"
POINT = "torch.library.custom_op with register_autograd in the graph"
EXPECT = "parity"


@torch.library.custom_op("cabwcases::softsq", mutates_args=())
def softsq(x: torch.Tensor, k: float) -> torch.Tensor:
    return (x * x + k).sqrt()


@softsq.register_fake
def _(x, k):
    return torch.empty_like(x)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output)


def _bw(ctx, g):
    x, y = ctx.saved_tensors
    return g * x / y, None


softsq.register_autograd(_bw, setup_context=_setup)


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(6, device=device, dtype=dtype).requires_grad_()
    return {"x": x}, lambda: softsq(x * 2, 0.1).sum()
