"""low-rank adapters on frozen layers inside checkpoints; the reentrant one sees no input that needs grad, so its adapters get none"""

import torch

NAME = "cs_lora_reentrant_frozen_input"
SOURCE = "huggingface/peft#1142"
POINT = "low-rank adapters on frozen layers inside checkpoints; the reentrant one sees no input that needs grad, so its adapters get none"
EXPECT = "parity"

import warnings

import torch.nn as nn
from torch.utils.checkpoint import checkpoint


class Adapted(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.base = nn.Linear(d, d).requires_grad_(False)
        self.down, self.up = nn.Linear(d, 2, bias=False), nn.Linear(2, d, bias=False)

    def forward(self, x):
        return torch.relu(self.base(x) + self.up(self.down(x)))


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    net = nn.ModuleList(Adapted(6) for _ in range(3)).to(device, dtype)
    x = torch.randn(2, 6, device=device, dtype=dtype)

    def step():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            h = checkpoint(net[0], x, use_reentrant=True)
            h = checkpoint(net[1], h, use_reentrant=False)
            h = checkpoint(net[2], h, use_reentrant=True)
        return h.square().sum()

    return dict(net.named_parameters()), step
