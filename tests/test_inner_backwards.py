"""Backwards inside of a captured one: their gradients are counted and named, and disturb no comparison."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from cabw_viz import torch_adapter
from cabw_viz.tracing import inner_backwards
from cabw_viz.tracing.backward_trace import BackwardTrace
from tests.captures import Twice, capture_of, faulty_once, session_of

WIDTH = 6

captured_inside = pytest.mark.skipif(
    not torch_adapter.TRACES_INSIDE, reason="compiled autograd cannot be switched on inside a backward there"
)


class Blocks(nn.Module):
    """A layer, blocks inside reentrant checkpoints, a layer."""

    def __init__(self, count=1):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(count))
        self.blocks = nn.ModuleList(layers)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.last(x)


class Segments(Blocks):
    """The blocks in one sequence of checkpoints; the last of them is none."""

    def forward(self, x):
        x = checkpoint_sequential(nn.Sequential(*self.blocks), len(self.blocks), self.first(x), use_reentrant=True)
        return self.last(x)


class Nested(Blocks):
    """Each block in a checkpoint in a checkpoint."""

    def forward(self, x):
        def twice(h):
            return checkpoint(self.blocks[0], h, use_reentrant=True) + 0

        return self.last(checkpoint(twice, self.first(x), use_reentrant=True))


class Tied(Blocks):
    """The layer behind the checkpoint is in it too."""

    def __init__(self):
        super().__init__()
        self.blocks[0].append(self.last)


def data():
    return torch.linspace(-2, 2, 4 * WIDTH).reshape(4, WIDTH).sin()


def with_gradient(net):
    return sum(parameter.grad is not None for parameter in net.parameters())


CASES = {
    "one block": (lambda: Blocks(1), 2, "1 backward"),
    "three blocks": (lambda: Blocks(3), 6, "3 backwards"),
    "segments": (lambda: Segments(3), 4, "2 backwards"),
    "nested": (lambda: Nested(1), 2, "2 backwards"),
}
"""The model, how many gradients are missed, and how many inner backwards make them."""


@pytest.mark.parametrize("gradients", ["nodes", "leaves"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_not_compared_is_counted_and_named(case, gradients):
    make, missed, count = CASES[case]
    net = make()
    capture = capture_of(net, lambda: net(data()).square().sum(), gradients=gradients)
    report = capture.parity()
    assert report.ok
    assert len(report.frame) + missed == with_gradient(net)
    assert len(report.comparison.missed) == missed
    assert set(report.comparison.missed) | set(report.frame["parameter"]) == dict(net.named_parameters()).keys()
    nodes = [node for node in capture.record.autograd_nodes if node.name == "CheckpointFunctionBackward"]
    numbers = ", ".join(f"#{node.number}" for node in nodes)
    place = f"{count} inside CheckpointFunctionBackward ({numbers})"
    expected = f"{missed} of {with_gradient(net)} gradients came from {place}"
    texts = [repr(report), report._repr_html_(), capture.outline(), capture.html()]
    if gradients == "nodes":
        divergence = capture.divergence()
        assert divergence.ok
        texts += [repr(divergence), divergence._repr_html_(), divergence.summary]
    for text in texts:
        assert expected in text
    assert "All " not in repr(report)
    assert "not compared here: blocks." in repr(report)
    assert "inner backwards: " in capture.outline()


def test_a_saved_page_says_so_too(tmp_path):
    net = Blocks()
    capture = capture_of(net, lambda: net(data()).square().sum())
    capture.parity()
    pages = capture.to_html(tmp_path / "a.html"), capture.parity().save(tmp_path / "b.html")
    assert "2 of 6 gradients came from" in pages[1].read_text("utf-8")
    from cabw_viz.views.inspector.findings import pack_parity, pack_results

    assert b"2 of 6 gradients came from" in pack_parity(capture.record, capture.results.comparison)
    capture.divergence()
    assert b"2 of 6 gradients came from" in pack_results(capture.record, capture.results)["divergence"]


def test_parameters_without_a_subject_are_counted():
    net = Blocks()
    capture = capture_of(None, lambda: net(data()).square().sum())
    assert len(capture.parity().comparison.missed) == 2
    assert "2 of 6 gradients came from" in repr(capture.parity())


def test_where_every_gradient_is_compared_all_agree():
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())
    capture = capture_of(net, lambda: checkpoint(net, data(), use_reentrant=False).sum())
    report = capture.parity()
    assert report.comparison.coverage == ""
    assert "All 2 gradients agree" in repr(report)
    assert "inner backward" not in capture.outline()


def test_accumulation_into_gradients_from_before_is_no_other_gradient():
    net = Blocks()
    net(data()).sum().backward()
    capture = capture_of(net, lambda: net(data()).square().sum())
    assert capture.record.other_gradients == ()
    assert len(capture.parity().comparison.missed) == 2


def test_a_gradient_that_is_returned_inside_is_compared_where_it_goes():
    w = torch.randn(WIDTH, requires_grad=True)

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.detach().sin()

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                return torch.autograd.grad(x.sin(), x, g)

    report = capture_of({"w": w}, lambda: Inner.apply(w * 2).sum()).parity()
    assert report.comparison.coverage == ""
    assert report.ok


def test_what_a_hook_puts_into_a_grad_is_named():
    w, other = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)

    def put(gradient):
        other.grad = gradient * 2

    h = w * 1
    h.register_hook(put)
    report = capture_of({"w": w, "other": other}, lambda: h.sum()).parity(hooks="drop")
    assert report.comparison.missed == ("other",)
    assert "1 of 2 gradients were set in .grad by a hook or by code in C++, not compared here: other." in repr(report)


def test_an_optimizer_in_the_backward_is_no_other_gradient():
    net = nn.Linear(3, 1)

    def step(parameter):
        parameter.grad = None

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    assert capture_of(net, lambda: net(torch.ones(2, 3)).sum()).parity().comparison.coverage == ""


# ------------------------------------------------------------------------------------------ leaves that both have


@pytest.mark.parametrize("gradients", ["nodes", "leaves"])
def test_a_parameter_that_is_inside_and_outside_is_no_false_alarm(gradients):
    """The node of a leaf is one and the same in both backwards; eager's own gradients are the reference."""
    net = Tied()
    capture = capture_of(net, lambda: net(data()).square().sum(), gradients=gradients)
    report = capture.parity()
    assert set(report.frame["verdict"]) == {"bitwise"}, report
    assert "A part of the gradient of last.weight = blocks.0.2.weight" in repr(report)
    inside, outside = (net.last.weight.grad - capture.replay()["last.weight"]), capture.replay()["last.weight"]
    plain = Tied()
    h = plain.first(data())
    for layer in plain.blocks[0][:2]:
        h = layer(h)
    w = plain.last.weight.detach().clone().requires_grad_()
    nn.functional.linear(plain.last(h), w, plain.last.bias).square().sum().backward()
    assert torch.allclose(w.grad, outside, rtol=1e-4, atol=1e-4)
    assert torch.allclose(plain.last.weight.grad, inside, rtol=1e-4, atol=1e-4)
    if gradients == "nodes":
        assert capture.divergence().ok


def test_a_fault_beside_an_inner_backward_is_found():
    net, faulty = Tied(), faulty_once(lambda g: g * 1.01)
    capture = capture_of(net, lambda: faulty.apply(net(data())).square().sum())
    report, divergence = capture.parity(exact=False), capture.divergence()
    assert not report.ok
    assert " gradients that were compared differ" in repr(report)
    assert "not compared here" in repr(report)
    assert divergence.first.name == "FaultyOnceBackward"


# ------------------------------------------------------------------------------------------------- our own faults


@pytest.mark.parametrize("name", ["_accumulated", "version_of"])
def test_a_failure_of_ours_is_a_warning(name, monkeypatch):
    net, plain = Blocks(), Blocks()
    for each in (net, plain):
        each(data()).sum().backward()
    plain(data()).square().sum().backward()
    monkeypatch.setattr(inner_backwards, name, lambda *_: 1 / 0)
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        capture = capture_of(net, lambda: net(data()).square().sum())
    for one, other in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert capture.parity().ok


def test_an_inner_backward_that_raises_leaves_nothing_open():
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            torch.zeros(1).sum().backward()

    w = torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        capture_of({"w": w}, lambda: Raises.apply(w).sum())
    assert capture_of({"w": w}, lambda: Twice.apply(w).sum()).parity().comparison.coverage == ""


# ------------------------------------------------------------------------------------ captured as calls of their own


@captured_inside
@pytest.mark.parametrize("case", CASES)
def test_with_inner_all_gradients_are_compared(case):
    net, plain = CASES[case][0](), CASES[case][0]()
    session = session_of(net, lambda: net(data()).square().sum().backward(), inner=True)
    plain(data()).square().sum().backward()
    for one, other in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert set(session.events["outcome"]) == {"captured"}
    assert list(session.events["call"].isna()) == [False] + [True] * (len(session) - 1)
    rows = [row for capture in session for row in capture.parity().frame.itertuples()]
    assert {row.verdict for row in rows} == {"bitwise"}
    assert {row.parameter for row in rows} >= dict(net.named_parameters()).keys()
    assert all(capture.divergence().ok for capture in session)
    for capture in session:
        name = next((leaf.label for leaf in capture.record.leaves if leaf.label in dict(net.named_parameters())), None)
        if name is not None:
            assert torch.equal(capture.replay()[name], net.get_parameter(name).grad)
    outer, first = session[0].record, session[1].record
    assert first.outer is not None
    capture, node = first.outer
    assert capture == 0
    assert outer.by_number[node].name == "CheckpointFunctionBackward"
    assert f"inside session[0] at #{node}" in session[1].outline()
    assert "Captured as session[1]" in repr(session[0].parity())


@captured_inside
def test_with_inner_training_goes_on_as_without_a_capture():
    def train(run):
        net = Blocks(2)
        for block in net.blocks:
            block.append(nn.BatchNorm1d(WIDTH))
            block.append(nn.Dropout(0.3))
        optimizer = torch.optim.Adam(net.parameters(), 0.01)
        torch.manual_seed(1)
        for _ in range(3):
            optimizer.zero_grad()
            run(net, lambda: net(data()).square().mean().backward())
            optimizer.step()
        return net.state_dict(), torch.rand(3)

    def looked(net, step):
        session = session_of(net, step, inner=True)
        assert len(session) == 3
        assert all(capture.parity().ok for capture in session)

    one, other = train(looked), train(lambda _, step: step())
    assert torch.equal(one[1], other[1])
    assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])


@captured_inside
def test_with_inner_a_fault_inside_is_found_there():
    net, faulty = Blocks(), faulty_once(lambda g: g * 1.01)

    class Faulty(nn.Module):
        def forward(self, x):
            return faulty.apply(x)

    net.blocks[0].append(Faulty())
    session = session_of(net, lambda: net(data()).square().sum().backward(), inner=True)
    assert not session[1].parity(exact=False).ok
    assert session[1].divergence().first.name == "FaultyOnceBackward"


def bypass_reasons(net, **options):
    session = session_of(net, lambda: net(data()).square().sum().backward(), **options)
    assert len(session) == 1
    return list(session.events.query("outcome == 'bypassed'")["reason"])


def test_calls_that_are_not_captured_say_why(monkeypatch):
    assert bypass_reasons(Blocks()) == ["made inside another backward"]
    if torch_adapter.TRACES_INSIDE:
        (reason,) = bypass_reasons(Tied(), inner=True)
        assert "shares autograd nodes" in reason
    monkeypatch.setattr(torch_adapter, "TRACES_INSIDE", False)
    assert bypass_reasons(Blocks(), inner=True) == ["made inside another backward"]


@captured_inside
def test_an_inner_call_that_cannot_be_read_runs_as_it_is(monkeypatch):
    prepare, plain, net = BackwardTrace.prepare, Blocks(), Blocks()
    plain(data()).square().sum().backward()

    def fail_inside(call, *rest):
        return 1 / 0 if call.index is None else prepare(call, *rest)

    monkeypatch.setattr(BackwardTrace, "prepare", fail_inside)
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        session = session_of(net, lambda: net(data()).square().sum().backward(), inner=True)
    assert list(session.events["outcome"]) == ["captured", "failed"]
    for one, other in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert len(session[0].parity().comparison.missed) == 2


@captured_inside
def test_nothing_of_a_closed_session_stays():
    net = Blocks()
    session = session_of(net, lambda: net(data()).square().sum().backward(), inner=True)
    kept = [weakref.ref(tensor) for tensor in session[1]._state.arguments.inputs if type(tensor) is torch.Tensor]
    session.close()
    del session
    gc.collect()
    assert kept
    assert not any(reference() is not None for reference in kept)
