"""one layer used twice under bf16 autocast, once inside a non-reentrant checkpoint: the cast weight is cached in the forward and not in the recomputation"""

import torch

NAME = "ck_autocast_weight_cache"
SOURCE = "pytorch/pytorch#141896"
POINT = "one layer used twice under bf16 autocast, once inside a non-reentrant checkpoint: the cast weight is cached in the forward and not in the recomputation"
EXPECT = "parity"
EXPECT_COMPILED = "rounding: of bfloat16"

from torch.utils.checkpoint import checkpoint


def build(device="cpu", dtype=None):
    torch.manual_seed(0)
    lin = torch.nn.Linear(4, 4, device=device)
    x = torch.randn(3, 4, device=device).requires_grad_()

    def step():
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            h = lin(x)
            h = checkpoint(lambda a: lin(torch.relu(lin(a))), h, use_reentrant=False)
        return h.float().square().sum()

    return {**dict(lin.named_parameters()), "x": x}, step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
