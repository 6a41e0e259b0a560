"""lazily initialised layers: parameters get their shape in the first forward, after hooks were put on them"""

import torch

NAME = "cs_lazy_modules"
SOURCE = "pytorch/pytorch#53366"
POINT = "lazily initialised layers: parameters get their shape in the first forward, after hooks were put on them"
EXPECT = "parity"

import warnings

import torch.nn as nn


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        net = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(2)).to(device, dtype)
    x = torch.randn(3, 2, 8, device=device, dtype=dtype)
    params = {k: p for k, p in net.named_parameters()}

    def step():
        return net(x).square().sum()

    return params, step
