"""Saved tensors that hooks have packed, in graphs that are compiled: unpacked before, in order, and once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from cabw_viz.errors import CabwError
from tests.captures import capture_of

BLOCKS = 3


def blocks():
    torch.manual_seed(0)
    return nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(BLOCKS))


def data():
    return torch.linspace(-2, 2, 12).reshape(3, 4).sin()


def in_turn(net, call=lambda block, x: block(x)):
    x = data()
    for block in net:
        x = call(block, x)
    return x.square().sum()


class Packing:
    """Hooks that pack tensors by number, note the order of unpacking, and may change what they give back."""

    def __init__(self, change=lambda tensor: tensor):
        self.tensors, self.order, self.change = [], [], change

    def pack(self, tensor):
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def unpack(self, number):
        self.order.append(number)
        return self.change(self.tensors[number])

    def loss(self, net):
        with saved_tensors_hooks(self.pack, self.unpack):
            return in_turn(net)


def checkpointed(net):
    return in_turn(net, lambda block, x: checkpoint(block, x, use_reentrant=False))


def offloaded(net):
    with save_on_cpu():
        return in_turn(net)


def quantized(net):
    return Packing(lambda tensor: tensor.mul(64).round().div(64)).loss(net)


WAYS = {"checkpoints": checkpointed, "save_on_cpu": offloaded, "quantized": quantized}


@pytest.mark.parametrize("way", WAYS)
def test_a_compiler_gets_one_graph_and_gives_eagers_bits(way):
    net = blocks()
    capture = capture_of(net, lambda: WAYS[way](net))
    report = capture.parity(backend="aot_eager")
    assert set(report.frame["verdict"]) == {"bitwise"}, report
    assert len(report.frame) == len(list(net.parameters()))
    assert "(1 graph)" in report.comparison.candidate
    assert capture.divergence(backend="aot_eager").ok


@pytest.mark.parametrize("way", WAYS)
def test_in_another_dtype_too(way):
    net = blocks()
    capture = capture_of(net, lambda: WAYS[way](net))
    assert capture.parity(backend="aot_eager", dtype="float64").ok


def test_tensors_are_unpacked_once_and_in_the_order_of_the_engine():
    net, packing = blocks(), Packing()
    capture = capture_of(net, lambda: packing.loss(net))
    in_eager = packing.order[:]
    assert len(set(in_eager)) == len(in_eager) > 2 * BLOCKS
    packing.order.clear()
    assert capture.parity(backend="aot_eager").ok
    assert packing.order == in_eager


def test_a_compiler_function_gets_a_graph_without_hooks():
    net, packing = blocks(), Packing()
    capture = capture_of(net, lambda: packing.loss(net))
    graphs = []

    def compiler(graph):
        graphs.append(graph)
        return graph

    found = capture.replay(backend=compiler)
    assert all(torch.equal(found[name], parameter.grad) for name, parameter in net.named_parameters())
    assert not any("unpack_hook" in node.kwargs.values() for node in graphs[0].graph.nodes)


def test_the_captured_graph_stays_as_it_is():
    net, packing = blocks(), Packing()
    capture = capture_of(net, lambda: packing.loss(net))
    before = str(capture._state.graph.graph)
    assert capture.parity(backend="aot_eager").ok
    assert capture.parity(backend="aot_eager").ok
    assert str(capture._state.graph.graph) == before


def test_what_unpacks_otherwise_the_second_time_is_a_mismatch():
    net, packing = blocks(), Packing()
    capture = capture_of(net, lambda: packing.loss(net))
    packing.change = lambda tensor: tensor * 1.01
    report = capture.parity(backend="aot_eager")
    assert "mismatch" in set(report.frame["verdict"])


def test_a_wrong_kernel_is_found_in_a_checkpoint():
    net = blocks()
    capture = capture_of(net, lambda: checkpointed(net))

    def wrong(graph, example_inputs):
        for node in graph.graph.nodes:
            if "Gelu" in getattr(node.target, "__name__", ""):
                function = node.target
                node.target = lambda *args, function=function: [each * 1.001 for each in function(*args)]
        graph.recompile()
        return graph.forward

    report, divergence = capture.parity(backend=wrong), capture.divergence(backend=wrong)
    assert "mismatch" in set(report.frame["verdict"])
    assert divergence.first.name == "GeluBackward0"


def test_a_hook_that_unpacks_no_second_time_is_named():
    net, packing = blocks(), Packing()

    def unpack_once(number):
        tensor, packing.tensors[number] = packing.tensors[number], None
        return tensor.clone()

    packing.unpack = unpack_once
    capture = capture_of(net, lambda: packing.loss(net))
    with pytest.raises(CabwError, match=r"unpack_once could not unpack a saved tensor again: AttributeError"):
        capture.parity(backend="aot_eager")
