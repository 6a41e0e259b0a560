"""rows of an expanded (stride 0) tensor receive index_add/index_put: a compiler that writes in place hits all rows at once"""

import torch

NAME = "gs_expanded_index_add"
SOURCE = "pytorch/pytorch#188084"
POINT = "rows of an expanded (stride 0) tensor receive index_add/index_put: a compiler that writes in place hits all rows at once"
EXPECT = "parity"
EXPECT_COMPILED = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    row = torch.randn(1, 6, device=device, dtype=dtype).requires_grad_()
    src = torch.randn(3, 6, device=device, dtype=dtype).requires_grad_()
    scale = torch.randn(4, 6, device=device, dtype=dtype).requires_grad_()
    at = torch.tensor([2, 0, 2], device=device)

    def step():
        table = row.expand(4, 6)
        table = torch.index_add(table, 0, at, src)
        return (table * scale).sin().sum()

    return {"row": row, "src": src, "scale": scale}, step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
