"""two threads call backward on two losses that share a parameter at the same time; .grad must be the sum"""

import threading

import torch

NAME = "cs_two_threads_backward_at_once"
SOURCE = "pytorch/pytorch#18333"
POINT = "two threads call backward on two losses that share a parameter at the same time; .grad must be the sum"
EXPECT = "raises: within another compiled autograd call"
REPEAT = 1  # later calls may hit the cache, and those are too short to be sure to overlap

LOSSES = {}


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float64
    torch.manual_seed(0)
    w = torch.randn(8, 8, device=device, dtype=dtype).requires_grad_()
    x = torch.randn(8, 8, device=device, dtype=dtype)

    def long(h):
        """Tracing this takes far longer than Python leaves another thread waiting, so that two traces overlap."""
        for _ in range(50):
            h = h * 1.01
        return h.sum()

    def step():
        LOSSES["pair"] = [long((x @ w).sin()), long((w.t() @ x).cos().square())]
        return LOSSES["pair"][0] + LOSSES["pair"][1]

    return {"w": w}, step


def backward(loss, params):
    problems, gate = [], threading.Barrier(2)

    def work(part):
        try:
            gate.wait()
            part.backward()
        except Exception as e:
            problems.append(e)

    threads = [threading.Thread(target=work, args=(p,)) for p in LOSSES["pair"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        params["w"].grad = None  # chance decides which of the two got in
        raise problems[0]
