"""associative_scan over a pair (factor, addend) of which only the addend is used: gradients of the factor"""

import torch

NAME = "gs_associative_scan_two_leaves"
SOURCE = "pytorch/pytorch#172568"
POINT = "associative_scan over a pair (factor, addend) of which only the addend is used: gradients of the factor"
EXPECT = "parity"
EXPECT_COMPILED = "parity (combine_mode generic; the report's pointwise needs CUDA)"

from torch._higher_order_ops import associative_scan


def join(left, right):
    return left[0] * right[0], right[1] + right[0] * left[1]


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float64
    torch.manual_seed(0)
    decay = (torch.rand(6, 2, device=device, dtype=dtype) * 0.9).requires_grad_()
    drive = torch.randn(6, 2, device=device, dtype=dtype).requires_grad_()

    def step():
        _, state = associative_scan(join, (decay, drive), dim=0, combine_mode="generic")
        return state.square().sum()

    return {"decay": decay, "drive": drive}, step


def otherwise(device="cpu", dtype=None):
    """The same recurrence as a Python loop."""
    params, _ = build(device, dtype)

    def step():
        state, total = torch.zeros_like(params["drive"][0]), 0.0
        for a, b in zip(params["decay"], params["drive"], strict=True):
            state = a * state + b
            total = total + state.square().sum()
        return total

    return params, step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
