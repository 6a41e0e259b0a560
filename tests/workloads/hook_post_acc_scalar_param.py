"""post-accumulate-grad hooks on parameters without dimensions"""

import torch

NAME = "hook_post_acc_scalar_param"
SOURCE = "pytorch/pytorch#135207"
POINT = "post-accumulate-grad hooks on parameters without dimensions"
EXPECT = "parity"


def _triple(p):
    p.grad.mul_(3.0)


def _clamp(p):
    p.grad.clamp_(-1.0, 1.0)


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    gain = torch.tensor(0.7, device=device, dtype=dtype).requires_grad_()
    shift = torch.tensor(-0.2, device=device, dtype=dtype).requires_grad_()
    x = torch.randn(5, device=device, dtype=dtype)
    gain.register_post_accumulate_grad_hook(_triple)
    shift.register_post_accumulate_grad_hook(_clamp)
    return {"gain": gain, "shift": shift}, lambda: (x * gain + shift).square().sum()
