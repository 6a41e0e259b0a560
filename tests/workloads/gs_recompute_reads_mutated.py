"""a buffer is read, then updated in place in the same compiled forward; the backward needs the value before the update"""

import torch

NAME = "gs_recompute_reads_mutated"
SOURCE = "pytorch/pytorch#197039"
POINT = "a buffer is read, then updated in place in the same compiled forward; the backward needs the value before the update"
EXPECT = "parity"
EXPECT_COMPILED = "differs: aot_eager and inductor silently use the updated buffer; raises: version counter under aot_eager_decomp_partition"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(6, device=device, dtype=dtype).requires_grad_()
    start = torch.rand(6, device=device, dtype=dtype) + 0.5
    buf = start.clone()

    def inner(x, buf):
        scale = (buf * 2).cos()
        out = (x * scale).sin()
        buf.mul_(3).add_(1)
        return out.sum()

    def around(f):
        def step():
            buf.copy_(start)
            return f(x, buf)

        return step

    step = around(inner)
    step.inner, step.around = inner, around
    return {"x": x}, step


def compiled(step, backend="aot_eager"):
    return step.around(torch.compile(step.inner, backend=backend))
