"""the same loss is backpropagated twice with retain_graph into existing .grad, then a third time without it"""

import torch

NAME = "ho_accumulate_twice_retain"
SOURCE = "pytorch/pytorch#11192"
POINT = "the same loss is backpropagated twice with retain_graph into existing .grad, then a third time without it"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    w = torch.randn(4, 4, device=device, dtype=dtype).requires_grad_()
    x = torch.randn(2, 4, device=device, dtype=dtype)
    return {"w": w}, lambda: (x @ w).sigmoid().sum()


def backward(loss, params):
    ids = []
    loss.backward(retain_graph=True)
    ids.append(id(params["w"].grad))
    loss.backward(retain_graph=True)
    ids.append(id(params["w"].grad))
    loss.backward()
    ids.append(id(params["w"].grad))
    return {"same_grad_object": ids[0] == ids[1] == ids[2]}
