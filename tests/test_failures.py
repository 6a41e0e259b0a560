"""What `session.events` and a capture's error say of a backward that is not traced: true, in one sentence, with a way
out that works."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch._higher_order_ops.scan import scan

import cabw_viz
from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError, CabwWarning
from cabw_viz.tracing.trace_failures import brief
from tests.captures import data, leaf, model, session_of


@pytest.fixture(scope="module", autouse=True)
def _pytorch_is_checked_before_a_test_patches_it():
    """The first block of a process compares PyTorch's callbacks with those that are known."""
    torch_adapter.check()


@dataclass(frozen=True)
class Situation:
    """A backward that PyTorch cannot trace, and what our message says of it."""

    subject: object
    fails: object
    """Runs forward and backward as they cannot be traced."""
    advised: object
    """Runs them as the message advises."""
    name: str
    """Of the autograd node at which the trace stops."""
    words: str
    line: str
    """Part of the source line that made that node; empty where there is none."""
    module: str = ""


class Ragged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, *, padded=False):
        if padded:
            return self.inner(torch.nested.to_padded_tensor(x, 0.0))
        return self.inner(x).values()


def nested(layout):
    torch.manual_seed(0)
    return torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=layout)


def jagged():
    net = Ragged()
    return Situation(
        net,
        lambda: net(nested(torch.jagged)).square().mean().backward(),
        lambda: net(nested(torch.jagged), padded=True).square().mean().backward(),
        "NestedGetValuesBackward0",
        "is a nested tensor",
        "return self.inner(x).values()",
    )


def nested_strided():
    net = nn.Linear(8, 8)
    return Situation(
        net,
        lambda: net(nested(torch.strided)).to_padded_tensor(0.0).square().mean().backward(),
        lambda: net(nested(torch.strided).to_padded_tensor(0.0)).square().mean().backward(),
        "ToPaddedTensorBackward0",
        "is a nested tensor",
        "to_padded_tensor(0.0).square()",
    )


def nested_leaf():
    weight = nested(torch.strided).requires_grad_()
    net = model()
    return Situation(
        {"weight": weight},
        lambda: torch.nested.to_padded_tensor(weight * 2, 0.0).sum().backward(),
        lambda: net(data()).sum().backward(),
        "NestedToPaddedTensorBackward0",
        "is a nested tensor",
        "",
    )


def scripted():
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net = torch.jit.script(plain)
    for _ in range(3):  # the profiling executor makes its graph then
        net(data())
    return Situation(
        net,
        lambda: net(data()).square().mean().backward(),
        lambda: plain(data()).square().mean().backward(),
        "DifferentiableGraphBackward",
        "torch.jit.script",
        "",
    )


def complex_view():
    w = leaf(4, dtype=torch.complex64)

    def fails():
        y = w * 2
        torch.view_as_real(y).mul_(3)
        y.abs().sum().backward()

    def advised():
        y = w * 2
        torch.view_as_complex(torch.view_as_real(y) * 3).abs().sum().backward()

    return Situation({"w": w}, fails, advised, "CopySlices", "in-place write to a view", "view_as_real(y).mul_(3)")


def batched():
    x = leaf(3)

    def advised():
        y = x * x
        for row in torch.eye(3):
            torch.autograd.grad(y, x, row, retain_graph=True)

    return Situation(
        {"x": x},
        lambda: torch.autograd.grad(x * x, x, torch.eye(3), is_grads_batched=True),
        advised,
        "GraphRoot",
        "is_grads_batched=True",
        "",
    )


def changed_in_place():
    w = leaf(3)

    def run(*, cloned):
        h = w * 1
        y = (h.clone() if cloned else h).sin()
        h.add_(1)
        y.sum().backward()

    def fails():
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            run(cloned=False)

    return Situation(
        {"w": w}, fails, lambda: run(cloned=True), "SinBackward0", "at version 1; expected version 0", ".sin()"
    )


def freed():
    w = leaf(3)

    def run(**options):
        y = w.sin().sum()
        y.backward(**options)
        y.backward()

    def fails():
        with pytest.raises(RuntimeError, match="second time"):
            run()

    return Situation(
        {"w": w}, fails, lambda: run(retain_graph=True), "SinBackward0", "has freed what it had saved", "w.sin()"
    )


SITUATIONS = [jagged, nested_strided, scripted, complex_view, batched, changed_in_place, freed]


@pytest.mark.parametrize("make", SITUATIONS)
def test_a_failed_trace_names_node_line_cause_and_a_way_out(make):
    torch.manual_seed(0)
    situation = make()
    session = session_of(situation.subject, situation.fails, lines=True)
    failed = session.events.query("outcome == 'failed'")
    assert len(failed) == 1
    (reason,) = failed["reason"]
    error = session[-1].error
    assert error.name == situation.name
    assert error.name == session[-1].record.by_number[error.autograd_node].name
    assert situation.words in error.message
    assert situation.line in ("" if error.line is None else error.line.text)
    assert bool(situation.line) == (error.line is not None)
    assert error.try_
    assert reason == str(error)
    for part in (error.name, error.message, error.try_, f"test_failures.py:{error.line.line}" if error.line else ""):
        assert part in reason
    for shown in (reason, repr(session), repr(session[-1]), session.html(), session[-1].html()):
        assert "frame #" not in shown
        assert "Exception raised from" not in shown
        assert "turn off compiled autograd" not in shown
    assert "\n" not in reason
    assert error.try_ in repr(session)  # never cut


@pytest.mark.parametrize("make", SITUATIONS)
def test_the_way_out_is_one(make):
    torch.manual_seed(0)
    situation = make()
    session = session_of(situation.subject, situation.advised)
    assert set(session.events["outcome"]) <= {"captured", "cache_hit"}
    for capture in session:
        assert capture.parity().ok


def test_the_module_of_the_node_at_which_a_trace_stops():
    class Inner(nn.Module):
        def forward(self, x):
            return x.values()

    net = nn.Sequential(nn.Linear(8, 8), Inner())
    session = session_of(net, lambda: net(nested(torch.jagged)).square().mean().backward())
    assert session[0].error.module == "1"
    assert ", made in 1 at test_failures.py:" in session.events["reason"][0]


def test_the_whole_of_what_pytorch_says_is_there_on_demand():
    session = session_of(None, jagged().fails)
    error = session[0].error
    assert error.details.startswith("NestedTensor support not implemented")
    assert "frame #" in error.details  # this PyTorch adds them
    assert error.type == "NotImplementedError"


def test_a_leaf_that_cannot_be_read_has_a_reason_of_one_sentence():
    weight = nested(torch.strided).requires_grad_()
    with cabw_viz.capture({"w": weight}) as session:
        loss = torch.nested.to_padded_tensor(weight * 2, 0.0).sum()
        with pytest.warns(CabwWarning, match="could not be read") as warned:
            torch.autograd.grad(loss, weight)
    assert list(session.events["outcome"]) == ["failed"]
    assert "\n" not in session.events["reason"][0] + str(warned[0].message)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("planted", "planted"),
        ("", ""),
        ("\n  first\nsecond", "first"),
        ("a is 1.5 and b is 2", "a is 1.5 and b is 2"),
        ("Not here. You can turn off compiled autograd by either:\n1. …", "Not here"),
        ("Not here. You can disable compiled autograd for this operation by:\n 1.", "Not here"),
        ("It failed.\nException raised from f at g.h:1 (most recent call first):\nframe #0: x", "It failed"),
        ("Could not run 'a'. This could be because the operator is not there", "Could not run 'a'"),
        ("One thing. Another thing.", "One thing"),
        ("see torch.nn.Linear. Then", "see torch.nn.Linear"),
    ],
)  # fmt: skip
def test_the_first_sentence_of_a_message(message, expected):
    assert brief(message) == expected


@pytest.mark.parametrize(
    "message",
    ["", "</script><img src=x onerror=alert(1)>", "word " * 20_000, "x" * 100_000, "\x00\u202e\ud800\n\n", "{0}"],
)
def test_whatever_an_exception_says_can_be_shown(monkeypatch, message, tmp_path):
    def broken(*_):
        raise ValueError(message)

    monkeypatch.setattr(torch_adapter.TracerBase, "set_node_origin", broken)
    net = nn.Sequential()
    net.add_module("<b>&\u202e", nn.Linear(4, 2))
    session = session_of(net, lambda: net(data()).sum().backward())
    assert session[0].error.details == message
    assert len(repr(session)) < 2_000
    assert repr(session[0])
    page = session.to_html(tmp_path / "page.html").read_text("utf-8")
    for shown in (session.html(), page):
        assert "<img src=x" not in shown
    session.inspect()
    with pytest.raises(CabwError, match="no complete graph"):
        session[0].parity()


# -- bypassed calls: each reason holds, and none other -------------------------------------------------------------


def forced_eager():
    w = leaf(3)
    with torch.compiler.set_stance("force_eager"):
        w.square().sum().backward()


def disabled():
    w = leaf(3)
    with compiled_autograd._disable():
        w.square().sum().backward()


def inside_another():
    w, inner = leaf(3), leaf(2)
    other, loss = inner.square().sum(), w.square().sum()
    loss.register_hook(lambda _: other.backward())
    loss.backward()


def scanned():
    w, xs = leaf(3, 3), torch.randn(4, 2, 3)
    c, y = scan(lambda c, t: ((c + t @ w).tanh(), (c + t).sin()), torch.zeros(2, 3), xs)
    (y.sum() + c.sum()).backward()


def vjp():
    _, pull = torch.func.vjp(lambda v: (v * v).sum(), torch.randn(3))
    pull(torch.ones(()))


BYPASSED = {
    "stance": (forced_eager, 'set_stance("force_eager")', 0),
    "disabled": (disabled, "_disable()", 0),
    "inside": (inside_another, "inside another backward", 1),
    "scan": (scanned, "higher-order operator scan", 1),
    "func.grad": (lambda: torch.func.grad(lambda w: (w**2).sum())(torch.randn(3)), "torch.func makes it", 0),
    "func.vmap": (
        lambda: torch.func.vmap(torch.func.grad(lambda w: (w**2).sum()))(torch.randn(4, 3)), "torch.func makes it", 0,
    ),
    "func.jacrev": (lambda: torch.func.jacrev(lambda w: w**2)(torch.randn(3)), "torch.func makes it", 0),
    "func.vjp": (vjp, "torch.func makes it", 0),
    "func.hessian": (lambda: torch.func.hessian(lambda w: (w**3).sum())(torch.randn(3)), "torch.func makes it", 0),
}  # fmt: skip
"""What runs, what the reason names, and how many of the calls are captured."""

NAMED = ("set_stance", "_disable()", "inside another", "higher-order operator", "torch.func")


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize("case", BYPASSED)
def test_why_a_call_is_bypassed(case, lines):
    run, words, captured = BYPASSED[case]
    session = session_of(None, run, lines=lines)
    outcomes = list(session.events["outcome"])
    assert outcomes.count("captured") == captured
    reasons = list(session.events.query("outcome == 'bypassed'")["reason"])
    assert len(reasons) == len(outcomes) - captured > 0
    if case == "scan" and len(reasons) > 1:  # Dynamo compiles its function first
        reasons.remove("Dynamo or AOTAutograd is tracing it")
    for reason in reasons:
        assert words in reason
        assert [name for name in NAMED if name in reason] == [name for name in NAMED if name in words]


def test_a_backward_of_the_user_in_what_torch_func_or_an_operator_calls_is_the_users():
    """The frames of `cond` and of `vmap` are on the stack then, but below those of the user's function."""
    w = leaf(3)

    def inner(x):
        torch.autograd.grad(w.square().sum(), w)
        return x.sin()

    session = session_of(None, lambda: torch.func.vmap(inner)(torch.randn(2, 3)))
    assert list(session.events["outcome"]) == ["captured"]


def test_a_mode_of_the_user_hides_nobody():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def run():
        with Mode():
            torch.func.grad(lambda w: (w**2).sum())(torch.randn(3))

    (reason,) = session_of(None, run).events["reason"]
    assert reason.startswith("torch.func makes it")
    assert re.search(r"test_failures\.py:\d+$", session_of(None, run).events["where"][0])
