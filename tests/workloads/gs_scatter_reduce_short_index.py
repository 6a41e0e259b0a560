"""scatter_reduce with an index that is shorter than its source: the gradient of the source"""

import torch

NAME = "gs_scatter_reduce_short_index"
SOURCE = "pytorch/pytorch#94336"
POINT = "scatter_reduce with an index that is shorter than its source: the gradient of the source"
EXPECT = "parity"
EXPECT_COMPILED = "parity; eager itself is wrong: compare build with otherwise (src rows 1 and 2 should be 0)"


def build(device="cpu", dtype=None, reduce="prod"):
    dtype = dtype or torch.float64
    torch.manual_seed(0)
    base = torch.randn(3, 4, device=device, dtype=dtype).requires_grad_()
    src = torch.randn(3, 4, device=device, dtype=dtype).requires_grad_()
    at = torch.tensor([[0, 1, 2, 0]], device=device)

    def step():
        return (
            torch.scatter_reduce(base, 0, at, src, reduce=reduce)
            * torch.arange(1.0, 13.0, dtype=dtype, device=device).view(3, 4)
        ).sum()

    return {"base": base, "src": src}, step


def otherwise(device="cpu", dtype=None, reduce="prod"):
    """The same with the part of the source that is used."""
    params, _ = build(device, dtype, reduce)
    at = torch.tensor([[0, 1, 2, 0]], device=device)

    def step():
        out = torch.scatter_reduce(params["base"], 0, at, params["src"][:1], reduce=reduce)
        return (out * torch.arange(1.0, 13.0, dtype=out.dtype, device=out.device).view(3, 4)).sum()

    return params, step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
