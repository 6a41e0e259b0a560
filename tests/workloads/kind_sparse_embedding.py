"""nn.Embedding(sparse=True): .grad must stay a sparse COO tensor"""

import torch

NAME = "kind_sparse_embedding"
SOURCE = "pytorch/pytorch#4666"
POINT = "nn.Embedding(sparse=True): .grad must stay a sparse COO tensor"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    emb = torch.nn.Embedding(10, 3, sparse=True, device=device, dtype=dtype)
    idx = torch.tensor([[1, 2], [2, 7]], device=device)
    return {"w": emb.weight}, lambda: emb(idx).square().mean()
