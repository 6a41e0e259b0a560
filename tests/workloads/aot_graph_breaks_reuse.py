"""forward with graph breaks and the same compiled region called three times; saved activations come from several regions"""

import torch

NAME = "aot_graph_breaks_reuse"
SOURCE = "pytorch/pytorch#132939"
POINT = "forward with graph breaks and the same compiled region called three times; saved activations come from several regions"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    w = torch.randn(4, 4, device=device, dtype=dtype).requires_grad_()
    x = torch.randn(4, device=device, dtype=dtype)

    @torch.compile(backend="aot_eager")
    def block(t, m):
        t = (t @ m).sin()
        torch._dynamo.graph_break()
        return t.cos() * t

    return {"w": w}, lambda: block(block(block(x, w), w), w).sum()
