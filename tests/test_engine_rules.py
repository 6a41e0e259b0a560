"""Replays sum and keep gradients as the engine does: missing parts left out, copies kept from later writes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.numerics.compare import bitwise_equal
from cabw_viz.replay.placement import engine_rules
from tests.captures import Twice, capture_of, leaf


def penalty(model, x):
    """The gradient penalty of a critic (WGAN-GP)."""
    (gradient,) = torch.autograd.grad(model(x).square().sum(), [x], create_graph=True)
    return (gradient.flatten(1).norm(dim=1) - 1).square().mean()


def capture_of_penalty(make, *shape):
    """A capture of the penalty's backward, and what eager gives for it without a capture."""

    def run():
        torch.manual_seed(0)
        model, x = make(), torch.randn(*shape, requires_grad=True)
        return {"x": x, **dict(model.named_parameters())}, penalty(model, x)

    leaves, loss = run()
    loss.backward()
    expected = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    leaves, loss = run()
    with cabw_viz.capture(leaves) as session:
        loss.backward()
    return session[0], expected


PENALTIES = {
    "convolution": (lambda: nn.Conv2d(2, 3, 3), (2, 2, 5, 5)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(2, 3, 3), (2, 2, 5, 5)),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_a_gradient_that_does_not_exist_is_left_out_of_a_sum(name):
    """Compiled autograd itself runs `torch.add(None, gradient)` here and raises."""
    make, shape = PENALTIES[name]
    cap, expected = capture_of_penalty(make, *shape)
    assert expected
    assert_same(cap.replay(), expected)
    assert_same(cap.lower().gradients(), expected)
    assert set(cap.parity().frame.verdict) == {"bitwise"}
    assert cap.divergence().ok
    assert len(cap.audit())


def test_group_norm_sums_more_than_two():
    """Compiled autograd sends gradients in another order than the engine: sums of three differ in their last bits."""
    cap, expected = capture_of_penalty(lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4)), 2, 2, 4, 4)
    torch.testing.assert_close(cap.replay(), expected, rtol=2e-3, atol=1e-5)
    assert cap.parity().ok
    assert_same(cap.lower().gradients(), cap.replay())


def test_such_a_sum_in_another_dtype_and_through_a_compiler():
    cap, _ = capture_of_penalty(*PENALTIES["convolution"][:1], *PENALTIES["convolution"][1])
    for options in ({"dtype": "float64"}, {"backend": "aot_eager"}, {"backend": lambda graph: graph}):
        assert cap.parity(**options).ok, options


def test_a_wrong_sum_is_seen(monkeypatch):
    cap, _ = capture_of_penalty(*PENALTIES["convolution"][:1], *PENALTIES["convolution"][1])
    wrong = lambda first, second: 2 * torch.add(first, second) if first is not None else second  # noqa: E731  # short
    monkeypatch.setattr("cabw_viz.replay.interpreter.sum_of_gradients", wrong)
    assert not cap.parity().ok


def assert_same(gradients, expected):
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert bitwise_equal(gradients[name], gradient), name


class Nothing(torch.autograd.Function):
    """Gives no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return None


def test_a_sum_of_nothing_is_nothing():
    x, y = leaf(3), leaf(3)
    cap = capture_of({"x": x, "y": y}, lambda: (Nothing.apply(x) + Nothing.apply(x) * 2 + y.sin()).sum())
    assert x.grad is None
    assert_same(cap.replay(), {"y": y.grad})
    assert_same(cap.lower().gradients(), {"y": y.grad})
    assert cap.parity().ok


@pytest.mark.parametrize("first", ["sparse", "dense"])
def test_sparse_gradients_in_a_sum(first):
    """The node that runs its forward last sends its gradient first."""
    weight = leaf(5, 3)

    def program():
        dense, sparse = (lambda: weight.sin().sum()), (lambda: nn.functional.embedding(rows, scaled, sparse=True).sum())
        scaled, rows = weight * 1.0, torch.tensor([1, 3, 1])
        parts = [sparse(), scaled.sin().sum()] if first == "dense" else [scaled.sin().sum(), sparse()]
        return parts[0] + parts[1] + dense()

    cap = capture_of({"weight": weight}, program)
    assert_same(cap.replay(), {"weight": weight.grad})
    assert cap.parity().ok


# -- gradients that are kept ---------------------------------------------------------------------------------


class Scale(torch.autograd.Function):
    """Multiplies its gradient by 3, in place."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.mul_(3)


def scaled_by_function(x):
    return Scale.apply(x)


def scaled_by_hook(x):
    y = x.clone()
    y.register_hook(lambda g: (g.mul_(3), None)[1])
    return y


@pytest.mark.parametrize("scaled", [scaled_by_function, scaled_by_hook])
def test_a_later_write_does_not_change_what_was_accumulated(scaled):
    """Both leaves get one tensor; that of z is accumulated before x's is multiplied in place."""
    x, z = leaf(4), leaf(4)
    cap = capture_of({"x": x, "z": z}, lambda: ((scaled(x) + z) * torch.arange(1.0, 5.0)).sum())
    expected = {"z": torch.arange(1.0, 5.0), "x": 3 * torch.arange(1.0, 5.0)}  # by hand
    assert_same({"x": x.grad, "z": z.grad}, expected)
    assert_same(cap.replay(), expected)
    assert_same(cap.lower().gradients(), expected)
    assert_same(cap.replay(backend="aot_eager"), expected)
    assert set(cap.parity().frame.verdict) == {"bitwise"}
    assert cap.divergence().ok
    frame = cap.audit()
    assert "aten.clone.default" not in set(frame[frame.phase == "execution"].attribute)  # the copy is no read


def test_a_retained_gradient_is_kept_too():
    x, z = leaf(4), leaf(4)
    scaled, middle = Scale.apply(x), z.sin()
    middle.retain_grad()
    with cabw_viz.capture({"x": x, "z": z, "middle": middle}) as session:
        ((scaled + middle) * torch.arange(1.0, 5.0)).sum().backward()
    assert middle.grad.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert set(session[0].parity().frame.verdict) == {"bitwise"}


def test_copies_are_made_only_where_code_of_the_users_runs_later():
    from cabw_viz.replay.replay import Replay

    def copied(program):
        x, z = leaf(4), leaf(4)
        replay = Replay(capture_of({"x": x, "z": z}, lambda: program(x, z))._captured)
        return engine_rules.accumulations_to_copy(replay.graph)

    assert not copied(lambda x, z: (x.sin() + z).sum())
    assert not copied(
        lambda x, z: (Scale.apply(x.sin() + z) * torch.arange(1.0, 5.0)).sum()
    )  # it runs before any accumulation
    assert len(copied(lambda x, z: ((Scale.apply(x) + z) * torch.arange(1.0, 5.0)).sum())) == 1


@pytest.mark.parametrize(("function", "copies"), [(Scale, 1), (Twice, 0)])
def test_a_lowered_graph_copies_where_an_op_writes(function, copies):
    x, z = leaf(4), leaf(4)
    lowered = capture_of({"x": x, "z": z}, lambda: ((function.apply(x) + z) * torch.arange(1.0, 5.0)).sum()).lower()
    clones = lowered.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert len(clones) == copies
