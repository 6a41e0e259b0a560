"""Parity of captured graphs with the user's own run, and the faults that it must find."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch.testing._internal.two_tensor import TwoTensor

import cabw_viz
from cabw_viz.errors import CabwError
from cabw_viz.replay.parity import comparison
from tests.captures import capture_of, data, faulty_once, model, session_of


@contextlib.contextmanager
def faulty(name, change):
    """Lets one of PyTorch's functional backward ops, as a replay calls it, give something else."""
    op = getattr(compiled_autograd.ops, name)
    original = op.fn
    op.fn = lambda *args: change(original(*args))
    try:
        yield
    finally:
        op.fn = original


def scaled(results):
    return [None if r is None else r * 1.001 for r in results]


def deep():
    torch.manual_seed(0)
    net = torch.nn.Sequential()
    for activation in (torch.nn.Tanh, torch.nn.Sigmoid, torch.nn.GELU):
        net.append(torch.nn.Linear(4, 4))
        net.append(activation())
    return net


def capture_of_net(net, **options):
    return capture_of(net, lambda: net(data()).square().sum(), **options)


def verdicts(report):
    return dict(zip(report.frame["parameter"], report.frame["verdict"], strict=True))


# ------------------------------------------------------------------------------------------------ faults are found


@pytest.mark.parametrize(
    ("name", "below"),
    [("TanhBackward0", ["0."]), ("SigmoidBackward0", ["0.", "2."]), ("GeluBackward0", ["0.", "2.", "4."])],
)
def test_a_faulty_node_is_seen_in_the_parameters_below_it_and_in_no_others(name, below):
    capture = capture_of_net(deep())
    with faulty(name, scaled):
        report = capture.parity()
    expected = {f"{i}.{kind}": "bitwise" for i in (0, 2, 4) for kind in ("weight", "bias")}
    expected |= {key: "mismatch" for key in expected if key.startswith(tuple(below))}
    assert verdicts(report) == expected
    assert not report.ok
    assert report.worst.verdict == "mismatch"
    assert capture.parity().ok  # the fault was in that replay, not in the capture


def test_the_size_of_a_fault_is_told():
    capture = capture_of_net(deep())
    with faulty("TanhBackward0", scaled):
        frame = capture.parity().frame.set_index("parameter")
    assert frame.loc["0.weight", "max_rel_err"] == pytest.approx(1e-3, rel=1e-3)
    grad = capture.replay()["0.weight"]
    assert frame.loc["0.weight", "max_abs_err"] == pytest.approx(1e-3 * grad.abs().max().item(), rel=1e-3)


def test_a_fault_in_the_eager_run_is_found_too():
    """A custom Function that multiplies by 1.001 in its first backward alone."""

    v, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    capture = capture_of({"v": v, "w": w}, lambda: (faulty_once().apply(w) + v).sum())
    assert verdicts(capture.parity()) == {"v": "bitwise", "w": "mismatch"}


def test_nan_from_a_node_is_nonfinite():
    capture = capture_of_net(deep())
    with faulty("TanhBackward0", lambda results: [r * float("nan") for r in results]):
        report = capture.parity()
    assert verdicts(report)["0.weight"] == "nonfinite"
    assert verdicts(report)["2.weight"] == "bitwise"
    assert report.worst.verdict == "nonfinite"


def test_a_nan_that_both_sides_have_is_no_difference_and_is_reported():
    """The root of a negative number, in eager and in every replay; the other elements are compared."""
    w, factors = torch.tensor([-1.0, 2.0, 0.5, 3.0], requires_grad=True), torch.tensor([1.0, 3.0, 0.1, 7.0])
    capture = capture_of({"w": w}, lambda: (w * factors).sqrt().sin().sum())
    assert w.grad.isfinite().tolist() == [False, True, True, True]
    for options in ({}, {"dtype": "float64"}):
        report = capture.parity(**options)
        (row,) = report.comparison.rows
        assert report.ok
        assert (row.nonfinite, row.elements) == (1, 4)
        assert repr(report).endswith("w holds NaN or infinity, in the same elements on both sides.")
        assert capture.parity(measures="ulp", **options).frame.loc[0, "ulp"] < 4
    with faulty("SqrtBackward0", lambda results: [r * 1.001 for r in results]):
        assert verdicts(capture.parity()) == {"w": "mismatch"}
    with faulty("SqrtBackward0", lambda results: [r.nan_to_num() for r in results]):
        assert verdicts(capture.parity()) == {"w": "nonfinite"}


@pytest.mark.parametrize("part", ["a", "b"])
def test_every_inner_tensor_of_a_gradient_is_compared(part):
    """TwoTensor holds two tensors; a fault in either is found."""

    def wrong(g):
        return TwoTensor(*(inner * (3 if name == part else 1) for name, inner in (("a", g.a), ("b", g.b))))

    torch.manual_seed(0)
    p = torch.randn(3, 3, requires_grad=True)
    x = TwoTensor(torch.randn(3, 3), torch.randn(3, 3))
    assert capture_of({"p": p}, lambda: ((x + faulty_once(lambda g: g).apply(p)) * p).sum()).parity().ok
    p.grad = None
    report = capture_of({"p": p}, lambda: ((x + faulty_once(wrong).apply(p)) * p).sum()).parity()
    assert verdicts(report) == {"p": "mismatch"}
    assert report.frame.loc[0, "note"].startswith(f"in its inner tensor {part}")


def test_a_gradient_that_only_one_side_has():
    capture = capture_of_net(deep())
    state = capture._captured.state
    index = [leaf.label for leaf in capture.record.leaves].index("0.bias")
    kept = state.reference.pop(index)
    assert verdicts(capture.parity())["0.bias"] == "unexpected"
    state.reference[index] = kept

    def without_bias(results):
        return [None, *results[1:]]

    with faulty("AddmmBackward0", without_bias):
        report = capture.parity()
    expected = {
        f"{i}.{kind}": verdict for i in (0, 2, 4) for kind, verdict in (("weight", "bitwise"), ("bias", "missing"))
    }
    assert verdicts(report) == expected
    assert report.worst.verdict == "missing"


def test_tolerances_are_the_dtypes_and_can_be_given():
    capture = capture_of_net(deep())
    with faulty("TanhBackward0", lambda results: [r * (1 + 3e-6) for r in results]):
        default = capture.parity()
        strict = capture.parity(rtol=0.0, atol=0.0)
        loose = capture.parity(rtol=1e-2, atol=1e-2)
    assert verdicts(default)["0.weight"] == "within_tolerance"
    assert default.ok
    assert verdicts(strict)["0.weight"] == "mismatch"
    assert verdicts(loose)["0.weight"] == "within_tolerance"
    assert default.comparison.tolerances == (("torch.float32", 1.3e-6, 1e-5),)


# ------------------------------------------------------------------------------------- what parity can be asked for


def test_a_parameter_changed_in_place_is_refused_by_name():
    net = model()
    capture = capture_of_net(net)
    with torch.no_grad():
        net[2].weight.add_(1)
    with pytest.raises(CabwError, match=r"^2\.weight .*changed in place.*version 1 then, 2 now") as error:
        capture.parity()
    assert "snapshot=True" in str(error.value)


def test_a_bias_that_is_only_accumulated_into_counts_too():
    net = model()
    capture = capture_of_net(net)
    with torch.no_grad():
        net[0].bias.mul_(2)
    with pytest.raises(CabwError, match=r"^0\.bias \(8,\) was changed"):
        capture.parity()


def test_an_unnamed_saved_tensor_changed_in_place_is_refused_with_its_node():
    w = torch.ones(3, requires_grad=True)
    x = torch.ones(3)
    capture = capture_of({"w": w}, lambda: (w * x).sum())
    x.add_(1)
    with pytest.raises(CabwError, match=r"inputs\[\d\] \(3,\), saved by MulBackward0 \(#2\)"):
        capture.parity()


@pytest.mark.parametrize("steps", [1, 3])
def test_after_an_optimizer_step_a_snapshot_is_needed_and_enough(steps):
    def train(snapshot):
        net = model()
        optimizer = torch.optim.Adam(net.parameters())
        with cabw_viz.capture(net, snapshot=snapshot) as session:
            for _ in range(steps):
                optimizer.zero_grad()
                net(data()).square().sum().backward()
                optimizer.step()
        return session

    with pytest.raises(CabwError, match="changed in place"):
        train(snapshot=False)[0].parity()
    report = train(snapshot=True)[0].parity()
    assert set(report.frame["verdict"]) == {"bitwise"}


def test_gradients_accumulated_into_later_do_not_matter():
    net = model()
    with cabw_viz.capture(net) as session:
        for _ in range(3):
            net(data()).square().sum().backward()
    assert [capture.parity().ok for capture in session] == [True, True]


def test_an_optimizer_in_a_hook_is_not_stepped_again():
    net = model()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}
    steps = []

    def step(parameter):
        optimizers[parameter].step()
        parameter.grad = None
        steps.append(parameter)

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(step)
    capture = capture_of_net(net, snapshot=True)
    assert len(steps) == 4
    after = [p.detach().clone() for p in net.parameters()]
    report = capture.parity()
    assert report.ok
    assert len(steps) == 4
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), after, strict=True))
    assert "in the replay 4 post-accumulate hooks did not run" in report.comparison.notes


def test_inputs_that_were_moved_are_dropped_before_the_float64_run(monkeypatch):
    placements = []

    def rows_as_they_are(replay, options, rows, pairs):
        placements.extend(replay._placed)
        return list(rows), []

    monkeypatch.setattr(comparison, "final_rows", rows_as_they_are)
    capture_of_net(model()).parity(dtype="float64")
    assert placements == []


def test_nothing_is_written_by_a_replay():
    net = model()
    capture = capture_of_net(net)
    grads = [p.grad.clone() for p in net.parameters()]
    versions = [(p._version, p.grad._version) for p in net.parameters()]
    capture.parity()
    capture.replay()
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), grads, strict=True))
    assert [(p._version, p.grad._version) for p in net.parameters()] == versions


def test_hooks_run_again_or_are_left_out_or_refused():
    def tripled(grad):
        calls.append(1)
        return grad * 3

    calls = []
    net = model()
    with cabw_viz.capture(net) as session:
        out = net(data())
        out.register_hook(tripled)
        out.sum().backward()
    report = session[0].parity()
    assert report.ok
    assert len(calls) == 2
    assert "in the replay 1 hook ran again" in report.comparison.notes
    dropped = session[0].replay(hooks="drop")
    assert len(calls) == 2
    torch.testing.assert_close(dropped["2.bias"] * 3, net[2].bias.grad)
    with pytest.raises(CabwError, match=r"AddmmBackward0 .* carries a tensor_pre_hook .*tripled"):
        session[0].parity(hooks="refuse")
    with pytest.raises(CabwError, match="hooks='sometimes'"):
        session[0].parity(hooks="sometimes")


def test_parity_after_close_is_refused():
    net = model()
    session = session_of(net, lambda: net(data()).sum().backward())
    session.close()
    assert session.closed
    with pytest.raises(CabwError, match="was closed"):
        session[0].parity()


def test_parity_without_reference_is_refused():
    with pytest.raises(CabwError, match='gradients="none"'):
        capture_of_net(model(), gradients="none").parity()
    with pytest.raises(CabwError, match='gradients="none"'):
        capture_of_net(model(), gradients="none", run="compiled").parity()
    assert capture_of_net(model(), gradients="none").replay().keys() == dict(model().named_parameters()).keys()


def test_a_replay_that_pytorch_cannot_do_is_refused_before_it_runs_with_the_node():
    """A callback that needs a live engine."""
    runs = []

    class Queues(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            runs.append(1)
            torch.autograd.Variable._execution_engine.queue_callback(lambda: None)
            return g

    w = torch.ones(3, requires_grad=True)
    capture = capture_of({"w": w}, lambda: Queues.apply(w).sum())
    with pytest.raises(CabwError, match=r"QueuesBackward \(#2\) queues a callback in the engine"):
        capture.parity()
    assert len(runs) == 1  # in the user's own run


def test_existing_gradients_do_not_confuse_a_compiled_run():
    net = model()
    net(data()).sum().backward()
    for run in ("compiled", "eager"):
        assert capture_of_net(net, run=run).parity().ok
    with compiled_autograd._enable(lambda gm: gm):
        report = capture_of_net(net).parity()
    assert report.ok, report


def test_what_is_compared_with_what_is_said():
    report = capture_of_net(model()).parity()
    assert report.comparison.reference == "your own eager run, on cpu in float32"
    graph = "the captured graph run again, op by op on eager kernels, on cpu in float32"
    assert report.comparison.candidate == graph
    compiled = capture_of_net(model(), run="compiled").parity()
    assert "through compiled autograd" in compiled.comparison.candidate
    for text in (repr(report), report._repr_html_()):
        assert "your own eager run" in text


def test_frame_columns():
    frame = capture_of_net(model()).parity().frame
    first = ["parameter", "verdict", "max_abs_err", "max_rel_err", "shape", "dtype"]
    assert list(frame.columns[:6]) == first
    assert list(frame["shape"]) == [(2, 8), (8, 4), (8,), (2,)]


# -------------------------------------------------------------------------------------------- models as people use

transformers = pytest.importorskip("transformers", reason="pip install 'cabw_viz[examples]' for real model definitions")


def tiny(kind):
    """Two layers of a real definition, random weights."""
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=97, n_positions=32)
        return transformers.GPT2LMHeadModel(config)
    common = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 97,
        "max_position_embeddings": 32,
    }
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **common))
    return transformers.BertForMaskedLM(transformers.BertConfig(**common))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_real_definitions_are_bitwise_equal_to_eager(kind):
    net = tiny(kind).train()
    tokens = torch.randint(0, 97, (2, 16), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    net(input_ids=tokens, labels=tokens).loss.backward()
    plain = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    net.zero_grad()
    torch.manual_seed(2)
    capture = capture_of(net, lambda: net(input_ids=tokens, labels=tokens).loss)
    for name, gradient in plain.items():
        assert torch.equal(gradient, dict(net.named_parameters())[name].grad), name
    report = capture.parity()
    assert set(report.frame["verdict"]) == {"bitwise"}, report
    assert len(report.frame) == len(plain)
    again = capture.replay()
    for name, gradient in plain.items():
        assert torch.equal(gradient, again[name]), name


@pytest.mark.parametrize("hooks", ["run", "refuse", "drop"])
def test_retained_gradients_stay_as_they_are(hooks):
    torch.manual_seed(0)
    weight = torch.randn(3, 2, requires_grad=True)
    hidden = torch.randn(4, 3) @ weight
    hidden.retain_grad()
    capture = capture_of({"weight": weight}, lambda: hidden.square().sum())
    kept, before = hidden.grad, hidden.grad.clone()
    report = capture.parity(hooks=hooks)
    assert report.comparison.rows[0].verdict == "bitwise"
    assert "in the replay 1 gradient kept by retain_grad() stayed as it was" in report.comparison.notes
    assert capture.parity(backend="aot_eager", hooks=hooks).ok
    assert capture.divergence(hooks=hooks).ok
    assert torch.equal(capture.lower(hooks=hooks).gradients()["weight"], weight.grad)
    assert hidden.grad is kept
    assert torch.equal(kept, before)
