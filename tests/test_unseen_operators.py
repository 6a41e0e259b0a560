"""Modes and profilers that the user has around a block or in it see the operators of the user's program, no others."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import cabw_viz
from cabw_viz import torch_adapter
from tests.captures import Twice, data, model


class DispatchLog(TorchDispatchMode):
    """The operators that it sees, in order."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class FunctionLog(TorchFunctionMode):
    """The torch functions that it sees, in order."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


# -- programs: each runs a forward and a backward ------------------------------------------------------------------


def plain():
    net = model()
    net(data()).square().sum().backward()


def returned():
    net = model()
    torch.autograd.grad(net(data()).square().sum(), list(net.parameters()))


def twice():
    net = model()
    (gradient,) = torch.autograd.grad(net(data()).square().sum(), net[0].weight, create_graph=True)
    gradient.square().sum().backward()


def recomputed():
    net = model()
    checkpoint(net, data(), use_reentrant=False).square().sum().backward()


def recomputed_reentrantly():
    net = model()
    checkpoint(net, data().requires_grad_(), use_reentrant=True).square().sum().backward()


def tripled(parameter):
    parameter.grad.mul_(3)


def with_hooks():
    net = model()
    hidden = Twice.apply(net[0](data()))
    hidden.register_hook(lambda g: g * 2)
    hidden.grad_fn.register_prehook(lambda g: (g[0] + 1,))
    net[0].weight.register_post_accumulate_grad_hook(tripled)
    hidden.square().sum().backward()


def of_a_subclass():
    torch.manual_seed(0)
    w = nn.Parameter(TwoTensor(torch.randn(3, 4), torch.randn(3, 4)))
    (w * 2).sin().sum().backward()


def of_a_sparse_leaf():
    torch.manual_seed(0)
    leaf = torch.randn(3, 4).relu().to_sparse_csr().requires_grad_()
    torch.autograd.grad(torch.sparse.mm(leaf, torch.ones(4, 2)).sum(), leaf)


PROGRAMS = [plain, returned, twice, recomputed, recomputed_reentrantly, with_hooks, of_a_subclass, of_a_sparse_leaf]


def log_of(log, program, around=nullcontext):
    with log() as mode, around():
        program()
    return mode.seen


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("gradients", ["nodes", "leaves", "none"])
@pytest.mark.parametrize("log", [DispatchLog, FunctionLog])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_mode_around_the_block_sees_the_same_operators(program, log, gradients):
    expected = log_of(log, program)
    sessions = []

    def block():
        sessions.append(cabw_viz.capture(gradients=gradients, lines=False))
        return sessions[0]

    assert log_of(log, program, block) == expected
    assert expected
    assert len(sessions[0])
    assert sessions[0].events["outcome"][0] == "captured"


@pytest.mark.parametrize("program", PROGRAMS[:-1])
def test_without_the_context_it_would_see_more(program, monkeypatch):
    """Shows that the test above can fail."""
    expected = log_of(DispatchLog, program)
    monkeypatch.setattr(torch_adapter, "unseen_operators", nullcontext)
    assert len(log_of(DispatchLog, program, cabw_viz.capture)) > len(expected)


def test_a_mode_that_a_hook_switches_on_for_a_node_sees_that_node_alone():
    """And nothing of the copies that are kept of its gradients meanwhile."""

    def run():
        net, log = model(), DispatchLog()
        out = net(data()).sin().cos()
        out.grad_fn.register_prehook(lambda _: log.__enter__() and None)
        out.grad_fn.register_hook(lambda *_: log.__exit__(None, None, None))
        out.sum().backward()
        return log.seen

    expected = run()
    assert expected
    with cabw_viz.capture() as session:
        assert run() == expected
    assert len(session) == 1


def test_a_mode_inside_the_block_sees_the_same_too():
    def run():
        net = model()
        loss = net(data()).square().sum()
        with DispatchLog() as log:
            loss.backward()
        return log.seen

    expected = run()
    with cabw_viz.capture():
        assert run() == expected


def test_flops_and_what_debug_mode_writes_are_the_same():
    def flops():
        with FlopCounterMode(display=False) as counter:
            plain()
        return counter.get_flop_counts()

    def written():
        with DebugMode() as mode:
            plain()
        return mode.debug_string()

    expected = flops(), written()
    with cabw_viz.capture():
        assert (flops(), written()) == expected


def test_the_profiler_records_the_same_operators():
    def recorded():
        with torch.profiler.profile() as profile:
            plain()
        return sorted((event.key, event.count) for event in profile.key_averages())

    recorded()
    expected = recorded()
    with cabw_viz.capture(lines=False):
        assert recorded() == expected
    assert recorded() == expected  # and it records again after the block


def test_random_numbers_and_stack_of_modes_after_a_trace_that_fails(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(torch_adapter.TracerBase, "set_node_origin", broken)
    expected = log_of(DispatchLog, plain)
    with DispatchLog() as outer, cabw_viz.capture() as session:
        plain()
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is outer
    assert outer.seen == expected
    assert list(session.events["outcome"]) == ["failed"]
