"""compiled MLP forward; its AOT backward graph is pasted into the compiled-autograd graph"""

import torch

NAME = "aot_forward_plain"
SOURCE = "pytorch/pytorch#144175"
POINT = "compiled MLP forward; its AOT backward graph is pasted into the compiled-autograd graph"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.SiLU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).to(
        device, dtype
    )
    c = torch.compile(net, backend="aot_eager")
    x = torch.randn(3, 4, device=device, dtype=dtype)
    return dict(net.named_parameters()), lambda: torch.nn.functional.cross_entropy(
        c(x), torch.tensor([0, 1, 1], device=device)
    )
