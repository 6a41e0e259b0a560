"""The quick trace hands out the graph that PyTorch's own tracer builds, or none."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd

import cabw_viz
from cabw_viz.tracing import quick_tracer, trace_only
from cabw_viz.tracing.quick_tracer import SWITCH, QuickTracer
from tests import corpus, definitions
from tests.captures import Twice, capture_of, data, leaf, model
from tests.corpus import observe
from tests.graph_equality import compared_traces, first_difference, rows_of

BY_PYTORCH = {
    "cs_function_reused_after_free",
    "fn_cpp_collective",
    "ho_gradient_penalty_compiled",
    "ho_grads_batched",
    "ho_vmap_over_grad",
    "kind_dtensor_unused_output",
    "kind_sparse_mm_both_sparse",
    "kind_wrapper_subclass_compiled",
}
"""Workloads whose quick trace is refused: inputs of other kinds, or a trace that fails with PyTorch's tracer too. Some
are refused before any trace."""

WITHOUT_A_TRACE = {
    "cs_backward_in_second_thread",
    "cs_two_threads_backward_at_once",
    "cs_two_threads_inside_together",
    "kind_ddp_one_rank",
    "kind_flex_attention",
    "kind_nested_layer_norm",
    "view_input_reused_buffer",
    "view_saved_then_modified",
}
"""Workloads of which no call is traced, or whose forward or trace raises whoever traces."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in corpus.SHORTENED else []) for name in corpus.NAMES]
)
def test_a_workload_has_the_same_graph(name):
    with warnings.catch_warnings(), compared_traces() as traces:
        warnings.simplefilter("ignore")  # of failed captures, which the workload's own tests expect
        observe(name, steps=1, around=lambda params: cabw_viz.capture(params))
    assert traces.wrong == []
    if name in BY_PYTORCH:
        assert traces.differences == []
    elif name not in WITHOUT_A_TRACE:
        assert traces.differences
        assert traces.refusals == []


@pytest.mark.parametrize("name", definitions.MODELS)
def test_a_real_model_has_the_same_graph(name):
    if name in ("gpt2", "llama", "bert"):
        pytest.importorskip("transformers", reason="pip install 'cabw_viz[examples]' for real model definitions")
    module, loss = definitions.MODELS[name]()
    with compared_traces() as traces:
        capture_of(module, loss)
    assert traces.differences == [""]


# -- the comparison finds differences ---------------------------------------------------------------------------


def traced_graph() -> torch.fx.Graph:
    """A graph of compiled autograd's own."""
    graphs = []
    loss = model()(data()).square().mean()
    with compiled_autograd._enable(lambda graph: graphs.append(graph.graph) or graph):
        loss.backward()
    torch._C._dynamo.compiled_autograd.clear_cache()
    return graphs[0]


def swap_arguments(graph):
    validated = next(node for node in graph.nodes if node.name == "validate_outputs_1")
    add = next(node for node in graph.nodes if node.name.startswith("call_accumulate_grad"))
    add.args = (validated, *add.args[1:])


def change_a_constant(graph):
    node = next(node for node in graph.nodes if node.name == "getitem_1")
    node.args = (node.args[0], True)


def rename(graph):
    next(node for node in graph.nodes if node.name == "validate_outputs").name = "validate"


def retarget(graph):
    next(node for node in graph.nodes if node.name == "validate_outputs").target = torch.add


def remove_the_last_call(graph):
    graph.erase_node([node for node in graph.nodes if not node.users and node.op == "call_function"][-1])


def move(graph):
    first, second = [node for node in graph.nodes if node.op == "call_function"][:2]
    second.append(first)


def change_the_origin(graph):
    next(node for node in graph.nodes if node.name == "validate_outputs_1").meta["stack_trace"] = "M (NodeCall 7)"


FAULTS = (swap_arguments, change_a_constant, rename, retarget, remove_the_last_call, move, change_the_origin)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_difference_is_seen(fault):
    graph = traced_graph()
    before = rows_of(graph)
    assert first_difference(before, rows_of(graph)) == ""
    fault(graph)
    assert first_difference(before, rows_of(graph)) != ""


def test_a_fault_of_the_quick_tracer_is_seen(monkeypatch):
    def backwards(self, fn, args, output_metadata):
        results = original(self, fn, args, output_metadata)
        return results[::-1]

    original = QuickTracer.proxy_call
    monkeypatch.setattr(QuickTracer, "proxy_call", backwards)
    with compared_traces() as traces:
        capture_of(model(), lambda: model()(data()).square().mean())
    assert len(traces.wrong) == 1


# -- what is refused --------------------------------------------------------------------------------------------


def tracers_of(monkeypatch) -> list[str]:
    """Names of the tracer classes that traces use from now on."""
    names, attempt = [], trace_only._attempt

    def noted(block, trace, tracer_class):
        names.append(tracer_class.__name__)
        return attempt(block, trace, tracer_class)

    monkeypatch.setattr(trace_only, "_attempt", noted)
    return names


def loss_of_function(module):
    return Twice.apply(module(data())).square().mean()


PLANTED = {
    "an op on a dummy": lambda tracer, results: results[0] * 2,
    "an op on a lifted tensor": lambda tracer, results: tracer.alive[0] + 1,
    "an op on nothing": lambda tracer, results: torch.ones(3) + 1,
    "a computed size in the graph": lambda tracer, results: tracer.fx_tracer.create_proxy(
        "call_function", torch.add, (size_of(tracer) + size_of(tracer), 1), {}
    ),
    "an error": lambda tracer, results: [].pop(),
}


def size_of(tracer):
    return torch.SymInt(next(iter(tracer.symnode_proxy_lookup)))


@pytest.mark.parametrize("name", PLANTED)
def test_what_may_change_the_graph_is_left_to_pytorch(name, monkeypatch):
    """The capture is PyTorch's, whole, and the user's run is unharmed."""

    def with_plant(self, fn, args, output_metadata):
        results = original(self, fn, args, output_metadata)
        PLANTED[name](self, results)
        return results

    original = QuickTracer.proxy_call
    monkeypatch.setattr(QuickTracer, "proxy_call", with_plant)
    expected, module = model(), model()
    loss_of_function(expected).backward()
    names = tracers_of(monkeypatch)
    capture = capture_of(module, lambda: loss_of_function(module))
    assert names == ["QuickTracer", "TripwireTracer"]
    assert capture.record.failure is None
    assert set(capture.parity().frame["verdict"]) == {"bitwise"}
    for mine, theirs in zip(module.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_the_sizes_of_what_a_function_returns_are_left_to_pytorch(monkeypatch):
    def reads(self, inputs, *rest):
        results = original(self, inputs, *rest)
        sizes.append(results[0].size())
        return results

    sizes = []
    original = compiled_autograd.AutogradCompilerInstance.proxy_call_backward
    monkeypatch.setattr(QuickTracer, "proxy_call_backward", reads, raising=False)
    names = tracers_of(monkeypatch)
    module = model()
    capture = capture_of(module, lambda: loss_of_function(module))
    assert names == ["QuickTracer", "TripwireTracer"]
    assert capture.record.failure is None


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (torch.randn(3, dtype=torch.complex64).conj(), "conjugated"),
        (torch.randn(3, 4).to_sparse().requires_grad_(), "sparse"),
        (torch.view_as_real(torch.randn(3, dtype=torch.complex64)), "a view of other elements"),
    ],
)
def test_inputs_of_other_kinds_are_left_to_pytorch(tensor, why, monkeypatch):
    names = tracers_of(monkeypatch)
    x = leaf(3, dtype=tensor.dtype) if tensor.layout is torch.strided and tensor.dim() == 1 else leaf(3, 2)
    if tensor.is_sparse:
        capture_of({"x": tensor}, lambda: torch.sparse.mm(tensor, torch.randn(4, 2)).sum())
    else:
        capture_of({"x": x}, lambda: (x * tensor).abs().sum())
    assert names == ["QuickTracer", "TripwireTracer"]


def test_the_switch_takes_pytorchs_tracer(monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    names = tracers_of(monkeypatch)
    module = model()
    capture_of(module, lambda: module(data()).sum())
    monkeypatch.setenv(SWITCH, "1")
    capture_of(module, lambda: module(data()).sum())
    assert names == ["TripwireTracer", "QuickTracer"]


def test_where_a_private_name_of_fx_is_gone_pytorchs_tracer_takes_the_call(monkeypatch):
    module = model()
    expected = capture_of(module, lambda: module(data()).sum())

    def gone(*_args):
        raise AttributeError("'Graph' object has no attribute '_insert'")

    monkeypatch.setattr("cabw_viz.torch_adapter.quick_fx._new_call", gone)
    names = tracers_of(monkeypatch)
    module.zero_grad()
    capture = capture_of(module, lambda: module(data()).sum())
    assert names == ["QuickTracer", "TripwireTracer"]
    assert capture.record.graph_nodes == expected.record.graph_nodes
    assert capture.parity().ok


def test_a_patched_tracer_is_used_as_it_is(monkeypatch):
    tracer = compiled_autograd.AutogradCompilerInstance
    original = tracer.apply_functional
    monkeypatch.setattr(tracer, "apply_functional", lambda *args: original(*args))
    assert not quick_tracer.is_quick_trace_possible()
    monkeypatch.undo()
    assert quick_tracer.is_quick_trace_possible()


@pytest.mark.parametrize("run", ["compiled", "user"])
def test_whoever_compiles_gets_pytorchs_graph(run, monkeypatch):
    monkeypatch.setattr(quick_tracer.QuickTracer, "__init__", None)  # would raise
    module, theirs = model(), []
    if run == "user":
        with compiled_autograd._enable(lambda graph: theirs.append(graph) or graph):
            capture = capture_of(module, lambda: module(data()).sum())
        assert len(theirs) == 1
    else:
        capture = capture_of(module, lambda: module(data()).sum(), run="compiled")
    assert capture.record.failure is None


# -- the record -------------------------------------------------------------------------------------------------


class Hooked(nn.Module):
    """Hooks of every kind."""

    def __init__(self):
        super().__init__()
        self.inner = model()
        self.inner[0].weight.register_post_accumulate_grad_hook(lambda leaf: None)

    def forward(self, x):
        hidden = self.inner[1](self.inner[0](x))
        hidden.register_hook(lambda grad: grad)
        hidden.grad_fn.register_prehook(lambda grads: grads)
        hidden.grad_fn.register_hook(lambda grads, inputs: None)
        return Twice.apply(self.inner[2](hidden))


@pytest.mark.parametrize("tripwire", [True, False])
def test_the_record_is_the_same(tripwire, monkeypatch):
    """Reads of metadata by PyTorch's own callbacks for hooks among it."""

    def record(switch):
        monkeypatch.setenv(SWITCH, switch)
        torch.manual_seed(0)
        module = Hooked()
        module(data()).sum().backward()
        names.append(tracers_of(monkeypatch))
        capture = capture_of(module, lambda: module(data()).square().sum(), tripwire=tripwire)
        return replace(capture.record, seconds=0.0)

    names = []
    quick, by_pytorch = record("1"), record("0")
    assert names[0][0] == "QuickTracer"
    assert quick == by_pytorch
    assert bool(quick.touches) == tripwire


def test_the_code_of_a_quick_graph_is_there():
    module = model()
    capture = capture_of(module, lambda: module(data()).square().mean())
    graph = capture._state.graph
    assert graph.code.count("validate_outputs") >= len(capture.record.autograd_nodes) - 1
    assert graph.graph.owning_module is graph
