"""the first of two threads stops inside its backward until the second, with the same parameter, has made its own; .grad must be the sum"""

import threading

import torch

NAME = "cs_two_threads_inside_together"
SOURCE = "pytorch/pytorch#18333, second form"
POINT = "the first of two threads stops inside its backward until the second, with the same parameter, has made its own; .grad must be the sum"
EXPECT = "differs: the first thread's graph was made while .grad was None, and overwrites what the second put there"

LOSSES = {}
WAIT = 20


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float64
    torch.manual_seed(0)
    w = torch.randn(8, 8, device=device, dtype=dtype).requires_grad_()
    x = torch.randn(8, 8, device=device, dtype=dtype)

    def step():
        LOSSES["pair"] = [(x @ w).sin().sum(), (w.t() @ x).cos().square().sum()]
        return LOSSES["pair"][0] + LOSSES["pair"][1]

    return {"w": w}, step


def backward(loss, params):
    """Whoever lets one backward wait for the other at the engine entry makes this wait for WAIT seconds, and `met` False."""
    problems, met = [], []
    inside, done = threading.Event(), threading.Event()

    def first_is_inside(grad):
        inside.set()
        met.append(done.wait(WAIT))

    def work(part, begin, end):
        try:
            begin()
            part.backward()
        except Exception as e:
            problems.append(e)
        finally:
            end()

    first, second = LOSSES["pair"]
    first.register_hook(first_is_inside)
    threads = [
        threading.Thread(target=work, args=(first, lambda: None, inside.set)),
        threading.Thread(target=work, args=(second, lambda: inside.wait(WAIT), done.set)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return {"met": met}
