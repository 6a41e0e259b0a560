"""weight_norm parametrization (fused interface op) on a convolution under torch.compile; the two original tensors get the gradients"""

import torch

NAME = "cs_weight_norm_compiled"
SOURCE = "pytorch/pytorch#121902"
POINT = "weight_norm parametrization (fused interface op) on a convolution under torch.compile; the two original tensors get the gradients"
EXPECT = "parity"
EXPECT_COMPILED = "parity"

from torch.nn.utils.parametrizations import weight_norm


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    conv = weight_norm(torch.nn.Conv1d(3, 4, 3, device=device, dtype=dtype), dim=0)
    x = torch.randn(2, 3, 9, device=device, dtype=dtype)
    return dict(conv.named_parameters()), lambda: conv(x).square().sum()


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
