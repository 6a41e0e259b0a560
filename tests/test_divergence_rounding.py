"""What divergence calls rounding, within which bound, and what does not come again."""

from __future__ import annotations

import contextlib
import random

import pytest
import torch

from cabw_viz.errors import CabwError
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


# ------------------------------------------------------------------------------------------ a state of the user's own


class Counted(torch.autograd.Function):
    """Multiplies by 2; its backward by a factor that depends on how often it has run."""

    runs = 0
    factor = staticmethod(lambda _: 1.0)

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        Counted.runs += 1
        return gradient * 2 * Counted.factor(Counted.runs)


def in_a_function(x, factor):
    Counted.runs, Counted.factor = 0, staticmethod(factor)
    return Counted.apply(x)


def in_a_hook(x, factor):
    runs = []

    def hook(gradient):
        runs.append(None)
        return gradient * factor(len(runs))

    out = x * 2
    out.register_hook(hook)
    return out


def counted_capture(place, factor):
    torch.manual_seed(0)
    first, last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
    net = torch.nn.Sequential(first, last)
    return capture_of(net, lambda: last(place(first(torch.randn(5, 4)).tanh(), factor).tanh()).sum())


STATES = {
    "every second run": lambda run: 1.3 if run % 2 == 0 else 1.0,
    "every other run, and the user's": lambda run: 1.3 if run % 2 else 1.0,
    "the first replay alone": lambda run: 1.3 if run == 2 else 1.0,
    "outside of torch's generators": lambda _: 1 + random.random(),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("place", [in_a_function, in_a_hook])
def test_a_result_that_comes_and_goes_is_not_reproducible_and_no_rounding(place, state):
    random.seed(0)
    report = counted_capture(place, STATES[state]).divergence()
    assert not report.ok, report
    assert [row.own.verdict for row in report.culprits] == ["not_reproducible"], report
    assert ("CountedBackward" if place is in_a_function else "hook") in report.first.name
    assert "state of its own" in report.summary


def test_a_state_that_alternates_shows_behind_rounding_too():
    report = counted_capture(in_a_function, STATES["every second run"]).divergence(dtype="float64")
    assert [row.own.verdict for row in report.culprits] == ["not_reproducible"], report


@pytest.mark.parametrize("factor", [lambda _: 1.0, lambda _: float(torch.rand(()))], ids=["none", "torch's"])
@pytest.mark.parametrize("place", [in_a_function, in_a_hook])
def test_no_state_and_torchs_random_numbers_are_no_fault(place, factor):
    report = counted_capture(place, factor).divergence()
    assert report.ok, report
    assert {row.out.verdict for row in report.divergence.rows if row.out is not None} == {"bitwise"}


def test_what_was_wrong_in_the_users_run_alone_is_said_to_be_possible():
    report = counted_capture(in_a_function, lambda run: 1.3 if run == 1 else 1.0).divergence()
    assert [row.own.verdict for row in report.culprits] == ["mismatch"]
    assert "it may be your own run that had another result" in report.summary
    assert any("2 further runs of the whole graph gave the same gradients" in note for note in report.divergence.notes)


def test_rounding_that_drifts_apart_comes_again_and_is_no_fault():
    torch.manual_seed(0)
    w = torch.randn(64, 64, requires_grad=True)
    x = torch.randn(64, 64)

    def loss():
        out = x
        for _ in range(12):
            out = torch.tanh(out @ w)
        return out.sum()

    capture = capture_of({"w": w}, loss)
    report = capture.divergence(dtype="bfloat16")
    assert report.ok, report
    assert "drift apart by rounding" in report.summary
    assert any("what differs comes again" in note for note in report.divergence.notes)


@pytest.mark.parametrize("repeats", [-1, True, 1.5])
def test_repeats_must_be_a_count(chain, repeats):
    with pytest.raises(CabwError, match="repeats"):
        chain.divergence(repeats=repeats)
