"""autograd.grad(is_grads_batched=True): a whole Jacobian in one vmapped backward"""

import torch

NAME = "ho_grads_batched"
SOURCE = "pytorch/pytorch#76290"
POINT = "autograd.grad(is_grads_batched=True): a whole Jacobian in one vmapped backward"
EXPECT = "raises: not supported by FakeTensorMode"

OUT = {}


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    x = torch.randn(5, device=device, dtype=dtype).requires_grad_()

    def step():
        OUT["y"] = torch.stack([x.sin().sum(), x.prod(), (x * x).mean()])
        return OUT["y"].sum()

    return {"x": x}, step


def backward(loss, params):
    (jac,) = torch.autograd.grad(
        OUT["y"], params["x"], grad_outputs=torch.eye(3, dtype=params["x"].dtype), is_grads_batched=True
    )
    params["x"].grad = jac.sum(0)
    return {"jac": jac}
