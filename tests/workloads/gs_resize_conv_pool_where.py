"""bilinear resize, crop, conv, overlapping max pool and a where between the two last: several consumers of one activation"""

import torch

NAME = "gs_resize_conv_pool_where"
SOURCE = "pytorch/pytorch#185509"
POINT = "bilinear resize, crop, conv, overlapping max pool and a where between the two last: several consumers of one activation"
EXPECT = "parity"
EXPECT_COMPILED = "parity"

import torch.nn.functional as F


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 8, device=device, dtype=dtype).requires_grad_()
    w = torch.randn(4, 3, 3, 3, device=device, dtype=dtype).requires_grad_()
    b = torch.randn(4, device=device, dtype=dtype).requires_grad_()

    def parts():
        c = F.conv2d(
            F.interpolate(x, scale_factor=(1.5, 1.25), mode="bilinear", align_corners=False)[..., 1:8, 1:9],
            w,
            b,
            padding=1,
        )
        return c, F.max_pool2d(c, 3, stride=1, padding=1)

    with torch.no_grad():
        c, p = parts()
        mask = c > p.mean((2, 3), keepdim=True)

    def step():
        c, p = parts()
        return (torch.where(mask, c, p) * 0.5).square().sum()

    return {"x": x, "w": w, "b": b}, step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
