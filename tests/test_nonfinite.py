"""Where NaN and infinity begin: planted in the forward and in the backward, named with module, line and how."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.errors import CabwError
from tests import corpus
from tests.captures import capture_of, data, model, session_of
from tests.nonfinite_faults import FAULTS, MAKERS, PLACES, MakesNan, faulty, nan_hook

QUICK = [("mlp", fault) for fault in FAULTS] + [
    ("lstm", "forward_nan"),
    ("resnet", "bfloat16"),
    ("gpt2", "backward_where"),
]
SLOW = [
    (name, fault)
    for name in ("gpt2", "resnet", "lstm")
    for fault in ("forward_nan", "forward_exp", "backward_root", "float16", "bfloat16", "hook", "sum", "compiled")
    if (name, fault) not in QUICK
]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize(("name", "fault"), CASES)
def test_a_planted_fault_is_named(name, fault):
    torch._dynamo.reset()
    planted = FAULTS[fault]
    subject, loss = faulty(name, planted)
    capture = capture_of(subject, loss, lines=True)
    report = capture.nonfinite()
    first = report.first
    assert not report.ok
    assert first is not None, report
    assert (first.stage, first.name) == (planted.stage, planted.name), report
    assert first.ways == planted.ways, report
    assert first.module == PLACES[name]
    assert first.line is not None
    assert first.line.file.endswith("nonfinite_faults.py"), first.line
    assert capture.results.nonfinite == report.search
    assert first.others == ()


@pytest.mark.parametrize("name", [*(each for each in MAKERS if each != "gpt2"), pytest.param("gpt2")])
def test_a_clean_model_is_not_accused(name):
    subject, loss = faulty(name, None)
    report = capture_of(subject, loss).nonfinite()
    assert report.ok, report
    assert report.origins == report.search.loss == report.search.leaves == report.search.saved == ()
    assert "No NaN or infinity: the loss and" in report.summary


# -- what is there before the forward ------------------------------------------------------------------------------


def test_a_nan_in_the_input_is_the_cause():
    subject, x = model(), data()
    x[1, 2] = math.nan
    report = capture_of(subject, lambda: subject(x).sum()).nonfinite()
    assert report.first is not None
    assert (report.first.stage, report.first.ways, report.first.module) == ("input", ("held",), "0")
    assert report.first.out is not None
    assert (report.first.out.nans, report.first.out.low, report.first.out.high) == (1, 0.0, pytest.approx(11 / 7))
    assert report.summary.startswith("The loss is NaN. Before the forward: input: ")


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "2.weight", "2.bias"])
def test_a_nan_in_a_parameter_is_the_cause(name):
    subject, x = model(), data()
    with torch.no_grad():
        subject.get_parameter(name).view(-1)[0] = math.nan
    report = capture_of(subject, lambda: subject(x).square().sum()).nonfinite()
    assert report.first is not None
    assert (report.first.stage, report.first.name) == ("leaf", name)


def test_a_nan_in_a_parameter_that_learns_nothing_is_the_cause():
    subject, x = model(), data().requires_grad_()
    subject[0].weight.requires_grad_(False)
    with torch.no_grad():
        subject[0].weight[0, 0] = math.nan
    report = capture_of(subject, lambda: subject(x).sum()).nonfinite()
    assert report.first is not None
    assert (report.first.stage, report.first.name) == ("leaf", "0.weight")


def test_what_an_optimizer_makes_of_nan_gradients_is_no_cause():
    """Its step writes NaN to parameters that the forward took as finite numbers."""
    subject, x = model(), data()
    optimizer = torch.optim.SGD(subject.parameters(), lr=0.1)
    with cabw_viz.capture(subject) as session:
        MakesNan.apply(subject(x)).sum().backward()
        optimizer.step()
    assert subject[2].weight.isnan().any()
    report = session[0].nonfinite()
    assert report.first is not None
    assert (report.first.stage, report.first.name) == ("backward", "MakesNanBackward")
    assert any("changed since the backward" in gap for gap in report.search.gaps)


# -- the loss and the first gradient -------------------------------------------------------------------------------


def test_a_loss_that_nothing_saved_explains_is_said_first():
    x = torch.ones(3, requires_grad=True)
    report = capture_of({"x": x}, lambda: (x + math.inf).sum()).nonfinite()
    assert report.summary.startswith("The loss is inf. ")
    assert not report.ok
    assert report.search.leaves == ()


def test_a_nan_in_the_gradient_that_the_call_is_given():
    x = torch.ones(3, requires_grad=True)
    session = session_of({"x": x}, lambda: (x * 2).backward(torch.tensor([1.0, math.nan, 1.0])))
    report = session[0].nonfinite()
    assert report.first is not None
    assert (report.first.stage, report.first.number) == ("root_gradient", 0)
    assert [origin.stage for origin in report.origins] == ["root_gradient"]
    assert "test_nonfinite.py" in report.summary


# -- how it was made -----------------------------------------------------------------------------------------------


def origin_of(run, **leaves):
    report = capture_of(leaves, run).nonfinite()
    assert report.first is not None
    return report.first


def leaf(*numbers, dtype=torch.float32):
    return torch.tensor(numbers, dtype=dtype, requires_grad=True)


def test_a_division_by_zero_is_told_from_an_overflow_by_a_tiny_divisor():
    x, mask = leaf(1.0, 2.0, 3.0), torch.tensor([True, False, True])
    zero, tiny = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([1.0, 1e-39, 1.0])

    def run(divisor):
        return lambda: torch.where(mask, x, 0.0).sum() + torch.where(mask, 0.0, (x * 1e-30) / divisor).sum() * 1e20

    assert origin_of(run(zero), x=x).ways == ("division_by_zero",)
    y = leaf(1.0, 2.0, 3.0)
    assert origin_of(lambda: ((y * 0) / tiny).sum() * 1e20, y=y).ways == ("overflow",)


def test_zero_over_zero_in_what_is_not_selected():
    x = leaf(1.0, 2.0)
    first = origin_of(lambda: torch.where(x > 0, x, x / torch.zeros(2)).sum(), x=x)
    assert (first.name, first.ways) == ("DivBackward0", ("zero_times_infinity",))


def test_infinities_of_both_signs_are_summed():
    class Infinite(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, sign):
            ctx.sign = sign
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.sign * math.inf, None

    x = leaf(1.0, 2.0)

    def run():
        y = x * 1.0
        return (Infinite.apply(y, 1) + Infinite.apply(y, -1)).sum()

    report = capture_of({"x": x}, run).nonfinite()
    total = report.origins[-1]
    assert (total.kind, total.ways, total.of_infinity) == ("gradient_sum", ("infinity_minus_infinity",), True)
    assert {origin.name for origin in report.origins[:-1]} == {"InfiniteBackward"}


def test_an_infinite_gradient_meets_a_zero():
    x = leaf(0.0, 1.0)
    report = capture_of({"x": x}, lambda: (x * torch.tensor([0.0, 1.0])).sqrt().sum()).nonfinite()
    assert [(origin.name, origin.ways) for origin in report.origins] == [
        ("SqrtBackward0", ("root_at_zero",)),
        ("MulBackward0", ("zero_times_infinity",)),
    ]


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float16, 65504.0), (torch.bfloat16, 3.39e38)])
def test_an_overflow_of_a_product_in_half_precision(dtype, largest):
    """In the forward: finite factors of a linear layer, whose result is first saved by the activation behind it."""
    size = math.sqrt(largest)
    layer = nn.Linear(4, 3, bias=False).to(dtype)
    with torch.no_grad():
        layer.weight.fill_(size)
    x = torch.full((2, 4), size, dtype=dtype)
    first = origin_of(lambda: layer(x).relu().sum(), **dict(layer.named_parameters()))
    assert (first.stage, first.name, first.ways) == ("forward", "MmBackward0", ("overflow",))
    assert [values.largest for values in first.into] == [pytest.approx(size, rel=1e-2)] * 2


def test_what_is_not_known_is_said_to_be_so():
    """`cumprod` stands in no table: nothing is said of how."""
    x = leaf(0.0, 1.0)
    first = origin_of(lambda: torch.linalg.eigh(torch.diag(x * 0) + 0 * x)[1].sum(), x=x)
    assert first.ways == ()
    assert (
        "not known"
        in capture_of({"x": x}, lambda: torch.linalg.eigh(torch.diag(x * 0) + 0 * x)[1].sum()).nonfinite().summary
    )


# -- attention -----------------------------------------------------------------------------------------------------


def attention(x, mask):
    scores = (x @ x.mT).masked_fill(mask, -math.inf)
    return (scores / 2.0).softmax(-1) @ x


def test_the_infinities_of_a_mask_are_no_fault():
    x = leaf(*torch.randn(4).tolist())

    def run():
        mask = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
        temperature = x.abs().sum() + 1
        scores = torch.outer(x, x).masked_fill(mask, -math.inf)
        bias = torch.zeros(4, 4).masked_fill(mask, -math.inf)
        return ((scores / temperature + bias).log_softmax(-1).exp() @ x).sum()

    report = capture_of({"x": x}, run).nonfinite()
    assert report.search.saved
    assert all(each.is_mask for each in report.search.saved)
    assert (report.ok, report.origins) == (True, ()) or report.search.leaves


def test_a_row_that_a_mask_leaves_nothing_of():
    x = torch.randn(3, 4, requires_grad=True)
    mask = torch.zeros(3, 3, dtype=torch.bool)
    mask[1] = True
    first = origin_of(lambda: attention(x, mask).sum(), x=x)
    assert (first.stage, first.name, first.ways) == ("forward", "SoftmaxBackward0", ("masked_row",))


def test_an_overflow_behind_a_mask_is_not_charged_to_it():
    x = torch.randn(3, 4, requires_grad=True)
    mask = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)
    first = origin_of(lambda: (attention(x, mask) * 1e4).abs().exp().sum(), x=x)
    assert (first.name, first.ways) == ("ExpBackward0", ("overflow",))


# -- what was kept -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["backward_root", "hook", "sum", "function", "float16", "forward_exp"])
def test_fingerprints_name_the_step_too(fault):
    planted = FAULTS[fault]
    torch.manual_seed(0)
    subject = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    subject[2].register_forward_hook(lambda _module, _args, out: planted.change(out))
    x = torch.randn(32, 6)
    report = capture_of(subject, lambda: subject(x).square().mean(), max_bytes=0).nonfinite()
    assert report.first is not None
    assert (report.first.stage, report.first.name, report.first.module) == (planted.stage, planted.name, "2")
    assert planted.ways[0] in report.first.ways
    assert any("fingerprints" in gap for gap in report.search.gaps)


@pytest.mark.parametrize("gradients", ["leaves", "none"])
def test_without_the_gradients_of_nodes_it_says_what_is_needed(gradients):
    subject, x = model(), data()
    report = capture_of(subject, lambda: MakesNan.apply(subject(x)).sum(), gradients=gradients).nonfinite()
    assert not report.ok
    assert report.first is None
    assert any('capture(gradients="nodes")' in gap for gap in report.search.gaps)
    assert bool(report.search.leaves) == (gradients == "leaves")


@pytest.mark.parametrize("gradients", ["nodes", "leaves", "none"])
def test_the_forward_is_searched_whatever_gradients_are_kept(gradients):
    subject, loss = faulty("mlp", FAULTS["forward_exp"])
    report = capture_of(subject, loss, gradients=gradients).nonfinite()
    assert report.first is not None
    assert report.first.name == "ExpBackward0"


def test_a_closed_session_is_refused():
    subject, x = model(), data()
    session = session_of(subject, lambda: subject(x).sum().backward())
    session.close()
    with pytest.raises(CabwError, match="closed"):
        session[0].nonfinite()


def test_it_changes_nothing_and_runs_nothing():
    subject, x = model(), data()
    calls = []

    def run():
        y = subject(x)
        y.register_hook(lambda g: calls.append(1) or nan_hook(g))
        y.sum().backward()

    session = session_of(subject, run)
    state = torch.get_rng_state()
    before = {name: parameter.grad.clone() for name, parameter in subject.named_parameters()}
    session[0].nonfinite()
    assert len(calls) == 1
    assert torch.equal(state, torch.get_rng_state())
    for name, parameter in subject.named_parameters():
        assert torch.equal(before[name].view(torch.int32), parameter.grad.view(torch.int32))


# -- surfaces ------------------------------------------------------------------------------------------------------


def test_the_report_as_table_text_and_html():
    subject, loss = faulty("mlp", FAULTS["forward_exp"])
    report = capture_of(subject, loss, lines=True).nonfinite()
    row = report.frame.iloc[0]
    assert (row["stage"], row["module"], row["how"], row["dtype"]) == ("forward", "2", "overflow", "torch.float32")
    assert repr(report).splitlines()[1].startswith("forward")
    assert "ExpBackward0" in report._repr_html_()
    assert row["infinities"] > 0
    assert f">{row['infinities']:,}</td>" in report._repr_html_()
    clean = capture_of(*faulty("mlp", None)).nonfinite()
    assert clean.frame.empty
    assert list(clean.frame.columns) == list(report.frame.columns)
    assert "✓ No NaN or infinity" in clean._repr_html_()


def test_the_inspector_has_a_finding(tmp_path):
    from cabw_viz.views.inspector import findings

    subject, loss = faulty("mlp", FAULTS["forward_exp"])
    capture = capture_of(subject, loss)
    assert findings.pack_results(capture.record, capture.results)["nonfinite"] == b""
    report = capture.nonfinite()
    packed = findings.pack_results(capture.record, capture.results)["nonfinite"]
    assert report.summary.encode() in packed
    assert "NaN or infinity" in capture.to_html(tmp_path / "page.html").read_text("utf-8")


def test_divergence_points_to_it_where_both_sides_have_the_same_nan():
    subject, loss = faulty("mlp", FAULTS["forward_exp"])
    report = capture_of(subject, loss).divergence()
    assert "see cap.nonfinite()" in report.summary
    assert ">✓ No divergence" not in report._repr_html_()
    assert ">! No divergence" in report._repr_html_()
    clean = capture_of(*faulty("mlp", None)).divergence()
    assert "cap.nonfinite()" not in clean.summary
    assert ">✓ No divergence" in clean._repr_html_()


def test_what_anomaly_mode_raises_leaves_the_node_and_its_module():
    subject, loss = faulty("mlp", FAULTS["backward_where"])

    def run():
        with pytest.raises(RuntimeError, match="returned nan"), torch.autograd.detect_anomaly(check_nan=True):
            loss().backward()

    session = session_of(subject, run)
    first = session[0].nonfinite().first
    assert first is not None
    assert (first.name, first.module) == ("SqrtBackward0", "2")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in corpus.NAMES if name not in corpus.DISTRIBUTED])
def test_no_workload_is_accused(name):
    """All are finite but one, which makes a NaN and raises in anomaly mode."""
    sessions = []

    def around(params):
        sessions.append(cabw_viz.capture(params))
        return sessions[-1]

    with contextlib.suppress(RuntimeError):
        corpus.observe(name, around=around)
    for capture in (capture for session in sessions for capture in session):
        search = capture.nonfinite().search
        assert bool(search.origins) == (name == "kind_anomaly_nan"), search
        assert search.loss == ()


# -- without a graph -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_without_a_graph(fault):
    torch._dynamo.reset()
    planted = FAULTS[fault]
    subject, loss = faulty("mlp", planted)
    first = capture_of(subject, loss, lines=True, trace=False).nonfinite().first
    assert first is not None
    assert (first.stage, first.name, first.module) == (planted.stage, planted.name, "2")
    assert planted.ways[0] in first.ways


@pytest.mark.parametrize("name", ["0.weight", "2.bias"])
def test_a_parameter_is_named_without_a_graph(name):
    subject, x = model(), data()
    with torch.no_grad():
        subject.get_parameter(name).view(-1)[0] = math.nan
    first = capture_of(subject, lambda: subject(x).square().sum(), trace=False).nonfinite().first
    assert first is not None
    assert (first.stage, first.name) == ("leaf", name)


def test_a_clean_model_is_not_accused_without_a_graph():
    report = capture_of(*faulty("mlp", None), trace=False).nonfinite()
    assert report.ok
    assert "No NaN or infinity: the loss and" in report.summary
