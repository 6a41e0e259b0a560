"""Runs of a captured graph whose checkpoints run their forward again: how often, from what, and what stays."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from tests.captures import capture_of

ROWS, WIDTH = 8, 6


class Counted(nn.Module):
    """Counts its calls in the class, which no module's attributes tell."""

    calls = 0

    def forward(self, x):
        Counted.calls += 1
        return x


class Codebook(nn.Module):
    """Reads codes that its own forward moves, and writes to a buffer, a number, a list and a tensor of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(5, WIDTH))
        self.project = nn.Linear(WIDTH, WIDTH)
        self.calls, self.history, self.latest = 0, [], torch.zeros(())

    def forward(self, x):
        hidden = self.project(x)
        nearest = torch.cdist(hidden.detach(), self.codes).argmin(1)
        quantized = self.codes[nearest]
        with torch.no_grad():
            self.codes.index_add_(0, nearest, hidden.detach(), alpha=0.1)
        self.calls += 1
        self.history.append(self.calls)
        self.latest = hidden.detach().sum()
        return hidden * quantized


def normalized():
    torch.manual_seed(0)
    layers = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU(), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(Counted(), *layers)


def quantized():
    torch.manual_seed(0)
    return nn.Sequential(Counted(), Codebook(), Codebook(), nn.Linear(WIDTH, WIDTH))


def data():
    return torch.linspace(-2, 2, ROWS * WIDTH).reshape(ROWS, WIDTH).sin()


def without_early_stop(net):
    with set_checkpoint_early_stop(enable=False):
        return checkpoint(net, data(), use_reentrant=False)


def selective(net):
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    return checkpoint(net, data(), use_reentrant=False, context_fn=contexts)


def nested(net):
    def outer(x):
        return checkpoint(net, x.sin(), use_reentrant=False)

    return checkpoint(outer, data(), use_reentrant=False)


def in_an_argument(net):
    return checkpoint(lambda x, module: module(x), data(), net, use_reentrant=False)


WAYS = {
    "plain": lambda net: checkpoint(net, data(), use_reentrant=False),
    "without early stop": without_early_stop,
    "selective": selective,
    "nested": nested,
    "in an argument": in_an_argument,
    "reentrant": lambda net: checkpoint(net, data().requires_grad_(), use_reentrant=True),
    "in segments": lambda net: checkpoint_sequential(net, 2, data(), use_reentrant=False),
    "in reentrant segments": lambda net: checkpoint_sequential(net, 2, data().requires_grad_(), use_reentrant=True),
}

CALLS = {
    "parity": lambda capture: capture.parity(),
    "replay": lambda capture: capture.replay(),
    "divergence": lambda capture: capture.divergence(),
    "audit": lambda capture: capture.audit(),
    "times": lambda capture: capture.times(repeats=1),
    "without hooks": lambda capture: capture.parity(hooks="drop"),
}


def state_of(net):
    """All bits of the parameters, buffers and gradients; all attributes by identity, lists by what they hold."""
    tensors = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}
    attributes = [
        {name: list(value) if type(value) is list else (id(value), value) for name, value in vars(module).items()}
        for module in net.modules()
    ]
    held = [
        {name: {key: id(item) for key, item in value.items()} for name, value in vars(module).items()
         if type(value) is dict}
        for module in net.modules()
    ]  # fmt: skip
    return tensors, gradients, attributes, held


def assert_same_state(one, other):
    for before, after in zip(one[:2], other[:2], strict=True):
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert (tensor is None) == (after[name] is None), name
            assert tensor is None or torch.equal(tensor, after[name]), name
    assert [list(each) for each in one[2]] == [list(each) for each in other[2]]
    for before, after in zip(one[2], other[2], strict=True):
        for name, value in before.items():
            assert value == after[name] if isinstance(value, list) else value[0] == after[name][0], name
    assert one[3] == other[3]


def count(function, *arguments):
    """How often the forward runs in a call, and what the call returns."""
    Counted.calls = 0
    result = function(*arguments)
    return Counted.calls, result


@pytest.mark.parametrize("make", [normalized, quantized])
@pytest.mark.parametrize("way", WAYS)
def test_each_run_recomputes_once_and_leaves_the_modules_as_they_were(way, make):
    net = make()
    counts = []
    net[0].register_forward_pre_hook(lambda *_: counts.append(1))
    capture = capture_of(net, lambda: WAYS[way](net).square().sum())
    in_eager = len(counts) - 1
    assert in_eager <= 1  # a reentrant segment of nothing but the first is a run of its own
    for call in CALLS.values():
        before, random = state_of(net), torch.get_rng_state()
        forwards, result = count(call, capture)
        assert forwards == in_eager
        assert_same_state(before, state_of(net))
        assert torch.equal(random, torch.get_rng_state())
        assert getattr(result, "ok", True)


@pytest.mark.parametrize("make", [normalized, quantized])
def test_a_second_run_in_one_call_recomputes_from_the_same_state(make):
    net = make()
    capture = capture_of(net, lambda: WAYS["plain"](net).square().sum())
    before = state_of(net)
    report = capture.parity(dtype="float64")
    assert report.ok, report
    assert_same_state(before, state_of(net))
    first, second = (capture.replay() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(first[name], parameter.grad) for name, parameter in net.named_parameters())


def test_codes_that_move_after_the_capture_do_not_matter():
    net = quantized()
    capture = capture_of(net, lambda: WAYS["plain"](net).square().sum())
    net(data())
    net.eval()
    before = state_of(net)
    assert capture.parity().ok
    assert_same_state(before, state_of(net))


def test_training_goes_on_as_without_a_parity():
    def train(*, look):
        net = normalized()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            capture = capture_of(net, lambda: WAYS["plain"](net).square().mean())
            if look:
                assert capture.parity().ok
                assert capture.divergence().ok
            optimizer.step()
        return net.state_dict()

    looked, plain = train(look=True), train(look=False)
    assert all(torch.equal(looked[name], plain[name]) for name in plain)


def test_a_fault_inside_a_checkpoint_is_still_found(monkeypatch):
    calls = []

    class FaultyOnce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            calls.append(1)
            (x,) = ctx.saved_tensors
            return g * x.cos() * (1.01 if len(calls) == 1 else 1)

    linear = nn.Linear(WIDTH, WIDTH)
    capture = capture_of(
        linear, lambda: checkpoint(lambda x: FaultyOnce.apply(linear(x)), data(), use_reentrant=False).sum()
    )
    report, divergence = capture.parity(), capture.divergence()
    assert set(report.frame["verdict"]) == {"mismatch"}
    assert divergence.first.name == "FaultyOnceBackward"


# -------------------------------------------------------------------------------------------- after the capture


@pytest.mark.parametrize("way", WAYS)
def test_a_snapshot_holds_what_the_recomputation_reads(way):
    net = quantized()
    optimizer = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)
    capture = capture_of(net, lambda: WAYS[way](net).square().mean(), snapshot=True)
    optimizer.step()
    before = state_of(net)
    assert capture.parity().ok
    assert capture.divergence().ok
    assert_same_state(before, state_of(net))


def test_a_snapshot_of_a_recurrent_layer_reaches_its_flat_weights():
    net = nn.LSTM(WIDTH, WIDTH)
    capture = capture_of(net, lambda: checkpoint(net, data(), use_reentrant=False)[0].sum(), snapshot=True)
    torch.optim.SGD(net.parameters(), 0.5).step()
    flat = [id(weight) for weight in net._flat_weights]
    assert capture.parity().ok
    assert [id(weight) for weight in net._flat_weights] == flat


def test_tied_parameters_stay_tied_in_a_snapshot():
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    net[2].weight = net[0].weight
    capture = capture_of(net, lambda: WAYS["plain"](net).square().sum(), snapshot=True)
    torch.optim.SGD(net.parameters(), 0.5).step()
    assert capture.parity().ok
    assert net[2].weight is net[0].weight


@pytest.mark.parametrize("name", ["1.project.bias", "1.project.weight", "3.bias"])
def test_without_a_snapshot_a_changed_parameter_is_refused_by_name(name):
    net = quantized()
    capture = capture_of(net, lambda: WAYS["plain"](net).square().sum())
    assert capture.parity().ok
    with torch.no_grad():
        net.get_parameter(name).add_(1)
    with pytest.raises(CabwError) as error:
        capture.parity()
    assert name in error.value.seen
    assert "changed in place" in error.value.seen
    assert "snapshot=True" in str(error.value)


def test_a_parameter_with_other_memory_is_refused_by_name():
    net = normalized()
    capture = capture_of(net, lambda: WAYS["plain"](net).square().sum())
    net[2].running_mean = torch.zeros(WIDTH)
    assert capture.divergence().ok  # the checkpoint has its copy
    net[1].bias.data = net[1].bias.data.clone()
    with pytest.raises(CabwError, match=r"1\.bias \(6,\) has other memory"):
        capture.divergence()


def test_a_frozen_parameter_with_other_memory_is_refused_by_name():
    net = normalized()
    net[1].requires_grad_(False)
    capture = capture_of(net, lambda: WAYS["plain"](net).square().sum())
    net[1].bias.data = net[1].bias.data.clone()
    with pytest.raises(CabwError, match=r"recomputes from 1\.bias \(6,\), which has other memory"):
        capture.divergence()


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_changed_tensor_of_a_closure_is_refused(snapshot):
    w, offset = torch.randn(WIDTH, WIDTH, requires_grad=True), torch.randn(WIDTH)
    capture = capture_of(
        {"w": w}, lambda: checkpoint(lambda x: (x @ w + offset).tanh(), data(), use_reentrant=False).sum(),
        snapshot=snapshot,
    )  # fmt: skip
    assert capture.parity().ok
    offset.add_(1)
    with pytest.raises(CabwError, match=r"a checkpoint recomputes from offset \(6,\), which was changed in place"):
        capture.parity()


def test_other_modules_may_change():
    net = nn.ModuleDict({"used": nn.Linear(WIDTH, WIDTH), "unused": nn.Linear(WIDTH, 1)})
    capture = capture_of(net, lambda: WAYS["plain"](net["used"]).sum())
    with torch.no_grad():
        net["unused"].bias.add_(1)
    assert capture.parity().ok


def test_a_closed_session_keeps_no_copies():
    net = quantized()
    capture = capture_of(net, lambda: WAYS["plain"](net).square().sum(), snapshot=True)
    assert capture._state.recomputation.tensors
    capture._release()
    assert not capture._state.recomputation.tensors


def test_what_a_run_recomputed_is_dropped_after_it():
    net = normalized()
    capture = capture_of(net, lambda: WAYS["plain"](net).square().sum())
    capture.parity()
    (frame,) = capture._state.recomputation.frames
    assert not any(len(tensors) for tensors in frame.recomputed.values())
    assert not any(isinstance(key, torch.utils.checkpoint.GraphExecGroup) for key in frame.is_recomputed)


# ------------------------------------------------------------------------------------------- how it is made sure


def test_the_users_own_group_is_set_aside():
    net = normalized()
    capture = capture_of(net, lambda: WAYS["plain"](net).square().sum())
    with torch.utils.checkpoint.GraphExecGroup() as group:
        for _ in range(2):
            assert count(capture.parity)[0] == 1
        assert torch.utils.checkpoint.GraphExecGroup._get_current_group() is group


def test_the_count_is_one_for_each_saved_tensor_without_a_group(monkeypatch):
    monkeypatch.setattr(torch_adapter.checkpoints, "_GROUP", None)
    net = normalized()
    capture = capture_of(net, lambda: WAYS["plain"](net).square().sum())
    before = state_of(net)
    assert count(capture.parity)[0] > 1
    assert_same_state(before, state_of(net))


def test_a_failure_of_the_search_is_a_warning(monkeypatch):
    monkeypatch.setattr("cabw_viz.runtime.recomputation._roots", lambda *_: 1 / 0)
    net = normalized().eval()
    other = copy.deepcopy(net)
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        capture_of(net, lambda: WAYS["plain"](net).square().sum())
    WAYS["plain"](other).square().sum().backward()
    for parameter, expected in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter.grad, expected.grad)
