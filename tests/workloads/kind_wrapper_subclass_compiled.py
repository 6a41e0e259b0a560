"""__torch_dispatch__ wrapper subclass (two inner tensors) as parameter of a compiled forward; AOT epilogue rebuilds the subclass"""

import torch

NAME = "kind_wrapper_subclass_compiled"
SOURCE = "pytorch/pytorch#128636"
POINT = "__torch_dispatch__ wrapper subclass (two inner tensors) as parameter of a compiled forward; AOT epilogue rebuilds the subclass"
EXPECT = "parity"

from torch.testing._internal.two_tensor import TwoTensor


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    a = torch.randn(3, 3, device=device, dtype=dtype)
    w = torch.nn.Parameter(TwoTensor(a, 2 * a))
    x = torch.randn(2, 3, device=device, dtype=dtype)
    f = torch.compile(lambda t, p: (t @ p).sin(), backend="aot_eager")
    return {"w": w}, lambda: f(x, w).sum()


def backward(loss, params):
    loss.backward()
    g = params["w"].grad
    params["w"].grad = None
    return {"cls": type(g).__name__, "a": getattr(g, "a", g), "b": getattr(g, "b", g)}
