"""Function with setup_context, generate_vmap_rule and an unused jvp"""

import torch

NAME = "fn_unused_jvp"
SOURCE = "pytorch/pytorch#180284"
POINT = "Function with setup_context, generate_vmap_rule and an unused jvp"
EXPECT = "parity"


class Rot(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(t, c, s, sign):
        a, b = t.chunk(2, -1)
        return torch.cat([a * c - sign * b * s, b * c + sign * a * s], -1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        t, c, s, sign = inputs
        ctx.save_for_backward(c, s)
        ctx.save_for_forward(c, s)
        ctx.sign = sign

    @staticmethod
    def backward(ctx, g):
        c, s = ctx.saved_tensors
        return Rot.apply(g, c, s, -ctx.sign), None, None, None

    @staticmethod
    def jvp(ctx, dt, dc, ds, dsign):
        c, s = ctx.saved_tensors
        return Rot.apply(dt, c, s, ctx.sign)


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    qkv = torch.nn.Linear(8, 8, device=device, dtype=dtype)
    x = torch.randn(2, 5, 8, device=device, dtype=dtype)
    ang = torch.linspace(0, 1, 20, device=device, dtype=dtype).view(5, 4)
    c, s = ang.cos(), ang.sin()
    return dict(qkv.named_parameters()), lambda: Rot.apply(qkv(x), c, s, 1).square().mean()
