"""batch size runs 1, 2, 5, 0, 7 in plain eager forward: size-1 and size-0 edges, then dynamic sizes"""

import torch

NAME = "kind_shape_churn"
SOURCE = "pytorch/pytorch#139474"
POINT = "batch size runs 1, 2, 5, 0, 7 in plain eager forward: size-1 and size-0 edges, then dynamic sizes"
EXPECT = "parity"
REPEAT = 5
N = [0]


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    N[0] = 0
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).to(device, dtype)
    pool = torch.randn(8, 3, device=device, dtype=dtype)

    def step():
        b = (1, 2, 5, 0, 7)[N[0] % 5]
        N[0] += 1
        return net(pool[:b]).square().sum()

    return dict(net.named_parameters()), step
