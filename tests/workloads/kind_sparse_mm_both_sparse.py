"""product of two sparse matrices: the gradient is masked to the pattern"""

import torch

NAME = "kind_sparse_mm_both_sparse"
SOURCE = "pytorch/pytorch#102493"
POINT = "product of two sparse matrices: the gradient is masked to the pattern"
EXPECT = "differs: the gradient of a has the same values, and is not marked as coalesced in eager only"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float64
    torch.manual_seed(0)
    dense = torch.randn(3, 3, device=device, dtype=dtype)
    a = (dense * (dense > 0)).to_sparse().requires_grad_()
    b = torch.randn(3, 3, device=device, dtype=dtype).requires_grad_()
    return {"a": a, "b": b}, lambda: torch.sparse.mm(a, b).square().sum()
