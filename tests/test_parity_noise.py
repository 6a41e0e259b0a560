"""Whether a difference is noise or a fault: errors against float64, and what rounding explains."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cabw_viz.errors import CabwError
from cabw_viz.numerics import measures
from cabw_viz.numerics.choices import UNWRITTEN_VALUE, HeldChoices, RecordedChoices, differing_choices
from cabw_viz.numerics.constants import FULL_LIMITS, HALF_LIMITS
from cabw_viz.numerics.distance import Distance, distance, relative_distance
from cabw_viz.numerics.noise import proportional_noise
from cabw_viz.numerics.perturb import LastBitRounding, PerturbedResults, SteppedRounding, UniformRounding
from cabw_viz.numerics.precision import Precision, precision_of_sides
from cabw_viz.replay import interpreter
from cabw_viz.replay.parity import graph_runs, noise_runs
from cabw_viz.replay.replay import Replay
from tests.captures import capture_of, faulty_once
from tests.faults import planted
from tests.test_parity import faulty, verdicts


def convolutions(dtype=torch.float32):
    """Biases before a batch norm: their gradients should be zero, and consist of rounding."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(8 * 6 * 6, 5)).to(dtype)
    return model, torch.randn(8, 3, 10, 10, dtype=dtype)


def transformer(dtype):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(layer, nn.Linear(64, 32)).to(dtype), torch.randn(8, 16, 64, dtype=dtype)


def capture_of_weighted(built):
    """The capture of a sum in which every output has another weight."""
    model, x = built

    def loss():
        out = model(x)
        return (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype)).sum()

    return capture_of(model, loss)


# --------------------------------------------------------------------------------------------------- noise or fault


def test_a_gradient_that_should_be_zero_is_noise_and_the_others_are_held_to_their_precision():
    report = capture_of_weighted(convolutions()).parity(dtype="float64")
    found = verdicts(report)
    assert report.ok
    assert {name for name, verdict in found.items() if verdict == "within_noise"} == {"0.bias", "3.bias"}
    frame = report.frame.set_index("parameter")
    assert (frame.loc[["0.bias", "3.bias"], "reference_err"] > 1).all()  # nothing but rounding
    assert (frame.drop(["0.bias", "3.bias"])["reference_err"] < 1e-5).all()
    assert (frame["candidate_err"] == 0).all()  # it is the float64 run


@pytest.mark.parametrize("factor", [1 + 1e-3, 1 - 1e-3, 1.5, -1.0])
def test_a_factor_is_a_fault(factor):
    capture = capture_of_weighted(convolutions())
    with faulty("ConvolutionBackward0", lambda results: [None if r is None else r * factor for r in results]):
        report = capture.parity()
    assert verdicts(report)["3.weight"] == "mismatch"
    assert verdicts(report)["6.weight"] == "bitwise"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda g: g.clone().fill_diagonal_(0), id="dropped"),
        pytest.param(lambda g: g.t().contiguous() if g.shape[0] == g.shape[1] else g, id="transposed"),
        pytest.param(lambda g: g.roll(1, 0), id="shifted"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_faults(change, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)).to(dtype)
    capture = capture_of_weighted((model, torch.randn(32, 16, dtype=dtype)))
    with faulty(
        "AddmmBackward0", lambda results: [change(r) if r is not None and r.dim() == 2 else r for r in results]
    ):
        report = capture.parity()
    assert verdicts(report)["2.weight"] == "mismatch"


@pytest.mark.parametrize("build", [transformer, convolutions])
def test_one_percent_in_bfloat16_is_told_from_rounding(build):
    """torch.testing's tolerance of bfloat16 is 1.6%: a factor of 1.01 would pass by it."""
    capture = capture_of_weighted(build(torch.bfloat16))
    clean = capture.parity(dtype="float32", exact=True)
    assert clean.ok, clean
    assert set(clean.frame["verdict"]) != {"bitwise"}
    node = "AddmmBackward0" if build is transformer else "ConvolutionBackward0"
    with faulty(node, lambda results: [None if r is None else r * 1.01 for r in results]):
        wrong = capture.parity()
    rows = wrong.frame[wrong.frame["verdict"] == "mismatch"]
    assert len(rows)
    assert rows["note"].str.contains("as a whole: more than rounding gives").any()


def test_a_coarser_dtype_is_judged_by_its_own_rounding():
    report = capture_of_weighted(transformer(torch.float32)).parity(dtype="bfloat16")
    assert report.ok, report
    assert report.comparison.tolerances[0][0] == "torch.bfloat16"


def test_what_rounding_the_saved_values_does_is_no_fault(monkeypatch):
    """A saved factor of 1.0038 becomes 1 in bfloat16: the whole gradient is smaller, by more than results round."""
    torch.manual_seed(0)
    w, factor = torch.randn(20000, requires_grad=True), torch.full((20000,), 1.0038)
    capture = capture_of({"w": w}, lambda: (w * factor).sin().sum())
    report = capture.parity(dtype="bfloat16")
    assert report.ok, report
    monkeypatch.setattr(noise_runs.NoiseRuns, "_measure_rounding_to", lambda self, dtype: None)
    assert not capture.parity(dtype="bfloat16").ok


def test_something_in_place_of_nothing_is_a_fault():
    """A gradient of zero, to the last bit: no rounding makes 1e-9 of it."""

    w = torch.randn(8, requires_grad=True)
    capture = capture_of({"w": w}, lambda: faulty_once(lambda g: g * 0 + 1e-9, lambda g: g * 0).apply(w).sin().sum())
    frame = capture.parity().frame
    assert frame.loc[0, "verdict"] == "mismatch"
    assert frame.loc[0, "reference_err"] == math.inf
    assert frame.loc[0, "candidate_err"] == 0


def test_a_fault_of_the_reference_is_a_mismatch_too():
    """A custom Function that was wrong in the user's run alone: the candidate is near float64, the reference is not."""

    torch.manual_seed(0)
    w = torch.randn(64, requires_grad=True)
    capture = capture_of({"w": w}, lambda: faulty_once().apply(w).sin().sum())
    frame = capture.parity().frame
    assert frame.loc[0, "verdict"] == "mismatch"
    assert frame.loc[0, "candidate_err"] < 1e-6
    assert frame.loc[0, "reference_err"] == pytest.approx(1e-3, rel=1e-2)


# ------------------------------------------------------------------------------------- what rounding may excuse


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)), torch.randn(64, 16)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [("float64", 1e-42), ("float64", 1e-43), ("float16", 1e-2), ("float16", 1e-4), ("float16", 1e-5)],
)
def test_numbers_below_the_smallest_normal_one_are_rounded_by_a_step(dtype, scale):
    """Float32 below 1e-38, float16 below 6e-5: what the gradient loses is rounding, up to all of it."""
    model, x = normed()
    capture = capture_of(model, lambda: model(x).square().mean() * scale)
    report = capture.parity(dtype=dtype)
    assert report.ok, report
    assert "within_noise" in set(report.frame["verdict"])


def test_a_fault_in_numbers_below_the_smallest_normal_one_is_found_where_they_have_digits_left():
    model, x = normed()
    capture = capture_of(model, lambda: model(x).square().mean() * 1e-4)
    with faulty("GeluBackward0", lambda results: [r * 1.5 for r in results]):
        assert not capture.parity(dtype="float16").ok
        assert not capture.parity().ok


def test_what_an_operator_rounds_inside_is_noise():
    """`ctc_loss` takes the exponential of differences of some hundred: eager itself is off by 1e-5 in float32."""
    torch.manual_seed(0)
    x, targets = torch.randn(50, 3, 15, requires_grad=True), torch.randint(1, 15, (3, 30))
    lengths = torch.full((3,), 50), torch.full((3,), 30)

    def loss(logits):
        return nn.functional.ctc_loss(logits.log_softmax(2), targets, *lengths)

    capture = capture_of({"x": x}, lambda: loss(x))
    wide = x.detach().double().requires_grad_()
    loss(wide).backward()
    own_error = ((x.grad - wide.grad).abs().max() / wide.grad.abs().max()).item()
    assert own_error > 1e-5
    assert verdicts(capture.parity(dtype="float64")) == {"x": "within_noise"}
    with faulty("CtcLossBackward0", lambda results: [results[0] * 1.001, *results[1:]]):
        assert verdicts(capture.parity(dtype="float64")) == {"x": "mismatch"}


def test_what_cancels_along_a_path_is_noise():
    """Each layer adds a part that the next takes away again: each is right to 1e-7, the sum to 1e-5."""

    def loss(value):
        for _ in range(24):
            value = (value + 1000.0 * value.tanh()) - 1000.0 * value.tanh()
        return value.sin().sum()

    torch.manual_seed(0)
    x = torch.randn(64, requires_grad=True)
    report = capture_of({"x": x}, lambda: loss(x)).parity(dtype="float64")
    assert report.ok, report
    assert report.frame.loc[0, "reference_err"] > 1e-6


class Experts(nn.Module):
    """A mixture of experts of which a router chooses one; all are as good at first, so that rounding chooses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.router, self.experts = nn.Linear(8, 4, bias=False), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        nn.init.zeros_(self.router.weight)

    def forward(self, x):
        weights, index = self.router(x).softmax(-1).topk(1, -1)
        results = torch.stack([expert(x) for expert in self.experts], -2)
        return torch.gather(results, -2, index.unsqueeze(-1).expand(*index.shape, 8)).squeeze(-2) * weights


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_fault_is_found_where_rounding_could_turn_over_a_choice(checkpointed):
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(6, 8)
    run = (lambda: checkpoint(model, x, use_reentrant=False)) if checkpointed else (lambda: model(x))
    capture = capture_of(model, lambda: run().square().sum())
    assert capture.parity().ok
    assert capture.parity(dtype="float64").ok
    with planted("gather_backward0", lambda g: g * 1.5):
        report = capture.parity()
    assert not report.ok
    assert set(report.frame["verdict"]) & {"mismatch", "not_judged"}


def masked_by_its_maximum(x):
    """A maximum whose gradient goes to the elements that equal it, computed anew in the backward."""

    class Largest(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            largest = (x * 1.1).amax(-1, keepdim=True)
            ctx.save_for_backward(x, largest)
            return largest

        @staticmethod
        def backward(ctx, g):
            x, largest = ctx.saved_tensors
            mask = x * 1.1 == largest
            return g * mask / mask.sum(-1, keepdim=True)

    return Largest.apply(x)


def test_a_saved_maximum_that_the_dtype_would_not_have_saved_gives_no_verdict():
    """In float64 the product is another, and equals the saved maximum nowhere: 0 / 0 there, a gradient in float32."""
    torch.manual_seed(0)
    x, other = torch.randn(5, 7, requires_grad=True), torch.randn(5, requires_grad=True)
    capture = capture_of(
        {"x": x, "other": other}, lambda: (masked_by_its_maximum(x)[:, 0] * other).sum() + other.exp().sum()
    )
    report = capture.parity(dtype="float64")
    found = verdicts(report)
    assert found["x"] == "not_judged", report
    assert found["other"] in {"within_tolerance", "bitwise"}
    note = report.frame.set_index("parameter").loc["x", "note"]
    assert note.startswith("eq at LargestBackward")
    assert "a forward in torch.float64 would have saved another" in note
    with faulty("ExpBackward0", lambda results: [r * 1.001 for r in results]):
        assert verdicts(capture.parity(dtype="float64"))["other"] == "mismatch"


@pytest.mark.parametrize("operator", [torch.cdist, None])
def test_a_maximum_norm_in_float64_gives_no_verdict(operator):
    """The kernel looks for the differences that equal the saved distance; the distance was rounded to float32."""
    torch.manual_seed(0)
    x = torch.randn(6, 5, requires_grad=True)
    weights = torch.randn(36 if operator else 15)

    def loss():
        apart = torch.cdist(x, x.detach() * 0.7, p=math.inf) if operator else nn.functional.pdist(x, p=math.inf)
        return (apart.reshape(-1) * weights).sum()

    capture = capture_of({"x": x}, loss)
    assert capture.parity().ok
    report = capture.parity(dtype="float64")
    assert verdicts(report)["x"] in {"not_judged", "within_tolerance"}, report
    with faulty(
        "CdistBackward0" if operator else "PdistBackward0", lambda rs: [r if r is None else r * 1.5 for r in rs]
    ):
        assert not capture.parity(dtype="float64").ok
        assert not capture.parity().ok


def test_a_gradient_that_is_another_each_time_is_not_reproducible():
    """Rounding would explain any difference of two such gradients; two runs of the graph show what it is."""

    class Counting(torch.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            Counting.calls += 1
            return g * Counting.calls

    torch.manual_seed(0)
    w, v = torch.randn(64, requires_grad=True), torch.randn(64, requires_grad=True)
    capture = capture_of({"w": w, "v": v}, lambda: Counting.apply(w).sin().sum() + v.sin().sum())
    report = capture.parity()
    assert verdicts(report) == {"w": "not_reproducible", "v": "bitwise"}
    assert "two float64 runs of this graph differ by" in report.frame.set_index("parameter").loc["w", "note"]


def test_memory_that_an_operator_hands_out_is_filled_otherwise_in_the_second_run():
    """The same garbage twice would look like an answer: here what was in the memory is made to stay the same."""

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            buffer = torch.empty_like(g)
            return g * (1 + 1e-3 * (buffer == UNWRITTEN_VALUE) + 2e-3 * state["wrong"])

    state = {"wrong": False}
    w = torch.linspace(1, 2, 64).requires_grad_()
    capture = capture_of({"w": w}, lambda: Empty.apply(w).sin().sum())
    assert capture.parity().ok  # all bitwise: nothing is in question
    state["wrong"] = True
    assert verdicts(capture.parity()) == {"w": "not_reproducible"}


def test_a_fault_that_does_not_come_again_is_not_reproducible():
    """A race, or a flaky kernel: one replay has it, and the next has not."""
    model, x = transformer(torch.float32)
    capture, calls = capture_of(model, lambda: model(x).square().mean()), []

    def once(results):
        calls.append(1)
        return [r if r is None else r * 1.01 for r in results] if len(calls) == 1 else results

    with faulty("ReluBackward0", once):
        report = capture.parity()
    assert "not_reproducible" in set(report.frame["verdict"])
    assert report.frame["note"].str.startswith("two replays of this graph differ by").any()


def test_a_factor_in_one_element_is_a_fault():
    model, x = transformer(torch.float32)
    capture = capture_of(model, lambda: model(x).square().mean())

    def one_element(results):
        wrong = results[0].clone()
        wrong.view(-1)[int(wrong.abs().argmax())] *= 1.01
        return [wrong, *results[1:]]

    with faulty("ReluBackward0", one_element):
        for options in ({}, {"dtype": "float64"}):
            assert "mismatch" in set(capture.parity(**options).frame["verdict"])


def test_a_grouped_product_has_a_float64_run_by_its_formula():
    torch.manual_seed(0)
    x, w = torch.randn(48, 32), torch.randn(4, 32, 16, requires_grad=True)
    offs = torch.tensor([12, 20, 30, 48], dtype=torch.int32)
    capture = capture_of({"w": w}, lambda: nn.functional.grouped_mm(x, w, offs=offs).sin().sum())
    report = capture.parity(dtype="float64")
    assert report.ok
    assert "aten._grouped_mm.default was computed by its formula: it has no kernel there" in report.comparison.notes
    with faulty("GroupedMmBackward0", lambda results: [r if r is None else r * 1.001 for r in results]):
        assert not capture.parity(dtype="float64").ok
    with pytest.raises(CabwError, match="experts_implementation="):
        capture.lower()


def test_an_input_without_memory_stays_as_it_is():
    """FSDP frees parameters between uses; a hook fills them before they are read."""
    model, x = transformer(torch.float32)
    capture = capture_of(model, lambda: model(x).square().mean())
    replay = Replay(capture._captured)
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    placed = replay.graph
    with_freed = replace(placed, arguments=replace(placed.arguments, inputs=[freed, torch.ones(3)]))
    inputs = graph_runs.with_inputs(with_freed, lambda value: value * 2).arguments.inputs
    assert inputs[0] is freed
    assert inputs[1].tolist() == [2.0, 2.0, 2.0]


def test_noise_is_in_proportion():
    size = Distance(1e-7, 1e-7, 1e-8)
    assert proportional_noise(size, Distance(1.01e-7, 0.99e-7, 0.0), 1e-7) == (size, False)
    jump = Distance(1e-1, 1e-2, 0.0)
    assert proportional_noise(jump, size, 1e-7) == (size, True)  # the large perturbation turned something over
    assert proportional_noise(jump, Distance(100.0, 10.0, 0.0), 1e-7) == (Distance(0.0, 0.0, 0.0), True)  # both did


def test_choices_are_recorded_compared_and_held():
    x, nudge = torch.tensor([[1.0, 1.0, 0.5], [0.2, 0.2, 0.2]]), torch.tensor([[0.0, 1e-6, 0.0], [0.0, 0.0, 1e-6]])

    def chosen(x):
        return x.argmax(-1), x > 1.0, x.round(), x.topk(1).values

    def place():
        return "node"

    with RecordedChoices(place) as first:
        expected = chosen(x)
    with RecordedChoices(place) as second:
        chosen(x + nudge)
    assert differing_choices(first.choices, first.choices) == []
    assert differing_choices(first.choices, second.choices) == [("node", "argmax"), ("node", "gt"), ("node", "topk")]
    with HeldChoices(place, first.choices):
        held = chosen(x + nudge)
    assert all(torch.equal(one, other) for one, other in zip(held[:3], expected[:3], strict=True))
    assert torch.equal(held[3], (x + nudge).amax(-1, keepdim=True))  # values are not choices


def test_steps_are_those_of_the_dtype():
    step = 2.0**-24  # of float16
    x = torch.tensor([0.4 * step, 0.6 * step, 3.3 * step, 1.0, 0.0], dtype=torch.float64)
    rounded = SteppedRounding(torch.float16, 1e-6)(x)
    assert rounded.tolist()[:3] == [0.0, step, 3 * step]
    assert rounded[3].item() == pytest.approx(1.0, abs=1e-6)
    assert torch.equal(rounded[:3].half().double(), x[:3].half().double())
    up = torch.stack([SteppedRounding(torch.float16, 1e-6, seed, random=True)(x) for seed in range(200)])
    assert up[:, 0].mean().item() == pytest.approx(0.4 * step, rel=0.3)
    assert (up[:, 4] == 0).all()
    tiny = torch.tensor([3 * step, 1.0, 0.0]).half()
    changed = torch.stack([LastBitRounding(seed)(tiny) for seed in range(100)]).double()
    assert {round(each / step) for each in changed[:, 0].tolist()} == {2, 3, 4}
    assert (changed[:, 2] == 0).all()


# ---------------------------------------------------------------------------------------------- errors against float64


def test_errors_are_those_against_the_float64_replay():
    capture = capture_of_weighted(transformer(torch.float32))
    with faulty("ReluBackward0", lambda results: [r * (1 + 1e-4) for r in results]):
        frame = capture.parity(dtype="float32", exact=False).frame.set_index("parameter")
    assert frame[["reference_err", "candidate_err"]].isna().all().all()
    frame = capture.parity(exact=True).frame.set_index("parameter")
    truth = capture.replay(dtype="float64")
    model_gradients = capture._captured.state.reference
    for index, leaf in enumerate(capture.record.leaves):
        exact_gradient = truth[leaf.names[0]]
        apart = (model_gradients[index].value.double() - exact_gradient).abs().max() / exact_gradient.abs().max()
        assert frame.loc[leaf.label, "reference_err"] == pytest.approx(apart.item())
        assert frame.loc[leaf.label, "candidate_err"] == pytest.approx(apart.item())  # the same kernels again
    assert set(frame["verdict"]) == {"bitwise"}


def test_no_float64_run_where_all_is_bitwise_unless_asked_for(monkeypatch):
    capture, runs = capture_of_weighted(transformer(torch.float32)), []
    original = interpreter.GradientCollector.__init__
    monkeypatch.setattr(
        interpreter.GradientCollector, "__init__", lambda self, *args: (runs.append(1), original(self, *args))[1]
    )
    assert capture.parity().frame["reference_err"].isna().all()
    assert len(runs) == 1
    assert capture.parity(exact=True).frame["reference_err"].notna().all()
    assert len(runs) == 3  # none with results changed: nothing is in question


def test_where_there_is_no_float64_run_the_report_says_why():
    weight, state = torch.randn(3, 3), {"factor": 1.0}

    class Multiplies(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x @ weight

        @staticmethod
        def backward(ctx, grad):
            return grad @ weight.t() * state["factor"]

    x = torch.randn(2, 3, requires_grad=True)
    capture = capture_of({"x": x}, lambda: Multiplies.apply(x).sum())
    state["factor"] = 1.001
    report = capture.parity()
    assert verdicts(report) == {"x": "mismatch"}
    assert any(
        n.startswith("no float64 run to judge by: ") and "MultipliesBackward" in n for n in report.comparison.notes
    )
    with pytest.raises(CabwError, match="MultipliesBackward"):
        capture.parity(exact=True)


def test_bad_options():
    capture = capture_of_weighted(transformer(torch.float32))
    with pytest.raises(CabwError, match="exact='maybe'"):
        capture.parity(exact="maybe")
    with pytest.raises(CabwError, match=r"no measure 'angle'.*\n.*cosine, ulp, rms"):
        capture.parity(measures=["angle"])


# ------------------------------------------------------------------------------------------------------ by hand


def test_distance_by_hand():
    found = distance(torch.tensor([1.1, 2.0, -4.4]), torch.tensor([1.0, 2.0, -4.0], dtype=torch.float64))
    assert found.largest == pytest.approx(0.4 / 4, rel=1e-6)
    assert found.mean_square == pytest.approx(math.sqrt(0.17) / math.sqrt(21), rel=1e-6)
    assert found.systematic == pytest.approx((1.1 + 4 + 17.6) / 21 - 1, rel=1e-6)
    zero = torch.zeros(3, dtype=torch.float64)
    assert distance(torch.zeros(3), zero) == Distance(0.0, 0.0, 0.0)
    assert distance(torch.ones(3), zero).largest > 1e90
    assert distance(torch.zeros(0), torch.zeros(0, dtype=torch.float64)) == Distance(0.0, 0.0, 0.0)


def test_what_is_allowed_in_half_precision_is_less():
    assert HALF_LIMITS.largest < FULL_LIMITS.largest
    assert Precision(torch.bfloat16, torch.bfloat16).half
    assert Precision(torch.float32, torch.bfloat16).coarser == 2**16
    assert Precision(torch.bfloat16, torch.float64).coarser == 1


def test_tf32_counts_as_half_precision():
    """CUDA's convolutions round their operands so by default: to ten bits behind the point."""
    how = Precision(torch.float32, torch.float32, (False, True))
    assert how.unit == torch.finfo(torch.float32).eps
    assert how.unit_of_candidate == 2.0**-10
    assert how.coarser == 2.0**13
    assert how.halves == (False, True)
    assert Precision(torch.bfloat16, torch.bfloat16, (True, True)).unit == torch.finfo(torch.bfloat16).eps
    record = capture_of_weighted(convolutions()).record
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert precision_of_sides(record, [torch.ones(1)], cuda).tf32 == (False, torch.backends.cudnn.allow_tf32)
    assert precision_of_sides(record, [torch.ones(1)], cpu).tf32 == (False, False)
    plain = capture_of_weighted(transformer(torch.float32)).record
    assert precision_of_sides(plain, [torch.ones(1)], cuda).tf32 == (False, False)


def test_perturbation_is_of_the_size_of_rounding_and_leaves_arguments_alone():
    x = torch.linspace(1, 2, 1000, dtype=torch.float64)
    kept = x.clone()
    with PerturbedResults(UniformRounding(2.0**-10)):
        y = x * 3
        viewed = x.view(10, 100)
        counted = (x > 1.5).sum()
    assert torch.equal(x, kept)
    assert torch.equal(viewed.flatten(), kept)
    assert counted == (kept > 1.5).sum()
    apart = (y / (kept * 3) - 1).abs()
    assert 0.9 * 2**-11 < apart.max() <= 2**-11


def test_measures_by_hand():
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([4.0, -3.0])
    assert measures.cosine(a, b) == 0.0
    assert measures.cosine(a, a * 7) == pytest.approx(1.0)
    assert relative_distance(a, b) == pytest.approx(math.sqrt(50) / 5)
    assert math.isnan(measures.cosine(a, b * 0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_ulp_by_hand(dtype):
    one, up = torch.tensor([1.0], dtype=dtype), torch.tensor([1 + torch.finfo(dtype).eps], dtype=dtype)
    tiny = torch.tensor([torch.finfo(dtype).smallest_normal], dtype=dtype) * torch.finfo(dtype).eps
    assert measures.ulp(one, one) == 0
    assert measures.ulp(one, up) == 1
    assert measures.ulp(up, one) == 1
    assert measures.ulp(torch.zeros(1, dtype=dtype), -torch.zeros(1, dtype=dtype)) == 0
    assert tiny.item() > 0
    assert measures.ulp(tiny, -tiny) == 2  # zero lies between
    assert measures.ulp(torch.stack([one, one]), torch.stack([one, up])) == 1
    assert measures.ulp(one, -one) > 1e3


def test_measures_are_columns():
    capture = capture_of_weighted(convolutions())
    frame = capture.parity(measures=("cosine", "ulp", "rms")).frame
    assert (frame["ulp"] == 0).all()
    assert frame["cosine"].to_numpy() == pytest.approx(1.0)
    assert (frame["rms"] == 0).all()
    assert "cosine" not in capture.parity().frame
