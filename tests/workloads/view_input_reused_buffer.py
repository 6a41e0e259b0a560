"""input batch buffer is overwritten between forward and backward, with the matmul compiled (aot_eager) in the forward"""

import torch

NAME = "view_input_reused_buffer"
SOURCE = "pytorch/pytorch#197887"
POINT = "input batch buffer is overwritten between forward and backward, with the matmul compiled (aot_eager) in the forward"
EXPECT = "raises: modified by an inplace operation"
REPEAT = 1


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    w = torch.randn(3, 3, device=device, dtype=dtype).requires_grad_()
    x = torch.randn(2, 3, device=device, dtype=dtype)
    f = torch.compile(lambda a, b: a @ b, backend="aot_eager")

    def step():
        loss = f(x, w).sum()
        x.copy_(torch.ones_like(x))
        return loss

    return {"w": w}, step
