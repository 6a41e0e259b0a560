"""forward in the main thread (one part compiled), backward called from a worker thread while the main thread waits"""

import torch

NAME = "cs_backward_in_second_thread"
SOURCE = "Nerogar/OneTrainer#1511"
POINT = (
    "forward in the main thread (one part compiled), backward called from a worker thread while the main thread waits"
)
EXPECT = "parity"

import threading


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    a = torch.nn.Linear(5, 5, device=device, dtype=dtype)
    b = torch.nn.Linear(5, 5, device=device, dtype=dtype)
    f = torch.compile(lambda t: b(t).sigmoid(), backend="aot_eager")
    x = torch.randn(3, 5, device=device, dtype=dtype)
    params = {f"{n}.{k}": p for n, m in (("a", a), ("b", b)) for k, p in m.named_parameters()}
    return params, lambda: f(a(x).relu()).square().sum()


def backward(loss, params):
    problem = []

    def work():
        try:
            loss.backward()
        except Exception as e:
            problem.append(e)

    t = threading.Thread(target=work)
    t.start()
    t.join()
    if problem:
        raise problem[0]
    return {"thread": "done"}
