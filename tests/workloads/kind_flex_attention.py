"""flex_attention (higher-order op) in the forward with a learned bias in score_mod"""

import torch

NAME = "kind_flex_attention"
SOURCE = "pytorch/pytorch#158212"
POINT = "flex_attention (higher-order op) in the forward with a learned bias in score_mod"
EXPECT = "raises: does not support backward on CPU"

from torch.nn.attention.flex_attention import flex_attention


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 16, 16, device=device, dtype=dtype).requires_grad_() for _ in range(3))
    bias = torch.randn(2, device=device, dtype=dtype).requires_grad_()

    def mod(score, b, h, qi, ki):
        return score + bias[h]

    return {"q": q, "k": k, "v": v, "bias": bias}, lambda: flex_attention(q, k, v, score_mod=mod).square().sum()
