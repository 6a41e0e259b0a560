"""under autocast a layer runs first without and then with gradients: a cached cast of its weight must not cut the second"""

import torch

NAME = "aot_autocast_cache_no_grad"
SOURCE = "pytorch/pytorch#158232"
POINT = "under autocast a layer runs first without and then with gradients: a cached cast of its weight must not cut the second"
EXPECT = "parity"
EXPECT_COMPILED = "parity; inductor rounds the bias gradient less (bf16 sum kept in float32)"


def build(device="cpu", dtype=None):
    torch.manual_seed(0)
    lin = torch.nn.Linear(4, 4, device=device)
    x = torch.randn(3, 4, device=device)

    def step():
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            with torch.no_grad():
                target = lin(x)
            return (lin(x) - 2 * target.float()).square().sum()

    return dict(lin.named_parameters()), step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
