"""Small real models with one trait of a module tree each, and their captured backwards, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import cabw_viz
from cabw_viz.surfaces.capture import Capture


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Tied(nn.Module):
    """An embedding, four layers that are built alike, and a head that shares the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        layers = [nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(4)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).logsumexp(-1)


class Twice(nn.Module):
    """`shared` is called, then `between`, then `shared` again."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.between = nn.Linear(4, 4)

    def forward(self, x):
        return self.shared(self.between(self.shared(x)))


class Turns(nn.Module):
    """Two lists of modules, called in turn: no gradient can stay in either."""

    def __init__(self, count=6):
        super().__init__()
        self.first = nn.ModuleList([nn.Linear(4, 4) for _ in range(count)])
        self.second = nn.ModuleList([nn.Tanh() for _ in range(count)])

    def forward(self, x):
        for first, second in zip(self.first, self.second, strict=True):
            x = second(first(x))
        return x


class Residual(nn.Module):
    """Two stages of which the first block is another than the rest."""

    class Block(nn.Module):
        def __init__(self, wide, out):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(wide, out, 3, padding=1), nn.BatchNorm2d(out)
            self.short = nn.Conv2d(wide, out, 1) if wide != out else None

        def forward(self, x):
            return torch.relu(self.norm(self.conv(x)) + (x if self.short is None else self.short(x)))

    def __init__(self):
        super().__init__()
        self.stage1 = nn.Sequential(*[self.Block(3 if i == 0 else 4, 4) for i in range(3)])
        self.stage2 = nn.Sequential(*[self.Block(4 if i == 0 else 6, 6) for i in range(3)])

    def forward(self, x):
        return self.stage2(self.stage1(x))


class Rows(nn.Module):
    """Writes to views of a buffer, and a custom Function."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        out = torch.zeros(3, 4)
        for row in range(3):
            out[row] = Double.apply(self.inner(x[row]))
        return out


class Unrolled(nn.Module):
    """A cell called for every step, and a head after each."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        state, out = None, []
        for step in x:
            state = self.cell(step, state)
            out.append(self.head(state[0]))
        return torch.stack(out)


def _checkpointed():
    model = nn.ModuleDict(
        {"blocks": nn.ModuleList([nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(3)])}
    )

    def run():
        x = torch.randn(2, 4, requires_grad=True)
        for block in model.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        x.sum().backward()

    return model, run


def _hooked():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(5)])
    model[2][0].weight.register_post_accumulate_grad_hook(lambda _: None)

    def run():
        model(torch.randn(2, 4, requires_grad=True)).sum().backward()

    return model, run


def _compiled():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.GELU()), nn.Linear(4, 2))
    fast = torch.compile(model[1], backend="aot_eager")
    return model, lambda: model[2](fast(model[0](torch.randn(2, 4)))).sum().backward()


def _of(model, x) -> Callable[[], tuple[nn.Module, Callable[[], None]]]:
    return lambda: (made := model(), lambda: made(x()).square().mean().backward())


MODELS: dict[str, Callable[[], tuple[nn.Module, Callable[[], None]]]] = {
    "tied": _of(Tied, lambda: torch.randint(0, 20, (2, 3))),
    "twice": _of(Twice, lambda: torch.randn(2, 4)),
    "turns": _of(Turns, lambda: torch.randn(2, 4)),
    "residual": _of(Residual, lambda: torch.randn(2, 3, 5, 5)),
    "rows": _of(Rows, lambda: torch.randn(3, 4)),
    "unrolled": _of(Unrolled, lambda: torch.randn(6, 2, 4)),
    "lstm": _of(lambda: Whole(nn.LSTM(4, 4, 2)), lambda: torch.randn(3, 2, 4)),
    "checkpointed": _checkpointed,
    "hooked": _hooked,
    "compiled": _compiled,
}


class Whole(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@cache
def capture_of_model(name: str) -> Capture:
    """The backward of one of the models."""
    torch.manual_seed(0)
    model, run = MODELS[name]()
    with cabw_viz.capture(model, lines=name != "compiled") as session:  # "auto" is off once anything was compiled
        run()
    return session[0]
