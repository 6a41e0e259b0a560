"""torch.library.custom_op with no autograd rule: eager raises at backward; does the captured graph say the same?"""

import torch

NAME = "fn_library_op_without_autograd"
SOURCE = "pytorch/pytorch#135057"
POINT = "torch.library.custom_op with no autograd rule: eager raises at backward; does the captured graph say the same?"
EXPECT = "raises: no autograd formula was registered"


@torch.library.custom_op("cabwcases::plainsin", mutates_args=())
def plainsin(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@plainsin.register_fake
def _(x):
    return torch.empty_like(x)


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(3, device=device, dtype=dtype).requires_grad_()
    return {"x": x}, lambda: plainsin(x * 2).sum()
