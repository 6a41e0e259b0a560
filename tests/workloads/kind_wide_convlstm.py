"""ConvLSTM unrolled over time: a graph of thousands of nodes that drawers could not show"""

import torch

NAME = "kind_wide_convlstm"
SOURCE = "szagoruyko/pytorchviz#71"
POINT = "ConvLSTM unrolled over time: a graph of thousands of nodes that drawers could not show"
EXPECT = "parity"

import torch.nn.functional as F


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(1 + 4, 16, 3, padding=1, device=device, dtype=dtype)
    out = torch.nn.Conv2d(4, 1, 1, device=device, dtype=dtype)
    x = torch.rand(1, 8, 1, 8, 8, device=device, dtype=dtype)
    ps = {f"{n}.{k}": p for n, l in (("conv", conv), ("out", out)) for k, p in l.named_parameters()}

    def step():
        h = c = x.new_zeros(1, 4, 8, 8)
        loss = x.new_zeros(())
        for t in range(x.shape[1]):
            i, f, g, o = conv(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            loss = loss + F.binary_cross_entropy_with_logits(out(h), x[:, t])
        return loss

    return ps, step
