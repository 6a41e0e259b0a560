"""Where gradients fall, rise or die: planted in models and named by module; clean models name nothing."""

import math

import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.analysis.gradient_flow import _turns
from tests import definitions


class Scale(torch.autograd.Function):
    """Passes on what it gets, and a gradient that is so many times as large."""

    @staticmethod
    def forward(ctx, value, factor):
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def scaled(module, factor):
    """Let the gradient of a module's output become so many times as large."""

    def scale(_module, _arguments, output):
        if isinstance(output, tuple):
            return (Scale.apply(output[0], factor), *output[1:])
        return Scale.apply(output, factor)

    module.register_forward_hook(scale)


def mlp(activation=nn.ReLU, layers=4, gain=1.0):
    torch.manual_seed(0)
    modules = [module for _ in range(layers) for module in (nn.Linear(32, 32), activation())]
    model = nn.Sequential(*modules, nn.Linear(32, 4))
    for parameter in model.parameters():
        parameter.data.mul_(gain)
    inputs, targets = torch.randn(16, 32), torch.randint(0, 4, (16,))
    return model, lambda: nn.functional.cross_entropy(model(inputs), targets)


def flow_of(model, forward, factor=None):
    with cabw_viz.capture(model) as session:
        forward().backward()
    return session[0].flow() if factor is None else session[0].flow(factor)


CLEAN = {
    "mlp": mlp,
    "tanh": lambda: mlp(nn.Tanh, 6),
    **{name: getattr(definitions, name) for name in ("gpt2", "llama", "bert", "resnet")},
    "lstm": definitions.lstm,
}


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_model_names_nothing(name):
    report = flow_of(*CLEAN[name]())
    assert report.ok, repr(report)
    assert len(report.frame) > 5


SCALED = {"gpt2": "transformer.h.0", "resnet": "layer1.1"}


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize(("factor", "kind"), [(1e-8, "falls"), (1e8, "rises")])
def test_a_scaled_block_is_named(name, factor, kind):
    model, forward = getattr(definitions, name)()
    scaled(model.get_submodule(SCALED[name]), factor)
    report = flow_of(model, forward)
    (change,) = report.flow.changes
    assert (change.kind, change.module) == (kind, SCALED[name])
    assert change.factor > 1e5
    assert f"most in {SCALED[name]}" in repr(report)


def test_a_vanishing_and_an_exploding_chain():
    (vanishing,) = flow_of(*mlp(nn.Sigmoid, 20)).flow.changes
    assert vanishing.kind == "falls"
    assert vanishing.factor > 1e10
    (exploding,) = flow_of(*mlp(nn.ReLU, 20, gain=6)).flow.changes
    assert exploding.kind == "rises"
    assert exploding.factor > 1e6


def test_a_dead_layer_is_named():
    model, forward = mlp()
    model[2].bias.data.fill_(-1e4)
    report = flow_of(model, forward)
    (change,) = report.flow.changes
    assert (change.kind, change.module, change.factor) == ("dies", "3", math.inf)
    assert ("2", "2.weight") in report.flow.zero_leaves


class Adapter(nn.Module):
    """A low-rank adapter as it begins: its second matrix is zero, so the first gets a gradient of zeros."""

    def __init__(self):
        super().__init__()
        self.base, self.down, self.up = nn.Linear(8, 8), nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def test_an_adapter_without_gradient_is_named():
    model = nn.Sequential(nn.Linear(8, 8), Adapter())
    report = flow_of(model, lambda: model(torch.randn(4, 8)).square().sum())
    assert report.flow.changes == ()
    assert report.flow.zero_leaves == (("1.down", "1.down.weight"),)
    assert "zero everywhere: the gradients of 1.down.weight" in repr(report)


def test_the_factor_can_be_set_and_is_checked():
    assert not flow_of(*mlp(nn.Tanh, 6), factor=3).ok
    for factor in (1, -2, True, math.nan, "10"):
        with pytest.raises(cabw_viz.CabwError, match="a number above 1"):
            flow_of(*mlp(), factor=factor)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1, 1, 1], []),
        ([1, 0.5, 0.2, 0.01], [0, 3]),
        ([1, 2, 0.1, 0.05, 0.09], [1, 3]),
        ([1, 1, 100, 90, 1], [1, 2, 4]),
        ([1, 0, 0], [0, 1]),
        ([1, 5, 1, 5, 1], []),
    ],
)
def test_turns(sizes, expected):
    assert _turns(sizes, 10) == expected


def test_the_picture_is_the_same_each_time_and_is_saved(tmp_path):
    model, forward = definitions.gpt2()
    report = flow_of(model, forward)
    picture = report.picture()
    assert picture.svg == report.picture().svg
    assert picture.svg.count("<circle") >= len(report.frame)
    assert "<polyline" in picture.svg  # the blocks are joined over their index
    assert picture.save(tmp_path / "flow.svg").read_text("utf-8").startswith("<?xml")
    with pytest.raises(cabw_viz.CabwError, match=r"\.svg"):
        picture.save(tmp_path / "flow.pdf")
