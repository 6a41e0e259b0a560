"""WGAN-style penalty: grad w.r.t. input with create_graph=True of a compiled critic"""

import torch

NAME = "ho_gradient_penalty_compiled"
SOURCE = "pytorch/pytorch#181581"
POINT = "WGAN-style penalty: grad w.r.t. input with create_graph=True of a compiled critic"
EXPECT = "raises: higher order gradients"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LeakyReLU(0.2), torch.nn.Linear(8, 1)).to(device, dtype)
    cnet = torch.compile(net, backend="aot_eager")
    x = torch.randn(5, 4, device=device, dtype=dtype).requires_grad_()
    params = dict(net.named_parameters())
    params["x"] = x
    return params, lambda: cnet(x).sum()


def backward(loss, params):
    (gx,) = torch.autograd.grad(loss, params["x"], create_graph=True)
    gp = (gx.norm(dim=1) - 1).square().mean()
    gp.backward()
    return {"gx": gx}
