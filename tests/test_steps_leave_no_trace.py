"""`cabw_viz.compare` leaves everything as it was, and leaves alone what is under way."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.errors import CabwError
from tests.steps import CHEAP, conv_net, step_of


@pytest.fixture
def net():
    return conv_net()


@pytest.fixture
def step(net):
    return step_of(net)


class Everything:
    """All that a comparison must leave as it was."""

    def __init__(self, net):
        self.net = net
        self.places = {name: id(tensor) for name, tensor in net.state_dict(keep_vars=True).items()}
        self.values = copy.deepcopy(net.state_dict())
        self.versions = {name: tensor._version for name, tensor in net.named_parameters()}
        self.grads = {
            name: (id(p.grad), None if p.grad is None else p.grad.clone()) for name, p in net.named_parameters()
        }
        self.wants = {name: p.requires_grad for name, p in net.named_parameters()}
        self.training = {name: module.training for name, module in net.named_modules()}
        self.random = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()

    def check(self):
        now = Everything(self.net)
        assert now.places == self.places
        assert now.versions == self.versions
        assert (now.wants, now.training) == (self.wants, self.training)
        for name, value in self.values.items():
            assert torch.equal(now.values[name], value), name
        for name, (place, value) in self.grads.items():
            assert now.grads[name][0] == place, name
            assert value is None or torch.equal(now.grads[name][1], value), name
        assert now.random[:2] == self.random[:2]
        assert torch.equal(now.random[2], self.random[2])


@pytest.fixture
def everything(net, step):
    net[5].bias.requires_grad_(False)
    net[2].eval()
    step().backward()
    net[5].weight.grad = None
    return Everything(net)


def meddling(net, step):
    """A step that changes whatever it can reach."""

    def whole():
        random.random()
        np.random.rand()
        net[0].bias.requires_grad_(False)
        net[5].bias.requires_grad_(True)
        net.eval()
        net[1].train()
        net[1].running_var = net[1].running_var + 1
        loss = step() + torch.rand(())
        loss.backward()
        with torch.no_grad():
            net[1].running_mean.fill_(7)
        return loss

    return whole


def test_everything_is_put_back(net, step, everything):
    assert cabw_viz.compare(meddling(net, step), net, backends=CHEAP).ok
    everything.check()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("at", [0, 1, 3, 7, 8])
def test_everything_is_put_back_whatever_is_raised(net, step, everything, error, at):
    calls = [0]
    inner = meddling(net, step)

    def whole():
        loss = inner()
        calls[0] += 1
        if calls[0] == at + 1:
            raise error("stop")
        return loss

    if error is ValueError:
        assert not cabw_viz.compare(whole, net, backends=CHEAP).ok
    else:
        with pytest.raises(error):
            cabw_viz.compare(whole, net, backends=CHEAP)
    everything.check()


def test_a_parameter_that_the_step_updates_is_put_back(net, step):
    before = Everything(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def whole():
        loss = step()
        loss.backward()
        optimizer.step()
        return loss

    assert cabw_viz.compare(whole, net, backends=CHEAP).ok
    for name, value in before.values.items():
        assert torch.equal(net.state_dict()[name], value)


class Counted(nn.Module):
    """Keeps state in attributes that PyTorch knows nothing of."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls, self.seen = nn.Linear(4, 4), 0, {"norms": [], "last": torch.zeros(3, 4)}
        self.mean = torch.zeros(4)  # no buffer

    def forward(self, x):
        y = self.layer(x) * (1 + self.calls)
        self.calls += 1
        self.seen["norms"].append(float(y.detach().norm()))
        self.seen["last"] = y.detach()
        self.mean.lerp_(y.detach().mean(0), 0.5)
        self.extra = self.calls
        return y - self.mean


def trained(net):
    """A step with an optimizer, a schedule, a scaler and an optimizer of another parameter, some with a state."""
    other = nn.Parameter(torch.ones(3))
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.1), torch.optim.SGD([other, net.layer.bias], 0.1, 0.9)]
    schedule = torch.optim.lr_scheduler.StepLR(optimizers[0], 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    x = torch.randn(3, 4)

    def step():
        loss = net(x).square().mean() + other.sum() * 0.1
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        schedule.step()
        return loss.item()

    return step, [other, *optimizers, schedule, scaler]


def state_of(net, others):
    other, adam, sgd, schedule, scaler = others
    copies = [each.state_dict() for each in (net, adam, sgd, schedule, scaler)]
    return copy.deepcopy([other, net.calls, net.seen, net.mean, "extra" in vars(net), *copies])


def assert_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_equal(list(one.values()), list(other.values()))
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
    else:
        assert one == other


@pytest.mark.parametrize("steps_before", [0, 3])
@pytest.mark.parametrize("raises", [None, ValueError, KeyboardInterrupt])
def test_optimizers_and_attributes_of_modules_are_put_back_and_so_each_run_is_the_same(steps_before, raises):
    torch.manual_seed(0)
    net = Counted()
    step, others = trained(net)
    for _ in range(steps_before):
        step()
    before, containers = state_of(net, others), [net.seen, net.seen["norms"], others[1].state, others[1].param_groups]
    calls = [0]

    def whole():
        result = step()
        calls[0] += 1
        if raises is not None and calls[0] == 8:
            raise raises("stop")
        return result

    if raises is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            cabw_viz.compare(whole, net, backends=CHEAP)
    else:
        matrix = cabw_viz.compare(whole, net, backends=CHEAP)
        assert matrix.ok is (raises is None), matrix
    assert_equal(state_of(net, others), before)
    now = [net.seen, net.seen["norms"], others[1].state, others[1].param_groups]
    assert all(one is other for one, other in zip(now, containers, strict=True))


@pytest.mark.parametrize("raises", [None, KeyboardInterrupt])
def test_what_the_step_reaches_beside_its_parameters_is_put_back_too(raises):
    torch.manual_seed(0)
    body, head, teacher = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 1), nn.Linear(4, 1)
    scale, x = torch.ones(1, requires_grad=True), torch.randn(5, 4)
    apart = nn.Parameter(torch.ones(2))  # the step reaches it by its optimizer alone
    optimizer = torch.optim.Adam([*body.parameters(), apart])
    (body(x).sum() * scale + apart.sum()).backward()
    calls = [0]

    def step():
        calls[0] += 1
        if raises is not None and calls[0] == 5:
            raise raises("stop")
        loss = (head(body(x)) - teacher(x)).square().mean() * scale
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            teacher.weight.lerp_(head.weight, 0.5)
        teacher.eval()
        return loss.item()

    def state():
        tensors = [t for m in (body, head, teacher) for t in m.state_dict(keep_vars=True).values()]
        tensors += [scale, apart]
        values = [(t.detach(), t.grad) for t in tensors]
        return copy.deepcopy([[list(pair) for pair in values], optimizer.state_dict(), teacher.training])

    before = state()
    if raises is None:
        assert cabw_viz.compare(step, head, backends=CHEAP).ok
    else:
        with pytest.raises(raises):
            cabw_viz.compare(step, head, backends=CHEAP)
    assert_equal(state(), before)


def test_training_goes_on_as_without_a_comparison():
    def losses(*, compared):
        torch.manual_seed(0)
        net = Counted()
        step, _ = trained(net)
        first = [step() for _ in range(2)]
        if compared:
            assert cabw_viz.compare(step, net, backends=[*CHEAP, "aot_eager"]).ok
        return first + [step() for _ in range(4)]

    assert losses(compared=True) == losses(compared=False)


def test_hooks_that_look_at_gradients_are_removed(net):
    before = [param._post_accumulate_grad_hooks for param in net.parameters()]
    x = torch.randn(5, 2, 6, 6)

    def step():
        loss = net(x).square().mean()
        loss.backward()
        net.zero_grad()
        return loss.item()

    seen = []
    handle = net[5].weight.register_post_accumulate_grad_hook(lambda param: seen.append(param.grad is not None))
    assert cabw_viz.compare(step, net, backends=CHEAP).ok
    assert all(seen)
    assert list(net[5].weight._post_accumulate_grad_hooks) == [handle.id]
    handle.remove()
    net[5].weight._post_accumulate_grad_hooks = None
    assert [param._post_accumulate_grad_hooks for param in net.parameters()] == before


def test_a_graph_made_before_can_be_run_after(net, step):
    loss = step()
    cabw_viz.compare(step, net, backends=CHEAP, repeats=1)
    net[1].eval()
    frozen = cabw_viz.compare(lambda: net[5](torch.ones(1, 64)).sum(), net[5], backends=CHEAP, repeats=1)
    assert frozen.ok
    before = net[5].weight._version
    cabw_viz.compare(lambda: net[5](torch.ones(1, 64)).sum(), net[5], backends=CHEAP, repeats=1)
    assert net[5].weight._version == before
    del loss


def test_a_tied_parameter_is_compared_once():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    matrix = cabw_viz.compare(lambda: net(torch.ones(2, 3)).sum(), net, backends=CHEAP, repeats=1)
    assert [name for name in matrix.frame.index if "weight" in name] == ["0.weight"]


def test_compiled_autograd_that_is_on_and_a_running_backward_are_left_alone(net, step):
    from torch._dynamo import compiled_autograd

    with compiled_autograd._enable(lambda graph: graph), pytest.raises(CabwError, match="compiled autograd is on"):
        cabw_viz.compare(step, net)
    seen = []

    def hook(grad):
        with pytest.raises(CabwError, match="while a backward is running"):
            cabw_viz.compare(step, net)
        seen.append(grad)

    net[5].weight.register_hook(hook)
    step().backward()
    assert seen


def test_inside_a_capture_block_it_works_and_leaves_the_block_working(net, step):
    with cabw_viz.capture(net) as session:
        assert cabw_viz.compare(step, net, backends=CHEAP, repeats=1).ok
        step().backward()
    assert session[-1].parity().ok
