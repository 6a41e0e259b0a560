"""The first divergence in another dtype, on another device, under a backend; and in the messages of other's tests."""

from __future__ import annotations

import functools
import sys

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import cabw_viz
from cabw_viz.errors import CabwError
from tests.captures import capture_of
from tests.faults import planted
from tests.test_divergence import small

# ------------------------------------------------------------------------------------ other dtypes, devices, backends


def half(dtype=torch.bfloat16):
    """A backward in half precision with a norm, whose kernels round more than once, and sums over many elements."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    width = 48
    net = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.Tanh(), torch.nn.Linear(width, width)
    ).to(dtype)
    x = torch.randn(32, width).to(dtype)
    with cabw_viz.capture(net, lines=False) as session:
        (net(x).float() ** 2).mean().backward()
    return session


def faulty_backend(operator, factor, item=None):
    """`aot_eager`, but for one operator whose result, or one of whose results, is off by a factor."""

    def compiler(graph, inputs):
        nodes = graph.graph.find_nodes(op="call_function", target=operator)
        if item is not None:
            nodes = [user for node in nodes for user in node.users if user.args[1] == item]
        for node in nodes:
            with graph.graph.inserting_after(node):
                wrong = graph.graph.call_function(torch.ops.aten.mul.Tensor, (node, factor))
            node.replace_all_uses_with(wrong, delete_user_cb=lambda user, wrong=wrong: user is not wrong)
        graph.recompile()
        return make_boxed_func(graph.forward)

    def faulty(graph, inputs):
        return aot_autograd(fw_compiler=compiler)(graph, inputs)

    return faulty


def test_one_per_cent_in_bfloat16_is_told_from_the_differences_of_aot_eager():
    session = half()
    sound = session[0].divergence(backend="aot_eager")
    assert sound.ok, sound
    assert "compiled by aot_eager" in repr(sound)
    assert "fused differently" in repr(sound)
    report = session[0].divergence(backend=faulty_backend(torch.ops.aten.tanh_backward.default, 1.01))
    assert report.first is not None, report
    assert report.first.name == "TanhBackward0"
    assert [row.name for row in report.culprits] == ["TanhBackward0"]
    by_tolerance = report.frame.set_index("name")
    assert by_tolerance.loc["TanhBackward0", "max_rel_err_own"] == pytest.approx(0.01, abs=0.008)
    assert by_tolerance.loc["AccumulateGrad 3.weight", "verdict_out"] == "bitwise"


def test_one_per_cent_is_found_where_eager_itself_is_as_far_off():
    """The gradient of a norm's bias is a sum that eager makes in bfloat16; a factor is no rounding all the same."""
    session = half()
    operator = torch.ops.aten.native_layer_norm_backward.default
    report = session[0].divergence(backend=faulty_backend(operator, 1.01, item=2))
    assert [row.name for row in report.culprits] == ["NativeLayerNormBackward0"], report


def test_a_thousandth_in_float32_is_found_under_a_backend():
    session = half(torch.float32)
    report = session[0].divergence(backend=faulty_backend(torch.ops.aten.tanh_backward.default, 1.001))
    assert [row.name for row in report.culprits] == ["TanhBackward0"], report
    assert report.first.own.max_rel_err == pytest.approx(1e-3, rel=0.1)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("captured", [torch.bfloat16, torch.float32])
def test_roundings_of_another_dtype_are_no_divergence(captured, dtype):
    session = half(captured)
    report = session[0].divergence(dtype=dtype)
    assert report.ok, report
    assert f"in torch.{dtype}" in repr(report)
    node = next(row for row in session[0].record.graph_nodes if row.target == "ops.TanhBackward0")
    with planted(node.name, lambda gradient: gradient * 1.2):
        report = session[0].divergence(dtype=dtype)
    assert report.first.name == "TanhBackward0", report


def test_what_cancels_is_noise_and_not_a_fault():
    """The bias before a norm gets a gradient of zero, as far as rounding lets it."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh())
    capture = capture_of(net, lambda: net(torch.randn(64, 8)).square().sum())
    report = capture.divergence(dtype="float64")
    assert report.ok, report
    row = report.frame[report.frame["name"].str.startswith("AddmmBackward0")].iloc[0]
    assert row["verdict_out"] in ("mismatch", "within_tolerance")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_an_accelerator_a_fault_is_told_from_its_kernels(dtype, backend):
    session = half(dtype)
    sound = session[0].divergence(device="auto", backend=backend)
    assert sound.ok, sound
    if backend == "eager":
        node = next(row for row in session[0].record.graph_nodes if row.target == "ops.TanhBackward0")
        with planted(node.name, lambda gradient: gradient * 1.2):
            report = session[0].divergence(device="auto")
    else:
        wrong = faulty_backend(torch.ops.aten.tanh_backward.default, 1.01)
        report = session[0].divergence(device="auto", backend=wrong)
    assert report.first.name == "TanhBackward0", report


def test_an_absent_backend_or_device_lists_what_there_is():
    session = small()
    with pytest.raises(CabwError, match="there is no backend 'nope'"):
        session[0].divergence(backend="nope")
    with pytest.raises(CabwError, match="there is no device"):
        session[0].divergence(device="cuda:97")


# ------------------------------------------------------------------------------------------- in tests of other packages


def test_a_failed_assertion_names_the_first_diverging_node():
    torch.manual_seed(0)
    net, x = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6)), torch.randn(4, 6)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    backend = faulty_backend(torch.ops.aten.tanh_backward.default, 1.01)
    with pytest.raises(AssertionError) as caught:
        cabw_viz.testing.assert_gradient_parity(
            lambda: net(x).square().sum(), net, backends=["compiled_autograd", backend], repeats=2
        )
    lines = str(caught.value).splitlines()
    assert any(line.startswith("  faulty in every call") and ": 0.weight: mismatch" in line for line in lines), lines
    assert lines[-1].startswith(
        "  faulty: First divergence: #6 TanhBackward0 in 1. Its inputs match eager; its output is off by"
    )
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_failed_assertion_names_the_node_that_compiled_autograd_gets_wrong():
    """A custom Function that tells whether the eager engine calls it."""

    class Differs(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g * (1.0 if sys._getframe(1).f_code.co_name == "apply" else 1.5)

    def step():
        return (Differs.apply(w) * 2).sum()

    w = torch.ones(3, requires_grad=True)
    with pytest.raises(AssertionError, match="compiled_autograd: First divergence: #3 DiffersBackward"):
        cabw_viz.testing.assert_gradient_parity(step, {"w": w}, backends=["compiled_autograd"], repeats=1)


def test_where_no_node_can_be_named_nothing_is_said():
    def step(factor=2):
        return (w * factor).sum()

    w = torch.ones(3, requires_grad=True)
    against = {"mine": functools.partial(step, 3)}
    with pytest.raises(AssertionError) as caught:
        cabw_viz.testing.assert_gradient_parity(step, {"w": w}, backends=["eager"], against=against, repeats=1)
    assert "divergence" not in str(caught.value)
