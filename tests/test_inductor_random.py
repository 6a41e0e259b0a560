"""Random numbers that Inductor's kernels draw in a backward: a replay draws the same."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
import torch._inductor.inductor_prims  # defines the operators
from torch import nn
from torch.utils.checkpoint import checkpoint

from cabw_viz import CabwError
from cabw_viz.replay.placement import inductor_random
from tests.captures import capture_of_run, session_of

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")

prims = torch.ops.prims
DRAWS = [inductor_random.draw_of(prim.default) for prim in (prims.inductor_random, prims.inductor_randint)]


@pytest.fixture(autouse=True)
def _compiled_anew():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Checkpointed(nn.Module):
    """Its dropout is drawn again in the backward."""

    def __init__(self):
        super().__init__()
        self.layer, self.dropout = nn.Linear(16, 16), nn.Dropout(0.3)

    def block(self, x):
        return self.dropout(torch.tanh(self.layer(x)))

    def forward(self, x):
        return checkpoint(self.block, checkpoint(self.block, x, use_reentrant=False), use_reentrant=False)


class DrawsInBackward(torch.autograd.Function):
    """A sine whose backward multiplies by random numbers of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * (1 + torch.rand_like(x))


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return DrawsInBackward.apply(self.layer(x))


def capture_of_compiled(model):
    torch.manual_seed(0)
    net = model()
    compiled, x = torch.compile(net), torch.randn(8, 16)
    capture = session_of(net, lambda: compiled(x).square().mean().backward())[-1]
    assert any("inductor_random" in node.target for node in capture.record.graph_nodes)
    return net, capture


@pytest.mark.parametrize("seed", [0, -5, 2**62 + 12345])
def test_the_numbers_are_those_of_the_kernels(seed):
    """Compiled code draws them, next to the same in eager: with the formula, and with the operators, which differ."""

    def draws(seed, random, randint):
        uniform, normal = random((3, 7, 11), seed, "rand"), random((3, 7, 11), seed, "randn")
        return uniform, normal, randint(-5, 7, (40,), seed), randint(-(2**61), 2**61, (40,), seed)

    seed = torch.tensor(seed)
    kernels = torch.compile(lambda seed: draws(seed, prims.inductor_random, prims.inductor_randint))(seed)
    ours = draws(seed, *DRAWS)
    for index, (kernel, own) in enumerate(zip(kernels, ours, strict=True)):
        assert (kernel.dtype, kernel.shape) == (own.dtype, own.shape)
        if index == 1:  # logarithm and cosine of another library: a rounding or two
            torch.testing.assert_close(own, kernel, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(kernel, own)
    eager = draws(seed, prims.inductor_random, prims.inductor_randint)
    assert not any(torch.equal(own, other) for own, other in zip(ours, eager, strict=True))


def test_the_seeds_are_those_that_compiled_code_draws():
    compiled = torch.compile(lambda like: prims.inductor_seeds(3, like.device) + like)
    compiled(torch.tensor(0))
    torch.manual_seed(3)
    expected, after = compiled(torch.tensor(0)), torch.get_rng_state()
    torch.manual_seed(3)
    draw = inductor_random.draw_of(prims.inductor_seeds.default)
    assert torch.equal(draw(3, torch.device("cpu")), expected)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("model", [Checkpointed, Drawing])
def test_a_backward_that_draws_is_judged_right(model, monkeypatch):
    net, capture = capture_of_compiled(model)
    own = {name: each.grad.clone() for name, each in net.named_parameters()}
    state = torch.get_rng_state()
    for report in (
        capture.parity(),
        capture.parity(dtype="float64"),
        capture.parity(backend="aot_eager"),
        capture.parity(backend="inductor"),
        capture.divergence(),
        capture.divergence(dtype="float64"),
    ):
        assert report.ok, str(report)
    for name, gradient in capture.replay().items():
        torch.testing.assert_close(gradient, own[name], rtol=1e-4, atol=1e-7)
    assert torch.equal(torch.get_rng_state(), state)
    # Numbers of another seed are a fault, which is found.
    original = inductor_random._philox
    monkeypatch.setattr(inductor_random, "_philox", lambda seed, count: original(seed + 1, count))
    assert not capture.parity().ok
    assert capture.divergence().first.name == "CompiledFunctionBackward"


def test_the_mask_of_a_compiled_dropout_is_the_forwards():
    """By hand: where the forward has dropped, the gradient of the input is 0, and elsewhere 1 / 0.7."""
    torch.manual_seed(0)
    dropout = nn.Dropout(0.3)
    compiled = torch.compile(lambda x: checkpoint(dropout, x, use_reentrant=False))
    x = torch.rand(50, 40).add_(1).requires_grad_()
    y = compiled(x)
    kept = y.detach() != 0
    capture = capture_of_run({"x": x}, y.sum().backward)
    (gradient,) = capture.replay().values()
    assert torch.equal(gradient != 0, kept)
    assert torch.allclose(gradient[kept], torch.tensor(1 / 0.7))


def test_a_lowered_backward_draws_the_same():
    _, capture = capture_of_compiled(Checkpointed)
    lowered = capture.lower()
    assert not any("inductor_random" in str(node.target) for node in lowered.graph.nodes)
    for name, gradient in lowered.gradients(capture).items():
        torch.testing.assert_close(gradient, capture.replay()[name], rtol=1e-5, atol=1e-7)


def test_numbers_drawn_on_an_accelerator_are_refused_by_name():
    _, capture = capture_of_compiled(Drawing)
    record = capture.record
    on_cuda = replace(record, inputs=tuple(replace(row, device="cuda:0") for row in record.inputs))
    inductor_random.check_draws(record, capture._captured.state.graph)
    with pytest.raises(CabwError, match=r"inductor_\w+ .* have drawn on cuda:0; they cannot be drawn again"):
        inductor_random.check_draws(on_cuda, capture._captured.state.graph)
