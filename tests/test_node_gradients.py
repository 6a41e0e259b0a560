"""What is kept of the gradients of a user's own run, and that the run does not notice."""

from __future__ import annotations

import collections
import gc
import weakref

import pytest
import torch

import cabw_viz
from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError, CabwWarning
from cabw_viz.runtime.gradient_snapshots import Fingerprint, Gradient, fingerprint
from cabw_viz.tracing import node_gradients
from tests.captures import OverwritesGradient, Twice, capture_of


def numbers(capture):
    return {node.name: node.number for node in capture.record.autograd_nodes}


# ------------------------------------------------------------------------------------------------------ the right ones


def build():
    """Sums, views, an expanded gradient, several outputs and a write in place to a view."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 20), torch.nn.GELU(), torch.nn.LayerNorm(20))
    x = torch.randn(30, 20)
    out = net(x)
    base = net[0](x) * 2
    base[3:].mul_(3)
    one, other = torch.split(base.t().reshape(30, 20), [5, 15], dim=1)
    return net, (out + out.t().contiguous().t()).square().sum() + one.sum() * other.mean()


def bits(gradient):
    return None if gradient is None else gradient.detach().contiguous().numpy().tobytes()


def test_they_are_those_of_an_independent_run():
    _, loss = build()
    seen, found = set(), collections.Counter()
    todo = [loss.grad_fn]

    def watch(node):
        name = node.name().rpartition("::")[2]
        node.register_prehook(lambda grads: found.update([("inputs", name, *map(bits, grads))]))
        if name != "AccumulateGrad":
            node.register_hook(lambda made, _: found.update([("outputs", name, *map(bits, made))]))

    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            watch(node)
            todo += [child for child, _ in node.next_functions if child is not None]
    loss.backward()

    net, loss = build()
    capture = capture_of(net, lambda: loss)
    kept, names = (
        capture._captured.state.node_gradients,
        {node.number: node.name for node in capture.record.autograd_nodes},
    )
    ours = collections.Counter(
        (side, names[number], *(bits(each.value if each else None) for each in gradients))
        for side in ("inputs", "outputs")
        for number, gradients in getattr(kept, side).items()
    )
    assert ours == found
    assert len(kept.inputs) == len(seen)


def test_accumulation_in_place_does_not_reach_the_copies():
    w = torch.ones(4, requires_grad=True)

    def loss():
        product = w * 2
        return (product.sin() + product.cos() + product.exp()).sum()

    capture = capture_of({"w": w}, loss)
    kept, number = capture._captured.state.node_gradients, numbers(capture)
    two = torch.tensor(2.0)
    torch.testing.assert_close(kept.outputs[number["SinBackward0"]][0].value, two.cos().expand(4))
    torch.testing.assert_close(kept.outputs[number["ExpBackward0"]][0].value, two.exp().expand(4))
    summed = kept.inputs[number["MulBackward0"]][0].value
    torch.testing.assert_close(summed, (two.cos() - two.sin() + two.exp()).expand(4))
    w.grad.zero_()
    assert float(kept.inputs[number["AccumulateGrad"]][0].value[0]) != 0


def test_a_gradient_changed_behind_autograds_back_is_kept_as_it_was():
    """A custom Function writes to what it gets, past the version counter, while another node still waits for that."""

    w, v = (torch.ones(300, requires_grad=True) for _ in range(2))
    capture = capture_of({"w": w, "v": v}, lambda: (v.neg() + OverwritesGradient.apply(w)).mul(0.5).sum())
    kept, number = capture._captured.state.node_gradients, numbers(capture)
    assert [float(part.value[0]) for part in kept.outputs[number["AddBackward0"]]] == [0.5, 0.5]
    assert float(kept.inputs[number["OverwritesGradientBackward"]][0].value[0]) == 0.5
    assert float(kept.inputs[number["NegBackward0"]][0].value[0]) == -float(v.grad[0])


@pytest.mark.parametrize("double", [False, True])
def test_of_a_call_of_grad(double):
    x = torch.full((3,), 2.0, requires_grad=True)
    middle = x**3
    with cabw_viz.capture({"x": x, "middle": middle}) as session:
        torch.autograd.grad((middle * 5).sum(), [middle], create_graph=double)
    kept = session[0]._captured.state.node_gradients
    (leaf,) = session[0].record.leaves
    assert kept.inputs[leaf.autograd_node][leaf.input].value.tolist() == [5.0] * 3
    assert session[0].divergence().ok


# ------------------------------------------------------------------------------------------------------- how much it is


def test_what_flows_on_unchanged_is_kept_once():
    x = torch.randn(100, 100, requires_grad=True)
    capture = capture_of({"x": x}, lambda: (x.t() + 1).reshape(10_000).mul(2).sum())
    kept = capture._captured.state.node_gradients
    # One for the product; the sum's is a single number that is expanded, and all others are views.
    assert kept.bytes <= 40_000 + 100
    assert kept.fingerprints == 0


def test_above_max_bytes_fingerprints_stand_in_and_leaves_are_kept_in_full():
    x, y = (torch.randn(50, 50, requires_grad=True) for _ in range(2))
    capture = capture_of({"x": x, "y": y}, lambda: (x.sin() @ y.cos()).square().sum(), max_bytes=25_000)
    kept, number = capture._captured.state.node_gradients, numbers(capture)
    assert kept.bytes <= 25_000
    assert isinstance(kept.outputs[number["PowBackward0"]][0], Gradient)
    found = kept.outputs[number["SinBackward0"]][0]
    assert isinstance(found, Fingerprint)
    assert found == fingerprint(x.grad)
    assert found.norm == pytest.approx(float(x.grad.norm()), rel=1e-6)
    assert (found.low, found.high) == (float(x.grad.min()), float(x.grad.max()))
    assert found.samples[0] == float(x.grad[0, 0])
    assert capture.parity().ok
    assert kept.fingerprints > 0
    assert f"{kept.fingerprints} gradients were too many for max_bytes" in repr(capture.divergence())


def test_the_budget_is_the_whole_blocks():
    x = torch.randn(50, 50, requires_grad=True)
    with cabw_viz.capture({"x": x}, max_bytes=15_000) as session:
        for power in (2, 3, 4):
            (x**power).sum().backward()
    assert [capture._captured.state.node_gradients.fingerprints > 0 for capture in session] == [False, True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_a_fingerprint_tells_any_change_of_bits_or_order(dtype):
    torch.manual_seed(0)
    x = torch.randn(37, 41, dtype=dtype)
    same = fingerprint(x.clone())
    assert fingerprint(x) == same == fingerprint(x.t().contiguous().t())
    for place in (0, 700, -1):
        changed = x.clone().reshape(-1)
        changed[place] = changed[place] * (1 + 1e-2)
        assert fingerprint(changed.reshape(37, 41)).hash != same.hash
    swapped = x.clone()
    swapped[[3, 9]] = x[[9, 3]]
    assert fingerprint(swapped).hash != same.hash
    assert fingerprint(x.reshape(41, 37).t().reshape(37, 41)).hash != same.hash


def test_a_fingerprint_counts_what_is_not_finite():
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
    found = fingerprint(x)
    assert (found.nans, found.infinities) == (1, 2)


# ------------------------------------------------------------------------------------------------- no effect on the run


def test_users_hooks_run_in_their_order_and_stay():
    w = torch.ones(3, requires_grad=True)
    calls = []
    middle = w * 2
    for name in "ab":
        middle.register_hook(lambda grad, name=name: calls.append(f"tensor {name}"))
        middle.grad_fn.register_prehook(lambda grads, name=name: calls.append(f"pre {name}"))
        middle.grad_fn.register_hook(lambda made, grads, name=name: calls.append(f"post {name}"))
    with cabw_viz.capture({"w": w}):
        middle.sum().backward(retain_graph=True)
    expected = ["tensor a", "tensor b", "pre a", "pre b", "post a", "post b"]
    assert calls == expected
    calls.clear()
    middle.sum().backward()
    assert calls == expected


class Marker:
    """Lives as long as the autograd node in whose metadata it is."""


def test_no_autograd_node_is_kept_alive_and_the_copies_end_with_the_session():
    w = torch.ones(300, requires_grad=True)
    out = w * 2
    out.grad_fn.metadata["marker"] = Marker()
    marker = weakref.ref(out.grad_fn.metadata["marker"])
    loss = out.neg().sum()  # saves nothing: a saved tensor is lifted, and keeps what made it
    with cabw_viz.capture({"w": w}) as session:
        loss.backward()
    del out, loss
    gc.collect()
    assert marker() is None
    kept = session[0]._captured.state.node_gradients
    copies = [weakref.ref(each.value) for gradients in kept.outputs.values() for each in gradients if each]
    assert copies
    session.close()
    gc.collect()
    assert not [copy for copy in copies if copy() is not None]


def test_a_dispatch_mode_of_the_users_sees_no_copies():
    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = collections.Counter()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen[str(func)] += 1
            return func(*args, **(kwargs or {}))

    def run(gradients, max_bytes):
        w = torch.ones(300, requires_grad=True)
        loss = (Twice.apply(w.sin()) * w).reshape(20, 15).t().sum()
        counting = Counting()
        with cabw_viz.capture({"w": w}, gradients=gradients, max_bytes=max_bytes), counting:
            loss.backward()
        return counting.seen

    assert run("nodes", 2**20) == run("nodes", 0) == run("none", 0)


def test_a_node_that_takes_no_hook_of_ours_is_a_warning_too(monkeypatch):
    monkeypatch.setattr(torch_adapter, "post_hooks", lambda node: 1 / 0)
    w = torch.ones(3, requires_grad=True)
    middle = w * 2
    middle.grad_fn.register_hook(lambda made, grads: None)
    with pytest.warns(CabwWarning, match="kept in part"):
        capture_of({"w": w}, middle.sum)
    assert w.grad.tolist() == [2.0] * 3


def test_a_failure_of_ours_is_a_warning_and_the_backward_goes_on(monkeypatch):
    def fails(_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(node_gradients, "compact_copy", fails)
    w = torch.ones(3, requires_grad=True)
    with pytest.warns(CabwWarning, match=r"kept in part \(ZeroDivisionError at SumBackward0 \(#1\): planted\)"):
        capture = capture_of({"w": w}, (w * 2).sum)
    assert w.grad.tolist() == [2.0] * 3
    for ask in (capture.parity, capture.divergence):
        with pytest.raises(CabwError, match="could not be kept: ZeroDivisionError"):
            ask()


@pytest.mark.parametrize("max_bytes", [-1, 1.5, True, "1 GB"])
def test_max_bytes_is_a_number_of_bytes(max_bytes):
    with pytest.raises(CabwError, match="max_bytes="):
        cabw_viz.capture(max_bytes=max_bytes)
