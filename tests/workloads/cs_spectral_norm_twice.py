"""spectral_norm parametrization used twice in one training forward: its vectors are updated in place between the two uses"""

import torch

NAME = "cs_spectral_norm_twice"
SOURCE = "pytorch/pytorch#66363"
POINT = "spectral_norm parametrization used twice in one training forward: its vectors are updated in place between the two uses"
EXPECT = "parity"

from torch.nn.utils.parametrizations import spectral_norm


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    lin = spectral_norm(torch.nn.Linear(5, 5, device=device, dtype=dtype))
    x = torch.randn(3, 5, device=device, dtype=dtype)
    vectors = {k: v.clone() for k, v in lin.named_buffers()}

    def step():
        for k, v in lin.named_buffers():
            v.copy_(vectors[k])
        return lin(lin(x).tanh()).square().sum()

    return dict(lin.named_parameters()), step
