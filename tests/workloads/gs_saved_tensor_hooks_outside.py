"""saved-tensor hooks that change values are active around a compiled call"""

import torch

NAME = "gs_saved_tensor_hooks_outside"
SOURCE = "pytorch/pytorch#116221"
POINT = "saved-tensor hooks that change values are active around a compiled call"
EXPECT = "parity"
EXPECT_COMPILED = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    a = torch.randn(3, device=device, dtype=dtype).requires_grad_()
    b = torch.randn(3, device=device, dtype=dtype).requires_grad_()

    def inner(a, b):
        return (a * b).sum()

    def around(f):
        def step():
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 2):
                return f(a, b)

        return step

    step = around(inner)
    step.inner, step.around = inner, around
    return {"a": a, "b": b}, step


def compiled(step, backend="aot_eager"):
    return step.around(torch.compile(step.inner, backend=backend))
