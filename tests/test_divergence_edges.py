"""The first divergence where gradients are written to in place, are empty, not finite, or of a rare kind."""

from __future__ import annotations

import pytest
import torch

from tests.captures import OverwritesGradient, capture_of, capture_of_run, leaf
from tests.faults import planted, scaled, with_a_nan

BACKENDS = ("eager", "aot_eager")

# ---------------------------------------------------------------------------------------------------------- post-hooks


def product_with_a_post_hook(a, b, hook):
    result = a * b
    result.grad_fn.register_hook(hook)
    return result.sin().sum()


def doubled(gradients, _):
    return tuple(None if g is None else g * 2 for g in gradients)


def unchanged(gradients, _):
    return None


@pytest.mark.parametrize("kind", ["backward", "grad"])
@pytest.mark.parametrize("changes", [True, False])
def test_a_post_hook_on_a_node_of_which_some_gradients_are_wanted(kind, changes):
    a, b = leaf(4), leaf(4)

    hook = doubled if changes else unchanged

    def run():
        loss = product_with_a_post_hook(a, b, hook)
        return loss.backward(inputs=[a]) if kind == "backward" else torch.autograd.grad(loss, [a])

    capture = capture_of_run({"a": a, "b": b}, run)
    report = capture.divergence()
    assert report.ok, report
    assert set(report.frame["verdict_out"].dropna()) == {"bitwise"}
    hooks = [row for row in capture.record.graph_nodes if row.kind == "hook"]
    with planted(hooks[0].name, scaled):
        first = capture.divergence().first
    assert (first.kind, first.name) == ("hook", f"hook {hook.__name__} of MulBackward0"), first


def test_two_post_hooks_in_a_row_are_steps_of_their_own():
    a, b = leaf(4), leaf(4)

    def loss():
        result = a * b
        result.grad_fn.register_hook(lambda gradients, _: (gradients[0] * 2, None))
        result.grad_fn.register_hook(lambda gradients, _: (gradients[0] * 3, None))
        return result.sin().sum()

    capture = capture_of_run({"a": a}, lambda: torch.autograd.grad(loss(), [a]))
    report = capture.divergence()
    assert report.ok, report
    assert list(report.frame["kind"]).count("hook") == 2


def test_a_weight_that_is_used_more_often_than_python_recurses():
    w = leaf(2)

    def loss():
        total = torch.ones(2)
        for _ in range(1200):
            total = total + w
        return total.sum()

    report = capture_of({"w": w}, loss, lines=False).divergence()
    assert report.ok, report


# ------------------------------------------------------------------------------------------------------ in-place writes


class Halves(torch.autograd.Function):
    """A copy of its input; the backward halves the gradient in place."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.mul_(0.5)


def hooked_tensor(w, v):
    hooked = w.sin()
    hooked.register_hook(lambda g: g.clamp_(-0.1, 0.1))
    return (hooked * v).exp().sum()


def hooked_after_a_node(w, v):
    product = (w * v).sin()
    product.grad_fn.register_hook(lambda grads, _: (grads[0].mul_(3),))
    return product.exp().sum()


def hooked_before_a_node(w, v):
    product = (w * v).sin()
    product.grad_fn.register_prehook(lambda grads: (grads[0].mul_(3),))
    return product.exp().sum()


def custom_function(w, v):
    return (Halves.apply(w.sin()) * v).exp().sum()


WRITES = (hooked_tensor, hooked_after_a_node, hooked_before_a_node, custom_function)


def written(loss):
    torch.manual_seed(0)
    torch._dynamo.reset()
    w, v = leaf(24, 24), leaf(24, 24)
    return capture_of({"w": w, "v": v}, lambda: loss(w, v), lines=False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("loss", WRITES, ids=lambda loss: loss.__name__)
def test_a_gradient_that_is_written_to_in_place_charges_nobody(loss, backend):
    report = written(loss).divergence(backend=backend)
    assert report.ok, report
    assert set(report.frame["verdict_own"].dropna()) <= {"bitwise", "within_tolerance"}


@pytest.mark.parametrize("loss", WRITES, ids=lambda loss: loss.__name__)
def test_beside_writes_in_place_a_fault_is_charged_to_its_node(loss):
    capture = written(loss)
    for call, name in {"mul_backward0": "MulBackward0", "sin_backward0": "SinBackward0"}.items():
        report = capture.divergence(backend=faulty_node(call))
        assert [row.name for row in report.culprits] == [name], report


def faulty_node(call_name):
    """`aot_eager`, but the first gradient of one kind of autograd node is off by a thousandth."""

    def faulty(graph):
        call = next(node for node in graph.graph.nodes if node.name == call_name)
        gradient = next(user for user in call.users if user.args[1] == 0)
        with graph.graph.inserting_after(gradient):
            wrong = graph.graph.call_function(torch.mul, (gradient, 1.001))
        gradient.replace_all_uses_with(wrong, delete_user_cb=lambda user: user is not wrong)
        graph.recompile()
        return torch.compile(graph, backend="aot_eager")

    return faulty


def test_a_compiled_graph_that_writes_to_a_pending_gradient_is_charged_with_that():
    def loss(w, v):
        spared, spoils = v.neg(), OverwritesGradient.apply(w)
        return (spoils + spared).mul(0.5).sum()

    report = written(loss).divergence(backend="aot_eager")
    assert [row.name for row in report.culprits] == ["write in place to what NegBackward0 takes, input 0"], report


# ------------------------------------------------------------------------------------- empty, rare, and not finite ones


def test_an_expanded_gradient_without_elements():
    x, y = leaf(0), leaf(3)
    capture = capture_of({"x": x, "y": y}, lambda: torch.cat([x * 2, y]).sum() + (x * 3).sum())
    assert capture.divergence().ok


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_complex_half():
    x = leaf(3)
    gradient = torch.randn(3).chalf()
    capture = capture_of_run({"x": x}, lambda: torch.autograd.backward([x.chalf()], [gradient]))
    report = capture.divergence()
    assert report.ok, report
    (copy,) = (row for row in capture.record.graph_nodes if row.target == "ops.ToCopyBackward0")
    with planted(copy.name, scaled):
        assert capture.divergence().first.name == "ToCopyBackward0"


def log_of_a_negative_number():
    """A sum of two gradients: one has a NaN, and both have elements that round differently in another order."""
    torch.manual_seed(0)
    t, x = torch.rand(10, 10), leaf(10, 10)
    t[0, 0] = -1.0
    t.requires_grad_()
    return capture_of({"x": x, "t": t}, lambda: torch.nn.functional.kl_div(x, t, reduction="batchmean"), lines=False)


def test_a_nan_on_both_sides_beside_rounding_is_no_divergence():
    capture = log_of_a_negative_number()
    total = [row for row in capture.record.graph_nodes if row.kind == "gradient_sum"][-1]
    with planted(total.name, lambda g: g * (1 + 1e-7)):
        report = capture.divergence()
    assert report.ok, report
    assert [(each.side, report.frame.loc[each.row, "name"]) for each in report.nonfinite] == [
        ("both", "XlogyBackward0")
    ]


@pytest.mark.parametrize("fault", [scaled, with_a_nan], ids=lambda fault: fault.__name__)
def test_a_fault_beside_a_nan_on_both_sides_is_charged(fault):
    capture = log_of_a_negative_number()
    total = [row for row in capture.record.graph_nodes if row.kind == "gradient_sum"][-1]
    with planted(total.name, fault):
        report = capture.divergence()
    assert [row.kind for row in report.culprits] == ["gradient_sum"], report
