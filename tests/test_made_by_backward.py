"""Nodes that a backward with create_graph=True makes have the module of the node whose formula makes them.

What anomaly mode notes is the independent source: it stores each new node's parent in `metadata["parent_"]`.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.tracing.module_calls import ModuleCalls
from cabw_viz.tracing.node_numbering import ROOT, number_nodes
from tests.captures import capture_of_run, session_of


def mlp(inputs, outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, outputs))


def meta_step(net):
    """A step of MAML: the loss after one step of gradient descent that is itself differentiated."""
    x = torch.randn(8, 1)
    params = dict(net.named_parameters())
    loss = (torch.func.functional_call(net, params, x) - x.sin()).square().mean()
    grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
    stepped = {name: p - 0.1 * g for (name, p), g in zip(params.items(), grads, strict=True)}
    return (torch.func.functional_call(net, stepped, x) - x.sin()).square().mean()


def residual_of_a_pde(net):
    """A physics-informed network: first and second derivatives by the inputs."""
    x = torch.rand(16, 2, requires_grad=True)
    (du,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    (ddu,) = torch.autograd.grad(du[:, 0].sum(), x, create_graph=True)
    return (du[:, 1] - ddu[:, 0]).square().mean()


def gradient_penalty(critic):
    """WGAN-GP's."""
    x = torch.randn(2, 1, 4, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return ((gradient.flatten(1).norm(dim=1) - 1) ** 2).mean()


def critic():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.LeakyReLU(0.2),
        nn.Conv2d(4, 8, 3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(32, 1),
    )


PROGRAMS = {
    "maml": (lambda: mlp(1, 1), meta_step),
    "pinn": (lambda: mlp(2, 1), residual_of_a_pde),
    "wgan-gp": (critic, gradient_penalty),
}


def parents(loss):
    """The names of each node and of its parent, in the order of the NodeCalls; GraphRoot and leaves are left out."""
    nodes = [node for node in number_nodes([loss]).nodes if node is not ROOT and not hasattr(node, "variable")]
    found = [node.metadata.get("parent_") for node in nodes]
    return [(node.name(), "" if parent is None else parent.name()) for node, parent in zip(nodes, found, strict=True)]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("gradients", ["nodes", "none"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_node_of_a_second_derivative_has_its_origin(program, gradients):
    make, loss_of = PROGRAMS[program]
    with torch.autograd.detect_anomaly(check_nan=False):
        expected = parents(loss_of(make()))
    net = make()
    session = session_of(net, lambda: loss_of(net).backward(), gradients=gradients)
    nodes = [node for node in session[-1].record.autograd_nodes if node.kind not in ("graph_root", "accumulate_grad")]
    assert [(node.name, node.backward_of) for node in nodes] == expected
    assert any(node.backward_of for node in nodes)
    # Only the loss's own nodes, which no module's forward has made, pass none on.
    outside = {node.backward_of for node in nodes if node.backward_of and not node.module}
    assert outside <= {"MeanBackward0", "PowBackward0", "SubBackward0", "SumBackward0", "SelectBackward0"}
    assert sum(bool(node.module) for node in nodes) / len(nodes) > 0.6


def test_the_module_is_that_of_the_node_whose_formula_ran():
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    x = torch.randn(2, 4, requires_grad=True)

    def run():
        (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()

    capture = session_of(net, run)[-1]
    origins = {(node.name, node.backward_of): node.module for node in capture.record.autograd_nodes}
    assert origins["TanhBackwardBackward0", "TanhBackward0"] == "1"
    assert origins["TBackward0", "AddmmBackward0"] in ("0", "2")
    products = [n.module for n in capture.record.autograd_nodes if n.name == "MmBackward0"]
    assert sorted(products) == ["0", "2"]
    assert origins["TanhBackward0", ""] == "1"  # the forward's own
    assert origins["SumBackward0", ""] == ""  # and what no module made
    assert "1, in its backward" in capture.outline(full=True)
    assert set(capture.nodes.backward_of.dropna()) >= {"TanhBackward0", "AddmmBackward0"}


def test_calls_of_one_module_stay_apart():
    layer = nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)

    def run():
        (gradient,) = torch.autograd.grad(layer(layer(x).tanh()).tanh().sum(), x, create_graph=True)
        gradient.square().sum().backward()

    record = session_of({"x": x}, run)[-1].record
    visits = [node.visit for node in record.autograd_nodes if node.name == "MmBackward0" and node.backward_of]
    assert sorted(visits) == [0, 1]


def test_it_holds_for_a_call_that_is_not_captured_and_for_a_cache_hit():
    net = mlp(2, 1)
    session = session_of(net, lambda: residual_of_a_pde(net).backward(), only=2)
    assert list(session.events["outcome"]) == ["bypassed", "bypassed", "captured"]
    alone = [(n.name, n.module, n.backward_of) for n in session[-1].record.autograd_nodes]
    net = mlp(2, 1)
    with cabw_viz.capture(net) as session:
        for _ in range(2):
            net.zero_grad()
            residual_of_a_pde(net).backward()
            net.register_buffer("more", torch.ones(1))
    assert "cache_hit" in set(session.events["outcome"])
    assert [(n.name, n.module, n.backward_of) for n in session[2].record.autograd_nodes] == alone


def test_a_backward_in_a_forward_leaves_what_follows_in_that_forward():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 1)

        def forward(self, x):
            (gradient,) = torch.autograd.grad(self.net(x).tanh().sum(), x, create_graph=True)
            return gradient.sin()

    model = nn.Sequential(Inner())
    x = torch.randn(2, 3, requires_grad=True)
    capture = session_of(model, lambda: model(x).sum().backward())[-1]
    origins = {node.name: (node.module, node.backward_of) for node in capture.record.autograd_nodes}
    assert origins["SinBackward0"] == ("0", "")
    assert origins["MmBackward0"] == ("0.net", "AddmmBackward0")
    assert origins["TanhBackwardBackward0"] == ("0", "TanhBackward0")


def test_the_hooks_leave_nothing_and_change_nothing(monkeypatch):
    def run():
        torch.manual_seed(0)
        net = mlp(2, 1)
        residual_of_a_pde(net).backward()
        return [parameter.grad for parameter in list(net.parameters())[:-1]]  # the last bias is no part of it

    expected = run()
    with cabw_viz.capture():
        actual = run()
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))

    def broken(*_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(ModuleCalls, "_begins_turn", broken)
    with cabw_viz.capture(), pytest.warns(cabw_viz.errors.CabwWarning, match="planted"):
        actual = run()
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


def test_a_plain_backward_gets_no_hooks(monkeypatch):
    monkeypatch.setattr(ModuleCalls, "of_backward", None)
    net = mlp(2, 1)
    capture = capture_of_run(net, lambda: net(torch.ones(1, 2)).sum().backward())
    assert {node.backward_of for node in capture.record.autograd_nodes} == {""}
