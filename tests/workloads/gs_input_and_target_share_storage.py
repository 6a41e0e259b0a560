"""inputs and targets are overlapping slices of one integer buffer, with a graph break in the loop over layers and a language-model loss"""

import torch

NAME = "gs_input_and_target_share_storage"
SOURCE = "pytorch/pytorch#190938"
POINT = "inputs and targets are overlapping slices of one integer buffer, with a graph break in the loop over layers and a language-model loss"
EXPECT = "parity"
EXPECT_COMPILED = "parity"

import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(11, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(3))
        self.head = nn.Linear(6, 11, bias=False)

    def forward(self, tokens, target):
        h = self.emb(tokens)
        for layer in self.layers:
            torch._dynamo.graph_break()
            h = h + layer(h)
        return F.cross_entropy(self.head(h).flatten(0, 1), target.flatten())


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    net = Net().to(device, dtype)
    text = torch.randint(0, 11, (2, 9), device=device)
    return dict(net.named_parameters()), lambda: net(text[:, :-1], text[:, 1:])


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
