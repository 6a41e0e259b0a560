"""embedding with sparse gradients inside the compiled step"""

import torch

NAME = "gs_sparse_embedding_compiled"
SOURCE = "pytorch/pytorch#150656"
POINT = "embedding with sparse gradients inside the compiled step"
EXPECT = "parity"
EXPECT_COMPILED = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    emb = torch.nn.Embedding(7, 3, sparse=True, device=device, dtype=dtype)
    lin = torch.nn.Linear(3, 2, device=device, dtype=dtype)
    ids = torch.tensor([[1, 4, 1], [0, 6, 4]], device=device)
    return {
        "emb.weight": emb.weight,
        **{f"lin.{k}": v for k, v in lin.named_parameters()},
    }, lambda: lin(emb(ids)).square().sum()


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
