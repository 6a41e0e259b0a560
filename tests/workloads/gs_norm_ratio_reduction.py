"""conv, division by its own channel sum, scale by a (1, C, 1, 1) parameter: shape of that parameter's compiled gradient"""

import torch

NAME = "gs_norm_ratio_reduction"
SOURCE = "pytorch/pytorch#178080"
POINT = "conv, division by its own channel sum, scale by a (1, C, 1, 1) parameter: shape of that parameter's compiled gradient"
EXPECT = "parity"
EXPECT_COMPILED = "parity"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Conv2d(3, 37, 1, bias=False), torch.nn.Conv2d(37, 1, 1, bias=False)
        self.gain = torch.nn.Parameter(torch.ones(1, 37, 1, 1))

    def forward(self, x):
        h = self.up(x)
        return self.down(h / (h.sum(1, keepdim=True).square() + 1) * self.gain)


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    net = Net().to(device, dtype)
    x = torch.randn(16, 3, 9, 9, device=device, dtype=dtype)
    return dict(net.named_parameters()), lambda: net(x).square().sum()


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
