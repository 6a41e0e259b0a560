"""loss.backward(create_graph=True) leaves .grad with a graph, then .grad is differentiated"""

import torch

NAME = "ho_backward_create_graph"
SOURCE = "pytorch/pytorch#183603"
POINT = "loss.backward(create_graph=True) leaves .grad with a graph, then .grad is differentiated"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(4, device=device, dtype=dtype).requires_grad_()
    return {"x": x}, lambda: (x**4).sum()


def backward(loss, params):
    x = params["x"]
    loss.backward(create_graph=True)
    g = x.grad
    (h,) = torch.autograd.grad(g.sum(), x)
    out = {"g_requires_grad": bool(g.requires_grad), "h": h}
    x.grad = g.detach()
    return out
