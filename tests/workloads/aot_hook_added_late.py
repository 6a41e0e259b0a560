"""module backward hook registered after the forward was compiled"""

import torch

NAME = "aot_hook_added_late"
SOURCE = "pytorch/pytorch#115750"
POINT = "module backward hook registered after the forward was compiled"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    lin = torch.nn.Linear(3, 3, bias=False, device=device, dtype=dtype)
    f = torch.compile(lambda t: lin(t), backend="aot_eager")
    x = torch.randn(2, 3, device=device, dtype=dtype).requires_grad_()
    f(x)
    lin.register_full_backward_hook(lambda m, gi, go: tuple(None if g is None else 2 * g for g in gi))
    return {"w": lin.weight, "x": x}, lambda: f(x).sum()
