"""detect_anomaly with a NaN appearing only in backward (0 * inf in a masked sqrt)"""

import torch

NAME = "kind_anomaly_nan"
SOURCE = "pytorch/pytorch#100854"
POINT = "detect_anomaly with a NaN appearing only in backward (0 * inf in a masked sqrt)"
EXPECT = "raises: NaN gradients"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    x = torch.tensor([0.0, 1.0, 4.0], device=device, dtype=dtype).requires_grad_()

    def step():
        return torch.where(x > 0, x.sqrt(), torch.zeros_like(x)).sum()

    return {"x": x}, step


def backward(loss, params):
    with torch.autograd.detect_anomaly():
        loss.backward()
