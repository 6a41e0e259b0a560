"""loop that writes a preallocated output row by row and reads the previous row (recurrent scan with CopySlices)"""

import torch

NAME = "view_loop_write_rows"
SOURCE = "pytorch/pytorch#1111"
POINT = "loop that writes a preallocated output row by row and reads the previous row (recurrent scan with CopySlices)"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    w = (0.3 * torch.randn(6, 6, device=device, dtype=dtype)).requires_grad_()
    x = torch.randn(12, 6, device=device, dtype=dtype).requires_grad_()

    def step():
        out = torch.zeros(13, 6, device=device, dtype=dtype)
        for t in range(12):
            out[t + 1] = torch.tanh(out[t].clone() @ w + x[t])
        return out[1:].square().mean()

    return {"w": w, "x": x}, step
