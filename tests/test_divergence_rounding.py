"""What divergence calls rounding, within which bound, and what does not come again."""

from __future__ import annotations

import contextlib

import pytest
import torch

from cabw_viz.numerics.distance import Distance
from cabw_viz.replay.divergence.step_rounding import StepNoise, StepOutputs, smooth_noise
from cabw_viz.replay.interpreter import GradientCollector
from tests.captures import capture_of, capture_of_run, faulty_once, leaf
from tests.faults import dropped, planted, scaled, with_a_nan

# ------------------------------------------------------------------------------------------- what does not come again


@contextlib.contextmanager
def planted_in_one_run(node, fault, run=1):
    """A fault in the result of one graph node, in one of the runs of the graph and in no other."""
    original, runs = GradientCollector.call_function, []

    def call_function(self, target, args, kwargs):
        result = original(self, target, args, kwargs)
        row = self.rows[self.current.name]
        if row.name != node:
            return result
        runs.append(row.name)
        if len(runs) != run:
            return result
        if isinstance(result, torch.Tensor):
            result = fault(result)
        else:
            result = [None if each is None else fault(each) for each in result]
        if row.kind == "accumulate_grad":
            self.collected[row.autograd_node] = result
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientCollector, "call_function", call_function)
        yield runs


@pytest.fixture(scope="module")
def chain():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(8, 8), torch.nn.Tanh())]
    net = torch.nn.Sequential(*layers)
    return capture_of(net, lambda: net(torch.randn(4, 8)).square().sum(), lines=False)


@pytest.mark.parametrize("dtype", [None, "float64", "bfloat16"])
@pytest.mark.parametrize("fault", [lambda g: g * 1.05, dropped, with_a_nan], ids=["factor", "dropped", "nan"])
@pytest.mark.parametrize("place", ["ops.TanhBackward0", "ops.AddmmBackward0"])
def test_a_fault_of_the_whole_run_that_does_not_come_again_is_named(chain, place, fault, dtype):
    nodes = [row for row in chain.record.graph_nodes if row.target == place]
    with planted_in_one_run(nodes[2].name, fault) as runs:
        report = chain.divergence(dtype=dtype)
    assert len(runs) > 1
    assert not report.ok
    assert (report.first.number, report.first.name) == (nodes[2].autograd_node, place.removeprefix("ops."))
    assert [row.own.verdict for row in report.culprits] == ["not_reproducible"], report
    assert "not reproducible" in report.summary
    assert "drift" not in report.summary


def test_a_fault_of_a_later_run_is_named_too(chain):
    node = next(row for row in chain.record.graph_nodes if row.target == "ops.TanhBackward0")
    with planted(node.name, lambda g: g * (1 + 1e-7)), planted_in_one_run(node.name, scaled, run=2):
        report = chain.divergence()
    assert report.first.number == node.autograd_node, report


def test_under_a_backend_a_fault_of_the_users_own_run_is_named():
    w = leaf(4)
    capture = capture_of({"w": w}, lambda: faulty_once().apply(w * 2).sum(), lines=False)
    report = capture.divergence(backend="eager")
    assert report.first.name == "FaultyOnceBackward"


def test_what_drifts_by_rounding_is_said_to(chain):
    for options in ({"dtype": "float64"}, {"dtype": "bfloat16"}, {"backend": "aot_eager"}):
        report = chain.divergence(**options)
        assert report.ok, report
        drifts = not set(report.frame["verdict_out"].dropna()) <= {"bitwise", "within_tolerance", "within_noise"}
        assert ("drift apart by rounding" in report.summary) == drifts


class Uninitialised(torch.autograd.Function):
    """A copy of its input; the backward adds other numbers in each run, as memory that nobody has written to has."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        Uninitialised.scale *= 7.5
        return g * Uninitialised.scale

    scale = 1e3


def test_garbage_on_both_sides_is_no_noise():
    w = leaf(40)
    capture = capture_of({"w": w}, lambda: Uninitialised.apply(w * 2).sum(), lines=False)
    report = capture.divergence()
    assert [row.name for row in report.culprits] == ["UninitialisedBackward"], report
    assert report.first.own.verdict == "not_reproducible"


# ------------------------------------------------------------------------------------------------- bounds of rounding


def badly_rounded():
    """The gradient of a logcumsumexp of large numbers, of which eager itself is 7e-4 off float64."""
    torch.manual_seed(0)
    x = torch.randn(5, 5, 5)
    x[0] = 10000.0
    x.requires_grad_()
    gradient = torch.randn(5, 5, 5)
    return capture_of_run({"x": x}, lambda: torch.autograd.backward([x.logcumsumexp(0)], [gradient]))


@pytest.mark.parametrize("factor", [1.001, 1.02])
def test_a_common_factor_is_charged_where_eager_itself_is_as_far_off(factor):
    capture = badly_rounded()
    (node,) = (row for row in capture.record.graph_nodes if row.target == "ops.LogcumsumexpBackward0")
    assert capture.divergence().ok
    assert capture.divergence(dtype="float64").ok  # though eager is 7e-4 off
    with planted(node.name, lambda g: g * factor):
        report = capture.divergence()
    assert [row.name for row in report.culprits] == ["LogcumsumexpBackward0"], report


def largest_element_wrong(gradient):
    wrong = gradient.clone(memory_format=torch.contiguous_format)
    wrong.view(-1)[int(gradient.abs().argmax())] *= 1.1
    return wrong


@pytest.mark.parametrize("fault", [largest_element_wrong, lambda g: g * 1.02], ids=["one element", "factor"])
@pytest.mark.parametrize("captured", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float64"])
def test_one_element_and_a_factor_in_half_precision(captured, dtype, fault):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(48, 48), torch.nn.Tanh(), torch.nn.Linear(48, 48)).to(captured)
    x = torch.randn(32, 48).to(captured)
    capture = capture_of(net, lambda: net(x).float().square().mean(), lines=False)
    assert capture.divergence(dtype=dtype).ok
    node = next(row for row in capture.record.graph_nodes if row.target == "ops.TanhBackward0")
    with planted(node.name, fault):
        report = capture.divergence(dtype=dtype)
    assert [row.name for row in report.culprits] == ["TanhBackward0"], report


@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e-42, "float64"), (1e-2, "float16"), (1e-4, "float16"), (1e-5, "float16")]
)
def test_the_smallest_step_of_a_dtype_is_no_fault(scale, dtype):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    x = torch.randn(64, 16)
    capture = capture_of(net, lambda: net(x).square().mean() * scale, lines=False)
    report = capture.divergence(dtype=dtype)
    assert report.ok, report
    if scale == 1e-2:  # below, a gradient has too few digits for a factor of two to show in each
        node = next(row for row in capture.record.graph_nodes if row.target == "ops.GeluBackward0")
        with planted(node.name, lambda g: g * 2):
            assert [row.name for row in capture.divergence(dtype=dtype).culprits] == ["GeluBackward0"]


def test_a_choice_that_a_change_turns_over_is_no_noise():
    jump = StepNoise(Distance(0.5, 0.5, 0.5))
    assert smooth_noise(jump, jump, 16) == StepNoise()
    assert smooth_noise(jump, StepNoise(), 16) == StepNoise()
    small = StepNoise(Distance(0.5 / 16, 0.5 / 16, 0.5 / 16))
    assert smooth_noise(jump, small, 16) == jump


@pytest.mark.parametrize("near", [1e-2, 1.0, 1e27])
def test_the_other_side_excuses_only_within_a_bound(near):
    torch.manual_seed(0)
    exact = torch.randn(100, dtype=torch.float64)
    sides = [(exact + torch.randn(100, dtype=torch.float64) * near).float() for _ in range(2)]
    outputs = StepOutputs.of(*sides, exact, independent=False)
    assert not outputs.is_as_good_as_the_other()
    assert not outputs.is_explained_by(StepNoise())
    assert outputs.is_explained_by(StepNoise(Distance(near, near, near)))


# ------------------------------------------------------------------------------------------- no run in double precision


class SingleOnly(torch.autograd.Function):
    """A sum along rows; its backward knows no double precision, as grouped_mm's."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if g.dtype is torch.float64:
            raise RuntimeError("no kernel for Double")
        return g @ w.t(), x.t() @ g


def without_float64():
    torch.manual_seed(0)
    w, x, v = leaf(32, 48), leaf(64, 32), leaf(64, 48)
    return capture_of(
        {"w": w, "v": v, "x": x}, lambda: (SingleOnly.apply(x, w).tanh() * v).square().mean(), lines=False
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_step_without_double_precision_is_judged_on_its_own_kernels(dtype):
    capture = without_float64()
    report = capture.divergence(dtype=dtype)
    assert report.ok, report
    assert any("no kernel for Double" in note for note in report.divergence.notes)
    node = next(
        row
        for row in capture.record.graph_nodes
        if row.autograd_node
        and row.kind == "backward_call"
        and capture.record.by_number[row.autograd_node].name == "SingleOnlyBackward"
    )
    with planted(node.name, lambda g: g * 1.2 if g.dtype is torch.bfloat16 or g.dtype is torch.float16 else g):
        assert "SingleOnlyBackward" in [row.name for row in capture.divergence(dtype=dtype).culprits]


# ---------------------------------------------------------------------------------------------- compiled, and fused


def test_a_rounding_that_a_compiler_leaves_out_is_no_fault():
    """A step in bfloat16 and the conversion to float32 after it in one kernel: nothing is rounded in between."""

    torch.manual_seed(0)
    torch._dynamo.reset()
    w, v = leaf(64, 64), leaf(64, 64)
    capture = capture_of(
        {"w": w, "v": v}, lambda: (w.bfloat16() * v.bfloat16()).sin().float().square().sum(), lines=False
    )
    report = capture.divergence(backend="inductor")
    assert report.ok, report


# ------------------------------------------------------------------------------------ not finite in one dtype alone


def test_an_infinity_that_the_wider_dtype_does_not_have_charges_nobody():
    """The gradient of a quotient by 1e-20 is 1e-10 * (1 / 1e-20 / 1e-20): infinite in float32, 1e30 in float64."""
    y = torch.full((3,), 1e-20).requires_grad_()
    gradient = torch.full((3,), 1e-10)
    capture = capture_of_run({"y": y}, lambda: torch.autograd.backward([torch.ones(3) / y], [gradient]))
    assert bool(torch.isinf(y.grad).all())
    report = capture.divergence(dtype="float64")
    assert report.ok, report
    assert [each.side for each in report.nonfinite] == ["reference"]
    assert "First NaN or infinity in the reference: #" in report.summary
    node = next(row for row in capture.record.graph_nodes if row.target == "ops.DivBackward0")
    with planted(node.name, with_a_nan):
        report = capture.divergence(dtype="float64")
    assert report.first.name == "DivBackward0", report


def test_errors_of_our_comparison_are_not_pytorchs(monkeypatch, chain):
    def broken(*_):
        raise ValueError("no such kernel")

    monkeypatch.setattr("cabw_viz.replay.divergence.node_comparison.same_bits", broken)
    report = chain.divergence()
    assert not report.ok
    assert report.first is None
    assert "could not be judged" in report.summary
    assert "no such kernel" in report.frame["note"].iloc[0]
