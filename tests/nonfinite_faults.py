"""Faults that make NaN or infinity in a module's forward or backward, and what is to be said of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from cabw_viz.record.nonfinite import Way
from tests.definitions import MODELS

PLACES = {"mlp": "2", "gpt2": "transformer.h.1.mlp.act", "resnet": "layer2.1.bn2", "lstm": "embed"}
"""The module of each model whose result is changed."""


class LargeGradient(torch.autograd.Function):
    """Its input; its gradient is large and of one sign."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return torch.full_like(g, 2.5e38)


class MakesNan(torch.autograd.Function):
    """Its input; a NaN in its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        result = g.clone()
        result.view(-1)[0] = float("nan")
        return result


def nan_hook(gradient):
    return gradient * float("nan")


def hooked(x):
    y = x * 1.0
    y.register_hook(nan_hook)
    return y


def summed(x):
    y = x * 1.0
    return (LargeGradient.apply(y) + LargeGradient.apply(y)) / 2


def root_at_zero(x):
    return x + (x * 0).sqrt()


def root_not_selected(x):
    return torch.where(x * 0 > 1, (x * 0).sqrt(), x)


def compiled(x):
    return torch.compile(root_at_zero, backend="aot_eager")(x)


def reciprocal_not_selected(x):
    return torch.where(x * 0 > 1, x / (x * 0), x)


@dataclass(frozen=True)
class Fault:
    """A change of a module's result, and where it is to be found."""

    change: Callable[[torch.Tensor], torch.Tensor]
    stage: str
    name: str
    ways: tuple[Way, ...]


FAULTS = {
    "forward_nan": Fault(lambda x: (-x.abs()).sqrt() + x, "forward", "SqrtBackward0", ("outside_domain",)),
    "forward_exp": Fault(lambda x: (x * 1e6).abs().exp() * 0 + x, "forward", "ExpBackward0", ("overflow",)),
    "forward_log": Fault(lambda x: (x * 0).log() * 0 + x, "forward", "LogBackward0", ("log_of_zero",)),
    "forward_division": Fault(lambda x: x / (x * 0), "forward", "DivBackward0", ("division_by_zero",)),
    "backward_root": Fault(root_at_zero, "backward", "SqrtBackward0", ("root_at_zero",)),
    "backward_where": Fault(root_not_selected, "backward", "SqrtBackward0", ("zero_times_infinity",)),
    "float16": Fault(lambda x: LargeGradient.apply(x.half().float()), "backward", "ToCopyBackward0", ("overflow",)),
    "bfloat16": Fault(
        lambda x: LargeGradient.apply((x.bfloat16() * 2.0).float()), "backward", "MulBackward0", ("overflow",)
    ),
    "hook": Fault(hooked, "backward", "hook nan_hook of MulBackward0", ("hook",)),
    "sum": Fault(summed, "backward", "sum into MulBackward0, input 0", ("overflow",)),
    "function": Fault(lambda x: MakesNan.apply(x), "backward", "MakesNanBackward", ("custom_function",)),
    "compiled": Fault(compiled, "backward", "CompiledFunctionBackward", ("compiled_region",)),
}


def mlp():
    torch.manual_seed(0)
    layers = nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    model, x = nn.Sequential(*layers), torch.randn(5, 6)
    return model, lambda: nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 0, 1]))


MAKERS = {"mlp": mlp, **{name: MODELS[name] for name in ("gpt2", "resnet", "lstm")}}


def faulty(model_name: str, fault: Fault | None):
    """(model, function that runs the forward and returns the loss), with the fault in the model's module."""
    torch.manual_seed(0)
    model, loss = MAKERS[model_name]()
    if fault is not None:
        model.get_submodule(PLACES[model_name]).register_forward_hook(lambda _module, _args, out: fault.change(out))
    return model, loss
