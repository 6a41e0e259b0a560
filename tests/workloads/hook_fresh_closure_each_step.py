"""new hook objects (lambdas holding a changing number) are registered on every step; hook removed on odd steps"""

import torch

NAME = "hook_fresh_closure_each_step"
SOURCE = "pytorch/pytorch#133303"
POINT = "new hook objects (lambdas holding a changing number) are registered on every step; hook removed on odd steps"
EXPECT = "parity"
REPEAT = 4
STATE = {"n": 0}


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).to(device, dtype)
    x = torch.randn(2, 3, device=device, dtype=dtype).requires_grad_()
    STATE["n"] = 0

    def step():
        k = STATE["n"]
        STATE["n"] += 1
        h = net[0](x)
        handle = h.register_hook(lambda g: g * (k + 1))
        if k % 2:
            handle.remove()
        return net[1](h).sum()

    return dict(net.named_parameters()) | {"x": x}, step
