"""register_multi_grad_hook over activations and leaves (modes all and any)"""

import torch

NAME = "hook_multi_grad"
SOURCE = "pytorch/pytorch#131753"
POINT = "register_multi_grad_hook over activations and leaves (modes all and any)"
EXPECT = "parity"

GOT = {"all": [], "any": [], "handles": []}


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    p = {k: torch.randn(4, device=device, dtype=dtype).requires_grad_() for k in "abc"}

    def step():
        t = [p["a"] * 2, p["b"].exp(), p["c"]]
        reg = torch.autograd.graph.register_multi_grad_hook
        h1 = reg(
            t, lambda gs: GOT["all"].append([None if g is None else round(g.double().sum().item(), 4) for g in gs])
        )
        h2 = reg(t, lambda g: GOT["any"].append(tuple(g.shape)), mode="any")
        GOT["handles"] = [h1, h2]
        return (t[0] * t[1]).sum() + t[2].sigmoid().sum()

    return p, step


def backward(loss, params):
    GOT["all"].clear()
    GOT["any"].clear()
    loss.backward()
    for h in GOT["handles"]:
        h.remove()
    return {"all": list(GOT["all"]), "any": list(GOT["any"])}
