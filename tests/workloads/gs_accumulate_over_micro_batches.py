"""several compiled micro-batches accumulate into one .grad"""

import torch

NAME = "gs_accumulate_over_micro_batches"
SOURCE = "pytorch/pytorch#96693"
POINT = "several compiled micro-batches accumulate into one .grad"
EXPECT = "parity"
EXPECT_COMPILED = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(device, dtype)
    data = torch.randn(4, 6, 8, device=device, dtype=dtype)
    call = [net]

    def step():
        total = 0.0
        for batch in data:
            loss = call[0](batch).mean() / len(data)
            loss.backward()
            total += float(loss.detach())
        return total

    step.call, step.net = call, net
    return dict(net.named_parameters()), step


def compiled(step, backend="aot_eager"):
    fast = torch.compile(step.net, backend=backend)

    def run():
        step.call[0] = fast
        try:
            return step()
        finally:
            step.call[0] = step.net

    return run
