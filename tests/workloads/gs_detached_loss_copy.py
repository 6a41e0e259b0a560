"""a loss and its detached twin are returned in a dict; the twin is folded into the loss by the compiler"""

import torch

NAME = "gs_detached_loss_copy"
SOURCE = "pytorch/pytorch#100348"
POINT = "a loss and its detached twin are returned in a dict; the twin is folded into the loss by the compiler"
EXPECT = "parity"
EXPECT_COMPILED = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(4, 4, device=device, dtype=dtype).requires_grad_()

    def inner(x):
        loss = (x * x).mean()
        return {"loss": loss, "log": (loss * 1).detach()}

    def around(f):
        def step():
            out = f(x)
            return out["loss"] + 0 * out["log"]

        return step

    step = around(inner)
    step.inner, step.around = inner, around
    return {"x": x}, step


def compiled(step, backend="aot_eager"):
    return step.around(torch.compile(step.inner, backend=backend))
