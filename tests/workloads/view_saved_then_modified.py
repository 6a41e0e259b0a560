"""a saved activation is modified in place before backward; eager stops on the version check"""

import torch

NAME = "view_saved_then_modified"
SOURCE = "pytorch/pytorch#185497"
POINT = "a saved activation is modified in place before backward; eager stops on the version check"
EXPECT = "raises: modified by an inplace operation"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(5, device=device, dtype=dtype).requires_grad_()

    def step():
        h = x.exp()
        loss = (h * h).sum()
        with torch.no_grad():
            h.mul_(0)
        return loss

    return {"x": x}, step
