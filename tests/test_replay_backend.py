"""Replay through a compiler: nothing is written, wrong kernels are found, and the user's Dynamo is left alone."""

from __future__ import annotations

import gc
import shutil

import pytest
import torch
from torch import nn
from torch._dynamo import convert_frame
from torch._dynamo.utils import counters

import cabw_viz
from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from tests.captures import capture_of


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))


def net_and_capture():
    net = model()
    torch.manual_seed(1)
    x = torch.randn(5, 4)
    return net, capture_of(net, lambda: net(x).square().sum())


def gradients(net):
    return {name: parameter.grad for name, parameter in net.named_parameters()}


# ------------------------------------------------------------------------------------------------------- backends


def test_aot_eager_gives_the_same_bits_and_writes_nothing():
    net, capture = net_and_capture()
    before = {name: (gradient, gradient.clone()) for name, gradient in gradients(net).items()}
    report = capture.parity(backend="aot_eager")
    assert set(report.frame["verdict"]) == {"bitwise"}
    for name, gradient in gradients(net).items():
        assert gradient is before[name][0]
        assert torch.equal(gradient, before[name][1])
    assert "compiled by torch.compile(backend='aot_eager') and run again (1 graph), on cpu" in repr(report)


def test_a_compiler_function_gets_the_captured_graph():
    """One argument: as compiled autograd's own compiler function. Accumulations are outputs of it."""
    net, capture = net_and_capture()
    seen = []

    def compiler(graph):
        seen.append(graph)
        return graph

    found = capture.replay(backend=compiler)
    assert {name: torch.equal(found[name], grad) for name, grad in gradients(net).items()} == dict.fromkeys(found, True)
    (graph,) = seen
    assert isinstance(graph, torch.fx.GraphModule)
    assert not graph.graph.find_nodes(op="call_function", target=torch_adapter.call_accumulate_grad)
    assert len(graph.graph.output_node().args[0]) == len(found)
    assert "compiled by compiler and run again" in capture.parity(backend=compiler).comparison.candidate


def test_torch_compile_itself_is_a_compiler_function():
    net, capture = net_and_capture()
    found = capture.replay(backend=lambda graph: torch.compile(graph, backend="eager"))
    assert all(torch.equal(found[name], grad) for name, grad in gradients(net).items())


def test_a_backend_with_a_wrong_kernel_is_found():
    """Two arguments: a backend of torch.compile. This one scales what each matrix product gives by 1.001."""
    _, capture = net_and_capture()
    calls = []

    def wrong(graph, example_inputs):
        calls.append(len(example_inputs))
        for node in graph.graph.nodes:
            if "Addmm" in getattr(node.target, "__name__", ""):
                fn = node.target
                node.target = lambda *args, fn=fn: [None if g is None else g * 1.001 for g in fn(*args)]
        graph.recompile()
        return graph.forward

    report = capture.parity(backend=wrong)
    assert calls
    verdicts = dict(zip(report.frame["parameter"], report.frame["verdict"], strict=True))
    assert not report.ok
    assert set(verdicts.values()) == {"mismatch"}
    row = report.frame.set_index("parameter").loc["3.weight"]
    assert row["max_rel_err"] == pytest.approx(1e-3, rel=1e-2)
    assert row["candidate_err"] == pytest.approx(1e-3, rel=1e-2)
    assert row["reference_err"] < 1e-6
    assert "backend='wrong'" in report.comparison.candidate
    assert capture.parity().ok


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor():
    _, capture = net_and_capture()
    report = capture.parity(backend="inductor")
    assert report.ok, report
    assert "backend='inductor'" in report.comparison.candidate


def test_another_dtype_through_a_compiler():
    net, capture = net_and_capture()
    compiled, interpreted = (capture.replay(dtype="float64", backend=b) for b in ("aot_eager", "eager"))
    for name, gradient in gradients(net).items():
        assert compiled[name].dtype is torch.float64
        assert torch.allclose(compiled[name], interpreted[name], rtol=1e-12, atol=1e-14)
        assert torch.allclose(compiled[name].float(), gradient, rtol=1e-4, atol=1e-6)


def test_gradients_that_are_returned():
    w, v = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    with cabw_viz.capture({"w": w, "v": v}) as session:
        found = torch.autograd.grad((w * v).sin().sum(), [w, v])
    again = session[0].replay(backend="aot_eager")
    assert torch.equal(again["w"], found[0])
    assert torch.equal(again["v"], found[1])


# ------------------------------------------------------------------------------------------------ hooks and Functions


def test_hooks_run_or_are_left_out():
    w, after = torch.ones(3, requires_grad=True), []
    w.register_post_accumulate_grad_hook(after.append)
    with cabw_viz.capture({"w": w}) as session:
        y = w * 2
        y.register_hook(lambda grad: grad * 3)
        y.sum().backward()
    after.clear()
    assert session[0].replay(backend="aot_eager")["w"].tolist() == [6.0] * 3
    assert session[0].replay(backend="aot_eager", hooks="drop")["w"].tolist() == [2.0] * 3
    assert after == []


def test_a_custom_function():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad

    w = torch.tensor([1.0, 2.0], requires_grad=True)
    capture = capture_of({"w": w}, lambda: Cube.apply(w).sum())
    assert capture.replay(backend="aot_eager")["w"].tolist() == [3.0, 12.0]


# ----------------------------------------------------------------------------------------------------------- refusals


def test_an_absent_backend_lists_what_is_there():
    _, capture = net_and_capture()
    with pytest.raises(CabwError, match=r"no backend 'induktor' here") as error:
        capture.replay(backend="induktor")
    assert "eager, aot_eager" in str(error.value)
    assert "inductor" in str(error.value)


def test_a_backend_that_fails_is_named_with_its_reason():
    _, capture = net_and_capture()

    def broken(graph, example_inputs):
        raise RuntimeError(f"no registers left for {len(example_inputs)} inputs")

    with pytest.raises(CabwError, match=r"backend 'broken' cannot run this graph: .*no registers left"):
        capture.parity(backend=broken)

    def refuses(graph):
        raise NotImplementedError(f"cannot lower {type(graph).__name__}")

    with pytest.raises(CabwError, match=r"backend 'refuses' cannot run this graph: NotImplementedError: cannot lower"):
        capture.replay(backend=refuses)


# --------------------------------------------------------------------------------------------- the user's own Dynamo


def test_the_users_compiled_code_settings_and_counters_stay():
    compiles = []

    def backend(graph, example_inputs):
        compiles.append(graph)
        return graph.forward

    function = torch.compile(lambda x: x.sin() + 1, backend=backend)
    function(torch.ones(3))
    _, capture = net_and_capture()
    counted = {name: dict(counter) for name, counter in counters.items()}
    frames = convert_frame.FRAME_COUNTER
    capture.replay(backend="aot_eager")
    assert {name: dict(counter) for name, counter in counters.items()} == counted
    assert frames == convert_frame.FRAME_COUNTER
    function(torch.ones(3))
    assert len(compiles) == 1  # still there


def test_later_captures_still_have_their_lines():
    """They are left off where the process has compiled anything; a replay of ours does not count."""
    torch._dynamo.reset()
    _, capture = net_and_capture()
    capture.replay(backend="aot_eager")
    _, later = net_and_capture()
    assert any(node.line is not None for node in later.record.autograd_nodes)


def test_settings_that_keep_dynamo_off_do_not_make_it_eager_unnoticed():
    _, capture = net_and_capture()
    calls = []

    def backend(graph, example_inputs):
        calls.append(graph)
        return graph.forward

    def broken(graph, example_inputs):
        raise RuntimeError("broken")

    with torch.compiler.set_stance("force_eager"):
        capture.replay(backend=backend)
    assert calls
    with torch._dynamo.config.patch(suppress_errors=True), pytest.raises(CabwError, match="broken"):
        capture.replay(backend=broken)


def test_nothing_of_a_compiled_replay_stays(recwarn):
    """Dynamo would keep what it compiled of every graph, and the graph."""

    def graphs():
        gc.collect()
        return sum(isinstance(found, torch.fx.GraphModule) for found in gc.get_objects())

    _, capture = net_and_capture()
    capture.replay(backend="aot_eager")
    before = graphs()
    for _ in range(3):
        capture.replay(backend="aot_eager")
    assert graphs() == before
