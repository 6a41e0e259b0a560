"""backward is called separately on every output of one unbind (no retain_graph), with the unbind compiled or not"""

import torch

NAME = "cs_unbind_backward_each"
SOURCE = "pytorch/pytorch#118739"
POINT = "backward is called separately on every output of one unbind (no retain_graph), with the unbind compiled or not"
EXPECT = "parity"
EXPECT_COMPILED = "raises: backward through the graph a second time"

PARTS = {}


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(3, 4, device=device, dtype=dtype).requires_grad_()

    def inner(x):
        return x.unbind(0)

    def around(f):
        def step():
            PARTS["all"] = f(x)
            return sum(p.detach().sum() for p in PARTS["all"])

        return step

    step = around(inner)
    step.inner, step.around = inner, around
    return {"x": x}, step


def backward(loss, params):
    for i, part in enumerate(PARTS["all"]):
        (part * (i + 1)).sum().backward()


def compiled(step, backend="aot_eager"):
    return step.around(torch.compile(step.inner, backend=backend))
