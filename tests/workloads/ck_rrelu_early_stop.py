"""RReLU as the last op of a non-reentrant checkpoint: the recomputation stops at the pack hook of the noise, before the kernel has filled it"""

import torch

NAME = "ck_rrelu_early_stop"
SOURCE = "pytorch/pytorch#193671"
POINT = "RReLU as the last op of a non-reentrant checkpoint: the recomputation stops at the pack hook of the noise, before the kernel has filled it"
EXPECT = "differs: eager itself gives garbage, another in each run (uninitialised noise); right with early_stop=False or without checkpoint"
EXPECT_COMPILED = "differs: aot_eager and inductor are right, eager is not"

from torch.utils.checkpoint import checkpoint


def build(device="cpu", dtype=None, early_stop=True, use=True):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.RReLU(0.2, 0.9)).to(device, dtype).train()
    x = torch.randn(16, 6, device=device, dtype=dtype).requires_grad_()
    params = dict(net.named_parameters(), x=x)

    def step():
        torch.manual_seed(7)
        out = checkpoint(net, x, use_reentrant=False, early_stop=early_stop) if use else net(x)
        return (out * out.detach().sign()).sum()

    return params, step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
