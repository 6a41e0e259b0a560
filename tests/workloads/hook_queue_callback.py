"""custom Function.backward queues an engine final callback that reads the finished grads"""

import torch

NAME = "hook_queue_callback"
SOURCE = "pytorch/pytorch#135017"
POINT = "custom Function.backward queues an engine final callback that reads the finished grads"
EXPECT = "differs: the queued final callback never runs with an identity compiler"

SEEN = []


class Sink(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, params):
        ctx.params = params
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        params = ctx.params

        def done():
            SEEN.append(
                sorted((k, round(p.grad.double().norm().item(), 5)) for k, p in params.items() if p.grad is not None)
            )

        torch.autograd.Variable._execution_engine.queue_callback(done)
        return g, None


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    p = {
        "a": torch.randn(4, 4, device=device, dtype=dtype).requires_grad_(),
        "b": torch.randn(4, device=device, dtype=dtype).requires_grad_(),
    }
    x = torch.randn(3, 4, device=device, dtype=dtype)

    def step():
        return Sink.apply(x @ p["a"] + p["b"], p).sigmoid().sum()

    return p, step


def backward(loss, params):
    SEEN.clear()
    loss.backward()
    return {"callback": list(SEEN)}
