"""post hooks on AccumulateGrad nodes (found through expand_as); they edit .grad in place and log the order"""

import torch

NAME = "hook_accgrad_node_post"
SOURCE = "pytorch/pytorch#138538"
POINT = "post hooks on AccumulateGrad nodes (found through expand_as); they edit .grad in place and log the order"
EXPECT = "parity"

LOG = []


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    ws = {f"w{i}": torch.randn(6, 6, device=device, dtype=dtype).requires_grad_() for i in range(4)}
    x = torch.randn(5, 6, device=device, dtype=dtype)
    keep = []
    for name, w in ws.items():
        node = w.expand_as(w).grad_fn.next_functions[0][0]

        def post(*_unused, name=name, w=w):
            LOG.append((name, w.grad is not None))
            if w.grad is not None:
                w.grad.mul_(0.5)

        node.register_hook(post)
        keep.append(node)

    def step():
        _ = keep
        h = x
        for w in ws.values():
            h = torch.tanh(h @ w)
        return h.square().mean()

    return ws, step


def backward(loss, params):
    LOG.clear()
    loss.backward()
    return {"order": list(LOG)}
