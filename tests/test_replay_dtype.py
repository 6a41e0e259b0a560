"""Replay in another dtype: the backward of the saved forward, against float64 computed apart."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.replay.placement.device_dtype_map import DeviceDtypeMap
from cabw_viz.replay.placement.retarget_mode import RetargetMode
from cabw_viz.replay.placement.target import Target
from cabw_viz.replay.replay import Replay
from tests import definitions
from tests.captures import capture_of

SINGLE, HALF = torch.finfo(torch.float32).eps, torch.finfo(torch.bfloat16).eps


def largest(apart, of):
    return (apart.abs().max() / of.abs().max()).item()


# --------------------------------------------------------------------------------- the same saved values, by hand


def test_float64_from_the_values_that_the_forward_saved():
    """y = tanh(x w): the gradients from the float32 result that was saved, in float64 by hand."""
    torch.manual_seed(0)
    x, w = torch.randn(7, 5), torch.randn(5, 3, requires_grad=True)
    with cabw_viz.capture({"w": w}) as session:
        y = (x @ w).tanh()
        y.square().sum().backward()
    saved, given = y.detach().double(), x.double()
    by_hand = given.t() @ (2 * saved * (1 - saved * saved))
    found = session[0].replay(dtype="float64")["w"]
    assert found.dtype is torch.float64
    assert largest(found - by_hand, by_hand) < 4e-16 * 8
    assert largest(w.grad.double() - by_hand, by_hand) > 1e-9  # so eager is not what was compared


def test_bfloat16_rounds_as_bfloat16():
    torch.manual_seed(0)
    x, w = torch.randn(64, 32), torch.randn(32, 8, requires_grad=True)
    capture = capture_of({"w": w}, lambda: (x @ w).sum())
    found = capture.replay(dtype=torch.bfloat16)["w"]
    exact = x.bfloat16().double().sum(0, keepdim=True).t().expand(32, 8)  # the sum of rounded inputs, rounded once
    assert found.dtype is torch.bfloat16
    assert largest(found.double() - exact, exact) <= HALF / 2
    assert largest(found.double() - w.grad.double(), exact) > SINGLE


# ----------------------------------------------------------------------- whole models in float64, from the same weights


def transformer_layer():
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), torch.randn(3, 5, 16)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.inner(x)[0]


def lstm():
    return Lstm(), torch.randn(3, 5, 8)


def convolutions():
    layers = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.GroupNorm(2, 4)
    return nn.Sequential(*layers, nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)), torch.randn(4, 3, 9, 9)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

    def forward(self, x):
        return (torch.fft.fft(x) @ self.weight).abs()


MODELS = {"transformer_layer": transformer_layer, "lstm": lstm, "convolutions": convolutions}
MODELS["complex"] = lambda: (Complex(), torch.randn(6, 4))


def in_float64(model, x, loss):
    """Eager gradients of the whole model in float64, from the same weights."""
    wide = copy.deepcopy(model)
    for parameter in wide.parameters():
        parameter.data = parameter.data.to(torch.complex128 if parameter.is_complex() else torch.float64)
        parameter.grad = None
    wide = wide if any(p.is_complex() for p in wide.parameters()) else wide.double()
    loss(wide(x.double())).backward()
    return {name: parameter.grad for name, parameter in wide.named_parameters()}


def weighted(out):
    return (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)).sum()


@pytest.mark.parametrize("name", MODELS)
def test_models_agree_with_float64_as_far_as_their_saved_values_do(name):
    torch.manual_seed(0)
    model, x = MODELS[name]()
    capture = capture_of(model, lambda: weighted(model(x)))
    exact = in_float64(model, x, weighted)
    found = capture.replay(dtype="float64")
    assert set(found) == set(exact)
    for key, gradient in found.items():
        assert gradient.dtype is exact[key].dtype
        assert largest(gradient - exact[key], exact[key]) < 2e-5, key  # of values saved in float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_lstm_in_half_precision_leaves_what_was_captured_alone(dtype):
    """oneDNN's kernel takes bytes that the forward left, which in another dtype it misreads, and writes to."""
    torch.manual_seed(0)
    model, x = lstm()
    capture = capture_of(model, lambda: weighted(model(x)))
    exact = in_float64(model, x, weighted)
    for key, gradient in capture.replay(dtype=dtype).items():
        assert gradient.dtype is dtype
        assert largest(gradient.double() - exact[key], exact[key]) < 8 * HALF, key
    again = capture.replay()
    assert all(torch.equal(again[name], parameter.grad) for name, parameter in model.named_parameters())


@pytest.mark.parametrize(("dtype", "refused"), [(torch.float64, True), (torch.float32, False), (None, False)])
def test_a_kernel_whose_bytes_mean_something_in_one_dtype_is_not_called_in_another(dtype, refused):
    called = []

    class Kernel:
        def __str__(self):
            return "aten._cudnn_rnn_backward.default"

        def __call__(self, *args):
            called.append(args)

    weights, reserve = torch.randn(3), torch.zeros(8, dtype=torch.uint8)
    mode = RetargetMode(DeviceDtypeMap(Target(dtype=dtype), [weights, reserve]))
    with pytest.raises(CabwError, match="captured dtype only") if refused else contextlib.nullcontext():
        mode.__torch_dispatch__(Kernel(), (), (weights, reserve))
    assert bool(called) is not refused


@pytest.mark.parametrize("name", ["transformer_layer", "convolutions"])
def test_autocast_is_left_behind(name):
    """Under autocast half of the saved values have the precision of bfloat16; the backward of them is float64's."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    with cabw_viz.capture(model) as session:
        with torch.autocast("cpu", torch.bfloat16):
            loss = weighted(model(x).float())
        loss.backward()
    exact = in_float64(model, x, weighted)
    found = session[0].replay(dtype="float64")
    norms = torch.stack([gradient.norm() for gradient in exact.values()])
    apart = torch.stack([(found[key] - exact[key]).norm() for key in exact])
    assert {gradient.dtype for gradient in found.values()} == {torch.float64}
    assert (apart.norm() / norms.norm()).item() < 4 * HALF
    report = session[0].parity(dtype="float64")
    assert report.ok, report


@pytest.mark.parametrize("build", [definitions.gpt2, definitions.llama])
def test_real_definitions(build):
    pytest.importorskip("transformers", reason="pip install 'cabw_viz[examples]' for real model definitions")
    torch.manual_seed(0)
    model, step = build()
    model.eval()  # dropout would draw other numbers in the second forward
    capture = capture_of(model, step)
    wide, ids = copy.deepcopy(model).double(), definitions.tokens()
    wide.zero_grad()
    wide(ids, labels=ids).loss.backward()
    exact = {name: parameter.grad for name, parameter in wide.named_parameters()}
    found = capture.replay(dtype="float64")
    assert set(exact) <= set(found)
    assert max(largest(found[key] - exact[key], exact[key]) for key in exact) < 1e-5


# ----------------------------------------------------------------------------------------------- what goes where


def test_whole_numbers_and_masks_stay_what_they_are():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.ReLU())
    capture = capture_of(model, lambda: model(torch.tensor([[1, 2, 2], [8, 0, 1]])).square().sum())
    found = capture.replay(dtype="float64")
    assert {gradient.dtype for gradient in found.values()} == {torch.float64}
    eager = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(largest(found[name] - eager[name], eager[name]) < 1e-6 for name in eager)


def test_a_dtype_that_the_graph_asks_for_is_mapped_too():
    """`x.half()` in the forward: its backward casts back, to a dtype that stands in the graph as a number."""
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    capture = capture_of({"w": w}, lambda: (w.half().float() * torch.tensor([1 / 3, 1 / 7, 1 / 9])).sum())
    found = capture.replay(dtype="float64")["w"]
    assert torch.equal(found, torch.tensor([1 / 3, 1 / 7, 1 / 9]).double())  # through float16 it would be rounded


def test_numbers_that_look_like_a_dtype_stay():
    """6 stands for float32 in `validate_outputs`; as an exponent, a size and a dimension it is six."""
    x = torch.full((6, 6), 1.5, requires_grad=True)
    capture = capture_of({"x": x}, lambda: (x**6).sum(1).sum())
    found = capture.replay(dtype="float64")["x"]
    assert torch.equal(found, torch.full((6, 6), 6 * 1.5**5, dtype=torch.float64))


def test_the_dtypes_numbers_are_pytorchs():
    """`validate_outputs` of a backward in each dtype holds the number that the adapter has for it."""
    for number, dtype in torch_adapter.SCALAR_TYPES.items():
        if dtype is torch.complex32:
            continue  # hardly any kernels
        w = torch.ones(2, dtype=dtype, requires_grad=True)
        with cabw_viz.capture({"w": w}) as session:
            (w * 2).sum().abs().float().backward()
        graph = session[0]._captured.state.graph.graph
        metadata = [
            entry
            for node in graph.nodes
            if torch_adapter.is_validate_outputs(node.target)
            for entry in node.args[1]
            if entry is not None
        ]
        assert number in {entry[0][3] for entry in metadata}, dtype
        _, changed = torch_adapter.with_output_dtypes((None, metadata), lambda _: torch.float64)
        assert {entry[0][3] for entry in changed} == {7}
        assert [entry[1] for entry in changed] == [entry[1] for entry in metadata]


def test_tensors_that_share_memory_still_do():
    """A saved view and its base are one piece of memory at the target too, and strides are kept."""
    seen = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, base):
            ctx.save_for_backward(base, base.t(), base[1:], base.expand(2, 3, 4))
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            base, turned, part, wide = ctx.saved_tensors
            pointers = [t.untyped_storage().data_ptr() for t in (base, turned, part, wide)]
            seen.append((len(set(pointers)), turned.stride(), part.storage_offset(), wide.stride(), base.dtype))
            return grad * 2, None

    x, base = torch.ones(3, requires_grad=True), torch.randn(3, 4)
    capture = capture_of({"x": x}, lambda: Looks.apply(x, base).sum())
    capture.replay(dtype="float64")
    here, there = seen
    assert here[:4] == there[:4]
    assert there[0] == 1
    assert there[4] is torch.float64


def test_parameters_are_parameters_there():
    seen = []
    weight = nn.Parameter(torch.ones(2, 2))

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            seen.append((type(x), x.requires_grad, x.is_leaf, x.dtype, x is weight))
            return grad * 2

    capture = capture_of({"weight": weight}, lambda: Looks.apply(weight).sum())
    capture.replay(dtype="float64")
    assert seen[1] == (nn.Parameter, True, True, torch.float64, False)


def test_no_replay_copies_or_changes_the_captured_graph():
    """Only what differs at the target is kept beside it: in float64 the dtype of each check of gradients."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with cabw_viz.capture(net) as session:
        net(torch.randn(3, 4)).sum().backward()
    captured = session[0]._captured
    graph = captured.state.graph
    before = str(graph.graph)
    replay = Replay(captured, Target(dtype=torch.float64))
    assert replay.graph.module is graph
    checks = {node for node in graph.graph.nodes if torch_adapter.is_validate_outputs(node.target)}
    assert set(replay.graph.changes.arguments) == checks != set()
    assert {each.dtype for each in replay.gradients().values()} == {torch.float64}
    assert str(graph.graph) == before
    assert session[0].parity().ok  # in the captured dtype, after all that


def test_nothing_of_the_users_is_changed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    capture = capture_of(model, lambda: model(torch.randn(2, 3)).sum())
    before = [(p.dtype, p.clone(), p.grad, p.grad.clone()) for p in model.parameters()]
    random = torch.get_rng_state()
    capture.replay(dtype="float64")
    for parameter, (dtype, value, gradient, copied) in zip(model.parameters(), before, strict=True):
        assert parameter.dtype is dtype
        assert parameter.grad is gradient
        assert torch.equal(parameter, value)
        assert torch.equal(gradient, copied)
    assert torch.equal(torch.get_rng_state(), random)
    assert capture.parity().ok  # and a run as it was captured is what it was


def test_a_reentrant_checkpoint_does_not_accumulate_again():
    """Its backward makes a backward of its own, into parameters that the graph does not know."""
    model, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    capture = capture_of(model, lambda: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True).sum())
    gradient, copied = model.weight.grad, model.weight.grad.clone()
    capture.replay()
    assert model.weight.grad is gradient
    assert torch.equal(gradient, copied)


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("dtype", ["int8", "complex64", "float8_e4m3fn", "double precision", torch.bool])
def test_what_is_no_dtype_for_a_replay(dtype):
    w = torch.ones(2, requires_grad=True)
    capture = capture_of({"w": w}, lambda: (w * 2).sum())
    with pytest.raises(CabwError, match="float64"):
        capture.replay(dtype=dtype)


def test_complex_numbers_have_no_bfloat16():
    w = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    capture = capture_of({"w": w}, lambda: (w * 2).abs().sum())
    with pytest.raises(CabwError, match="none go with"):
        capture.replay(dtype="bfloat16")
    assert capture.replay(dtype="float64")["w"].dtype is torch.complex128


def test_a_function_with_a_weight_of_its_own_names_the_node():
    weight = torch.randn(3, 3)

    class Multiplies(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x @ weight

        @staticmethod
        def backward(ctx, grad):
            return grad @ weight.t()

    x = torch.randn(2, 3, requires_grad=True)
    capture = capture_of({"x": x}, lambda: Multiplies.apply(x).sum())
    with pytest.raises(CabwError, match=r"cannot be run in torch\.float64: MultipliesBackward \(#2\)"):
        capture.replay(dtype="float64")


def test_a_kernel_without_the_dtype_names_the_node():
    """`_fake_quantize` and their like have no bfloat16; here a function that refuses by itself stands for one."""

    class Picky(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            if grad.dtype is torch.bfloat16:
                raise NotImplementedError("no kernel for BFloat16")
            return grad * 2

    x = torch.randn(2, 3, requires_grad=True)
    capture = capture_of({"x": x}, lambda: Picky.apply(x).sum())
    with pytest.raises(CabwError, match=r"PickyBackward \(#2\).*no kernel for BFloat16"):
        capture.replay(dtype="bfloat16")
