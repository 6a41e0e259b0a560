"""two views of an activation and its detached self are all returned from the compiled function"""

import torch

NAME = "gs_detached_sibling_output"
SOURCE = "pytorch/pytorch#194760"
POINT = "two views of an activation and its detached self are all returned from the compiled function"
EXPECT = "parity"
EXPECT_COMPILED = "differs: inductor leaves .grad None"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(8, device=device, dtype=dtype).requires_grad_()

    def inner(x):
        y = torch.sin(x)
        return y[:3], y[3:], y.detach()

    def around(f):
        def step():
            a, b, c = f(x)
            return (a.sum() * 2 + (b * c[3:]).sum()) if a.requires_grad else a.sum()

        return step

    step = around(inner)
    step.inner, step.around = inner, around
    return {"x": x}, step


def backward(loss, params):
    if loss.requires_grad:
        loss.backward()
    return {"requires_grad": loss.requires_grad}


def compiled(step, backend="aot_eager"):
    return step.around(torch.compile(step.inner, backend=backend))
