"""`capture(trace=False)`: what is kept is what a trace tells, the run is eager's, and what needs a graph is refused."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd

import cabw_viz
from cabw_viz.errors import CabwError, CabwWarning
from cabw_viz.runtime.gradient_snapshots import equal_bits
from cabw_viz.tracing import reference_gradients, trace_lock
from cabw_viz.views.html import session_html
from tests import corpus
from tests.captures import capture_of, capture_of_run, data, leaf, model, session_of
from tests.corpus import assert_same, observe


def watched(subject, loss, **options):
    return capture_of(subject, loss, trace=False, **options)


def outcomes(session):
    return list(session.events["outcome"])


# ------------------------------------------------------------------------------------------------- against a trace


def facts(node):
    """What a record says of an autograd node without a graph."""
    saved = tuple(replace(tensor, input=None) for tensor in node.saved)
    hooks = [(hook.kind, hook.name, hook.where) for hook in node.hooks]
    return node.number, node.name, node.kind, node.edges, node.leaf, node.module, node.visit, node.line, saved, (
        node.gradients_in, node.gradients_out, node.framework, node.backward_of, hooks
    )  # fmt: skip


def capture_in(name, **options):
    """What a user sees of the first step of a workload, and its session."""
    sessions = []

    def block(params):
        sessions.append(cabw_viz.capture(dict(params), **options))
        return sessions[-1]

    return observe(name, 1, around=block), sessions[-1]


@pytest.mark.parametrize("name", corpus.NAMES)
def test_a_workload_runs_as_without_us_and_its_nodes_are_those_of_a_trace(name):
    seen, session = capture_in(name, trace=False)
    assert set(outcomes(session)) <= {"watched", "bypassed"}
    as_traced, traced = capture_in(name)
    assert_same(as_traced, seen)  # which is as in eager, as other tests say
    captured = {replace(capture.record.call, index=None): capture for capture in reversed(list(traced))}
    for capture in session:
        other = captured.pop(replace(capture.record.call, index=None), None)
        if other is None:  # bypassed, or a cache hit: there the trace has no record
            continue
        assert capture.record.leaves == other.record.leaves
        if name not in WITH_TORCH_FUNC:
            assert list(map(facts, capture.record.autograd_nodes)) == list(map(facts, other.record.autograd_nodes))


WITH_TORCH_FUNC = {"gs_func_grad_repeated_inplace"}
"""Where torch.func makes nodes: its call is bypassed with a trace, and so is who has made them."""


def test_the_gradients_are_those_of_the_run():
    net = model()
    capture = watched(net, lambda: net(data()).square().sum())
    parameters = dict(net.named_parameters())
    assert sorted(leaf.label for leaf in capture.record.leaves) == sorted(parameters)
    for index, each in enumerate(capture.record.leaves):
        assert equal_bits(capture._state.reference[index].value, parameters[each.label].grad)
    traced = capture_of(net, lambda: net(data()).square().sum())._state.node_gradients
    gradients = capture._state.node_gradients
    assert gradients.outputs.keys() == traced.outputs.keys()
    for number, outputs in traced.outputs.items():
        for one, other in zip(outputs, gradients.outputs[number], strict=True):
            assert one is other is None or equal_bits(one.value, other.value)


@pytest.mark.parametrize(("gradients", "leaves", "nodes"), [("leaves", 4, False), ("none", 0, False)])
def test_gradients_are_kept_as_asked_for(gradients, leaves, nodes):
    net = model()
    capture = watched(net, lambda: net(data()).sum(), gradients=gradients)
    assert len(capture._state.reference) == leaves
    assert (capture._state.node_gradients is not None) == nodes


# ------------------------------------------------------------------------------- where compiled autograd cannot trace


def nested_rows():
    torch.manual_seed(0)
    return torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.strided)


def padded_sum(net):
    return torch.nested.to_padded_tensor(net(nested_rows()), 0.0).square().sum()


def test_nested_tensors_are_watched():
    net = nn.Linear(4, 3)
    capture = watched(net, lambda: padded_sum(net))
    assert capture.error is None
    grads = {index: leaf.label for index, leaf in enumerate(capture.record.leaves)}
    for index, name in grads.items():
        assert equal_bits(capture._state.reference[index].value, getattr(net, name).grad)


def test_a_batch_of_backwards_is_watched():
    x = leaf(3, 2)
    directions = torch.randn(5, 3, 2)
    gradients = []
    capture = capture_of_run(
        {"x": x},
        lambda: gradients.extend(torch.autograd.grad(x.square(), x, directions, is_grads_batched=True)),
        trace=False,
    )
    expected = 2 * x.detach() * directions
    torch.testing.assert_close(gradients[0], expected)
    assert equal_bits(capture._state.reference[0].value, gradients[0])


def test_gradients_of_torch_func_are_watched():
    net = model()
    parameters = {name: each.detach() for name, each in net.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(net, parameters, (x,)).square().sum()

    seen = {}
    capture = capture_of_run(net, lambda: seen.update(torch.func.grad(loss)(parameters, data())), trace=False)
    for each, gradient in zip(capture.record.leaves, seen.values(), strict=True):
        assert equal_bits(capture._state.reference[each.output].value, gradient)
    rows = data()
    session = session_of(
        net, lambda: seen.update(torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, rows)), trace=False
    )
    assert outcomes(session) == ["watched"]
    for index, (name, gradient) in enumerate(seen.items()):
        kept = session[0]._state.reference[index].value
        assert kept.shape == (3, *parameters[name].shape)
        assert equal_bits(kept, gradient)


def test_a_torchscript_model_is_watched():
    net = torch.jit.script(model())
    capture = watched(net, lambda: net(data()).square().sum())
    assert len(capture._state.reference) == 4


# ------------------------------------------------------------------------------------------------ failed captures


def test_a_failed_capture_has_what_a_watched_one_has():
    net = nn.Linear(4, 3)
    net.weight.register_hook(scaled)
    failed = capture_of(net, lambda: padded_sum(net))
    assert failed.error.type == "NotImplementedError"
    expected = net.weight.grad.clone()
    net.zero_grad()
    other = watched(net, lambda: padded_sum(net))
    assert equal_bits(net.weight.grad, expected)
    assert list(map(facts, failed.record.autograd_nodes)) == list(map(facts, other.record.autograd_nodes))
    assert failed._state.has_reference
    assert failed._state.reference.keys() == other._state.reference.keys()
    for index, gradient in other._state.reference.items():
        assert equal_bits(failed._state.reference[index].value, gradient.value)
    assert failed._state.node_gradients.outputs.keys() == other._state.node_gradients.outputs.keys()
    with pytest.raises(CabwError, match="no complete graph: NotImplementedError"):
        failed.parity()


def scaled(gradient):
    return gradient * 2


def test_the_error_of_a_failed_capture_stays_that_of_its_trace():
    x = leaf(3)
    y = x.exp()
    loss = y.add_(1).sum()
    session = cabw_viz.capture({"x": x})
    with session, pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert outcomes(session) == ["failed"]
    assert session.events["reason"][0] == str(session[0].error)
    with pytest.raises(CabwError, match="the run of this backward raised RuntimeError"):
        session[0]._captured.check_reference()


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "ask",
    [
        lambda cap: cap.replay(),
        lambda cap: cap.parity(),
        lambda cap: cap.divergence(),
        lambda cap: cap.lower(),
        lambda cap: cap.audit(),
        lambda cap: cap.times(),
        lambda cap: cap.touches(),
        lambda cap: cap.graph("fx"),
        lambda cap: cap.graph("aten"),
        lambda cap: cap.graph(color_by="parity"),
        lambda cap: cap.graph(color_by="touches"),
        lambda cap: cap.graph("autograd", color_by="time"),
    ],
)
def test_what_needs_a_graph_says_how_to_have_it(ask):
    net = model()
    capture = watched(net, lambda: net(data()).sum())
    with pytest.raises(CabwError, match="without a trace") as raised:
        ask(capture)
    assert raised.value.try_.startswith("cabw_viz.capture(model), without trace=False")
    assert raised.value.expected


def test_what_needs_no_graph_is_there():
    net = model()
    session = session_of(net, lambda: net(data()).sum().backward(), trace=False)
    (capture,) = session
    assert outcomes(session) == ["watched"]
    assert "not traced" in repr(session)
    assert "0 graph nodes" not in repr(session) + repr(capture) + session_html((), session._data())
    assert "0 touches" not in repr(capture)
    assert set(capture.nodes["module"].dropna()) == {"0", "1", "2"}
    assert capture.memory()["bytes"].sum() > 0
    for view in (capture.graph(), capture.graph("autograd"), capture.graph(color_by="bytes")):
        assert "AddmmBackward0" in view.source or "Linear" in view.source
        assert "0 graph nodes" not in view.source


def test_a_compiled_run_without_a_trace_is_refused():
    with pytest.raises(CabwError, match='run="compiled" and trace=False'):
        cabw_viz.capture(run="compiled", trace=False)
    with pytest.raises(CabwError, match="trace=1"):
        cabw_viz.capture(trace=1)


# ---------------------------------------------------------------------------------------------- the user's run


def test_compiled_autograd_is_left_alone(monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("compiled autograd was touched")

    for name in ("clear_cache", "set_autograd_compiler", "set_verbose_logger"):
        if hasattr(torch._C._dynamo.compiled_autograd, name):
            monkeypatch.setattr(torch._C._dynamo.compiled_autograd, name, forbidden)
    monkeypatch.setattr(trace_lock.TraceLock, "try_exclusive", forbidden)
    net = model()
    capture = watched(net, lambda: net(data()).sum())
    assert len(capture._state.reference) == 4


def test_the_users_compiled_autograd_gets_the_graph_that_it_gets_without_us():
    net, graphs = model(), []

    def compiler(graph):
        graphs.append([str(node) for node in graph.graph.nodes])
        return graph

    for options in (None, {"trace": False}):
        net.zero_grad()
        torch._C._dynamo.compiled_autograd.clear_cache()
        with compiled_autograd._enable(compiler):
            if options is None:
                net(data()).square().sum().backward()
                expected = [parameter.grad.clone() for parameter in net.parameters()]
            else:
                capture = capture_of(net, lambda: net(data()).square().sum(), **options)
    torch._C._dynamo.compiled_autograd.clear_cache()
    assert len(graphs) == 2
    assert graphs[0] == graphs[1]
    assert capture.record.run == "user"
    assert all(equal_bits(*pair) for pair in zip(expected, (p.grad for p in net.parameters()), strict=True))
    names = [leaf.label for leaf in capture.record.leaves]
    for index, name in enumerate(names):
        assert equal_bits(capture._state.reference[index].value, net.get_parameter(name).grad)


def test_an_exception_of_the_users_run_comes_through():
    x = leaf(3)
    y = x.exp()
    session = cabw_viz.capture({"x": x}, trace=False)
    with session, pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.add_(1).sum().backward()
    assert outcomes(session) == ["watched"]
    assert session[0].error.type == "RuntimeError"
    assert "the run raised RuntimeError" in session.events["reason"][0]


@pytest.mark.parametrize("options", [{}, {"gradients": "leaves"}, {"trace": True}])
def test_an_accumulation_keeps_the_gradient_itself_as_without_us(options):
    x, places = leaf(5), []
    x.register_hook(lambda gradient: places.append(gradient.data_ptr()))
    (x * 2).sum().backward()
    assert places == [x.grad.data_ptr()]
    x.grad = None
    capture_of({"x": x}, (x * 2).sum, **{"trace": False, **options})
    assert places[-1] == x.grad.data_ptr()


def test_a_copy_of_what_is_returned_that_fails_is_a_warning(monkeypatch):
    def fails(_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(reference_gradients, "detached_copy", fails)
    x, gradients = leaf(3), []
    with pytest.warns(CabwWarning, match="were not kept"):
        capture = capture_of_run({"x": x}, lambda: gradients.extend(torch.autograd.grad((x * 2).sum(), x)), trace=False)
    assert gradients[0].tolist() == [2.0] * 3
    assert not capture._state.has_reference


def test_hooks_are_called_as_often_as_without_us():
    calls = []
    net = model()
    net[0].weight.register_hook(lambda g: calls.append("tensor"))
    net[2].bias.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))

    def run():
        loss = net(data()).sum()
        loss.grad_fn.register_hook(lambda *_: calls.append("node"))
        loss.backward()

    run()
    without, calls[:] = list(calls), []
    capture = capture_of_run(net, run, trace=False)
    assert calls == without
    kinds = {hook.kind for node in capture.record.autograd_nodes for hook in node.hooks}
    assert kinds == {"tensor_pre_hook", "post_hook", "post_acc_grad_hook"}


@pytest.mark.parametrize("steps", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_watched_steps_in_a_row_take_constant_memory(steps):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def step():
        optimizer.zero_grad()
        with cabw_viz.capture(net, trace=False) as session:
            net(data()).square().sum().backward()
        optimizer.step()
        assert len(session) == 1

    for _ in range(50):
        step()
    gc.collect()
    gc.disable()  # the tensors of a session go with it, without the garbage collector
    tracemalloc.start()
    try:
        step()
        before, _ = tracemalloc.get_traced_memory()
        tensors = count_of_tensors()
        for _ in range(steps):
            step()
        assert count_of_tensors() <= tensors
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert after - before < 500 * steps  # the record of one takes 20 kB; torch itself leaves 50 bytes a step


def count_of_tensors():
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def test_hooks_on_tensors_that_were_removed_are_not_listed():
    x = leaf(3)

    def run():
        y = x * 2
        y.register_hook(scaled).remove()
        y.register_hook(lambda g: g)
        y.retain_grad()
        y.sum().backward()

    capture = capture_of_run({"x": x}, run, trace=False)
    (node,) = [node for node in capture.record.autograd_nodes if node.name == "MulBackward0"]
    assert [(hook.kind, hook.input) for hook in node.hooks] == [("tensor_pre_hook", 0), ("cpp_tensor_pre_hook", 0)]
    assert "scaled" not in repr(capture)
