"""`cap.missing()`: each reason planted into models, against what eager leaves without a gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import cabw_viz
from tests.definitions import MODELS


def mlp():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), torch.randn(3, 4)
    return model, lambda: model(x).square().mean()


MAKERS = {"mlp": mlp, **{name: MODELS[name] for name in ("gpt2", "resnet", "lstm")}}
FIRST = {"mlp": "0", "gpt2": "transformer.wpe", "resnet": "layer2.0.downsample.0", "lstm": "embed"}
"""A module of each that computes with the model's input, so that no other loses its gradient with it."""


class Around(nn.Module):
    """Calls a module, or does not, and returns something else."""

    def __init__(self, inner, call):
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, x):
        return self.call(self.inner, x)


def no_grad(inner, x):
    with torch.no_grad():
        return inner(x)


def inference(inner, x):
    with torch.inference_mode():
        out = inner(x)
    return out.clone()


def not_in_loss(inner, x):
    return torch.ones(inner(x).shape)


def not_called(inner, x):
    width = inner.weight.shape[0] if isinstance(inner, nn.Linear | nn.Conv2d) else inner.weight.shape[1]
    if isinstance(inner, nn.Conv2d):
        return torch.ones(x.shape[0], width, *(size // inner.stride[0] for size in x.shape[2:]))
    return torch.ones(*(x.shape[:1] if x.is_floating_point() else x.shape), width)


def number(inner, x):
    out = inner(x)
    return torch.full_like(out, out.mean().item())


CALLS = {
    "no_grad": (no_grad, "no_grad", ""),
    "inference_mode": (inference, "inference_mode", ""),
    "not_in_loss": (not_in_loss, "not_in_loss", None),
    "not_called": (not_called, "not_called", ""),
    "detach": (lambda inner, x: inner(x).detach(), "detached", "detach"),
    "data": (lambda inner, x: inner(x).data, "detached", ".data"),
    "long": (lambda inner, x: inner(x).long().float(), "detached", "long"),
    "comparison": (lambda inner, x: (inner(x) > 0).float(), "detached", "gt"),
    "argmax": (lambda inner, x: torch.ones_like(out := inner(x)) * out.argmax(), "detached", "argmax"),
    "item": (number, "detached", "item"),
    "in_place": (lambda inner, x: inner(x).detach_(), "detached", "detach_"),
    "quiet operation": (lambda inner, x: quiet_double(inner(x)), "detached", "mul under no_grad"),
}


def quiet_double(out):
    with torch.no_grad():
        return out * 2


def put(model, path, module):
    parent, _, last = path.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def missing_of(model, loss, **options):
    with cabw_viz.capture(model, **options) as session:
        loss().backward()
    return session[0].missing()


def without_grad(model):
    return {name for name, each in model.named_parameters() if each.grad is None}


def names(report):
    return {name for row in report.rows for name in row.names}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("name", MAKERS)
def test_a_planted_reason_is_named(name, kind):
    model, loss = MAKERS[name]()
    call, reason, operator = CALLS[kind]
    put(model, FIRST[name], Around(model.get_submodule(FIRST[name]), call))
    report = missing_of(model, loss)
    rows = [row for row in report.rows if row.reason != "zero"]  # behind a constant, BatchNorm has such
    assert {name for row in rows for name in row.names} == without_grad(model) != set()
    assert {row.reason for row in rows} == {reason}
    assert {row.module for row in rows} == {f"{FIRST[name]}.inner"}
    if operator is not None:
        assert {row.operator for row in rows} == {operator}
    if reason == "detached":
        assert {row.line.file for row in rows} == {__file__}
        assert {row.in_loss for row in rows} == {None if kind == "item" else True}


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_frozen_or_left_out_is_named(name):
    model, loss = MAKERS[name]()
    first = model.get_submodule(FIRST[name]).requires_grad_(False)
    assert {row.reason for row in missing_of(model, loss).rows} == {"requires_grad"}
    first.requires_grad_(True)
    model.zero_grad()
    left_out = dict(first.named_parameters(FIRST[name]))
    wanted = [each for name, each in model.named_parameters() if name not in left_out]
    with cabw_viz.capture(model) as session:
        loss().backward(inputs=wanted)
    report = session[0].missing()
    assert names(report) == set(left_out) == without_grad(model)
    assert {row.reason for row in report.rows} == {"inputs"}


@pytest.mark.parametrize("name", [*MAKERS, "bert", "llama"])
def test_nothing_is_missing_in_a_clean_model_until_its_grads_are_cleared(name):
    model, loss = (MAKERS.get(name) or MODELS[name])()
    with cabw_viz.capture(model) as session:
        loss().backward()
    report = session[0].missing()
    assert (len(report), without_grad(model)) == (0, set())
    assert report.missing.parameters == len(list(model.parameters()))
    model.zero_grad()
    report = session[0].missing()
    assert {row.reason for row in report.rows} == {"set_to_none"}
    assert names(report) == {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert len(report.sentences) == 1


def test_a_way_that_ends_in_the_middle_takes_all_below_it():
    model, loss = MODELS["gpt2"]()
    model.transformer.h[1].ln_1.register_forward_hook(lambda _module, _args, out: out.detach())
    report = missing_of(model, loss)
    assert names(report) == without_grad(model) == {"transformer.h.1.ln_1.weight", "transformer.h.1.ln_1.bias"}
    assert {(row.reason, row.operator) for row in report.rows} == {("detached", "detach")}


def test_ends_one_behind_another_are_each_named():
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, x):
            h = self.a(x).detach()
            picked = self.b(h).argmax(1)
            return self.c(nn.functional.one_hot(picked, 3).float())

    model, x = Chain(), torch.randn(2, 3)
    report = missing_of(model, lambda: model(x).sum())
    assert [(row.names[0], row.operator) for row in report.rows] == [
        ("a.weight", "detach"), ("a.bias", "detach"), ("b.weight", "argmax"), ("b.bias", "argmax"),
    ]  # fmt: skip
    assert all(row.in_loss for row in report.rows)


def test_what_only_a_figure_of_the_user_reads_is_not_detached():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

    model, x = Heads(), torch.randn(2, 3)

    def loss():
        other = model.other(x)
        accuracy = (other.argmax(1) == 0).float()  # read, and no part of the loss
        assert accuracy.shape == (2,)
        return model.one(x).sum()

    rows = missing_of(model, loss).rows
    assert [(row.names[0], row.reason, row.operator) for row in rows] == [
        ("other.weight", "not_in_loss", "linear"), ("other.bias", "not_in_loss", "linear"),
    ]  # fmt: skip


def test_uses_without_a_call_several_calls_and_tied_parameters():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.functional, self.functional_unused, self.twice, self.target, self.idle = (
                nn.Linear(3, 3) for _ in range(5)
            )
            self.tied = nn.Linear(3, 3)
            self.tied.weight = self.functional.weight

        def forward(self, x):
            h = nn.functional.linear(x, self.functional.weight)
            nn.functional.linear(x, self.functional_unused.weight)
            with torch.no_grad():
                self.target(x)
                self.twice(x)
            return self.twice(h) + self.target(x).detach()

    model, x = Mixed(), torch.randn(2, 3)
    report = missing_of(model, lambda: model(x).sum())
    assert {row.names[0]: row.reason for row in report.rows} == {
        "functional.bias": "not_called",
        "functional_unused.weight": "not_in_loss",
        "functional_unused.bias": "not_called",
        "target.weight": "detached",
        "target.bias": "detached",
        "idle.weight": "not_called",
        "idle.bias": "not_called",
        "tied.bias": "not_called",
    }
    assert names(report) == without_grad(model)
    target = next(row for row in report.rows if row.names == ("target.weight",))
    assert (target.calls, target.calls_without_grad) == (2, 1)


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_is_not_missing(reentrant):
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), torch.randn(2, 3, requires_grad=True)
    report = missing_of(model, lambda: checkpoint(model, x, use_reentrant=reentrant).sum())
    assert (len(report), without_grad(model)) == (0, set())


def test_a_call_that_only_leaves_out_is_named_before_and_after():
    model, x = nn.ModuleDict({"one": nn.Linear(3, 3), "two": nn.Linear(3, 3)}), torch.randn(2, 3)
    for captured in (0, 1):
        model.zero_grad()
        with cabw_viz.capture(model, only=captured) as session:
            one, two = model["one"](x).sum(), model["two"](x).sum()
            one.backward()
            two.backward()
        rows = session[0].missing().rows
        other = ("two", "one")[captured]
        assert {(row.names[0], row.reason) for row in rows} == {(f"{other}.weight", "only"), (f"{other}.bias", "only")}


def test_a_later_forward_is_no_excuse_for_this_one():
    model, x = nn.ModuleDict({"one": nn.Linear(3, 3), "two": nn.Linear(3, 3)}), torch.randn(2, 3)
    with cabw_viz.capture(model, only=1) as session:
        (model["one"](x) + model["two"](x)).sum().backward()
        model.zero_grad()
        model["one"](x).sum().backward()
        (model["one"](x) + model["two"](x)).sum().backward()
    assert {row.reason for row in session[0].missing().rows} == {"not_called"}


def test_each_step_has_its_own_forward():
    model, x = nn.ModuleDict({"one": nn.Linear(3, 3), "two": nn.Linear(3, 3, bias=False)}), torch.randn(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1)
    with cabw_viz.capture(model) as session:
        for used in (("one", "two"), ("one",), ("two",)):
            optimizer.zero_grad()
            sum(model[name](x).sum() for name in used).backward()
            optimizer.step()
    reports = [capture.missing() for capture in session]
    assert [{row.names[0] for row in each.rows if row.reason == "not_called"} for each in reports] == [
        set(), {"two.weight"}, {"one.weight", "one.bias"},
    ]  # fmt: skip


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return None


def test_a_function_that_returns_none_is_named():
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    report = missing_of(model, lambda: Doubled.apply(model(x)).sum())
    assert {row.reason for row in report.rows} == {"undefined"}
    assert {row.operator for row in report.rows} == {"DoubledBackward"}
    assert names(report) == without_grad(model)


def test_what_cannot_be_seen_is_not_known():
    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.weight = nn.Linear(3, 3), nn.Parameter(torch.ones(3))

        def forward(self, x):
            Doubled.apply(self.weight)
            return self.inner(x)

    model, x = Custom(), torch.randn(2, 3)
    assert [row.reason for row in missing_of(model, lambda: model(x).sum()).rows] == ["not_known"]
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "unused": nn.Linear(3, 3)})
    rows = missing_of(model, lambda: model["used"](x).sum(), lines=False).rows
    assert {(row.reason, "lines=False" in row.facts) for row in rows} == {("not_known", True)}
    out = model["used"](x)
    rows = missing_of(model, lambda: out.sum()).rows
    assert {(row.reason, "before the block" in row.facts) for row in rows} == {("not_known", True)}


def test_mappings_and_no_subject():
    used, unused, x = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True), torch.randn(3)
    report = missing_of({"used": used, "unused": unused, "x": x}, lambda: (used * x + (unused * x).detach()).sum())
    assert {row.names[0]: row.reason for row in report.rows} == {"unused": "detached", "x": "requires_grad"}
    report = missing_of(None, lambda: (used * x).sum())
    assert len(report) == 0
    assert "no subject" in report.missing.notes[0]


# ------------------------------------------------------------------------------------------------------ zero gradients


def test_a_dead_relu_is_named():
    model, loss = MODELS["resnet"]()
    with torch.no_grad():
        model.layer2[1].bn1.weight.zero_()
        model.layer2[1].bn1.bias.fill_(-1)
    report = missing_of(model, loss)
    by_hand = {name for name, each in model.named_parameters() if not each.grad.any()}
    dead = [row for row in report.rows if row.made_in == "layer2.1.relu"]
    assert {row.names[0] for row in dead} == {f"layer2.1.{each}" for each in ("conv1.weight", "bn1.weight", "bn1.bias")}
    assert {row.names[0] for row in report.rows if row.reason == "zero"} == by_hand
    assert {row.operator for row in dead} == {"ReluBackward0"}
    assert "it is dead" in repr(report)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("plant", ["mask", "zero"])
def test_a_zero_factor_is_named(name, plant):
    model, loss = MAKERS[name]()
    factor = {"mask": torch.zeros_like, "zero": lambda _: 0.0}[plant]
    first = model.get_submodule(FIRST[name])
    put(model, FIRST[name], Around(first, lambda inner, x: (out := inner(x)) * factor(out)))
    report = missing_of(model, loss)
    assert {row.names[0] for row in report.rows if row.module == f"{FIRST[name]}.inner"} == {
        f"{FIRST[name]}.inner.{each}" for each, _ in first.named_parameters()
    }
    rows = [row for row in report.rows if row.module == f"{FIRST[name]}.inner"]
    assert {(row.reason, row.operator, row.made_in) for row in rows} == {("zero", "MulBackward0", FIRST[name])}
    assert all(row.facts for row in rows) or plant == "zero"


def test_an_adapter_whose_second_matrix_is_zero():
    class Adapter(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(4, 4).requires_grad_(False)
            self.a, self.b = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.zeros(2, 4))

        def forward(self, x):
            return self.base(x) + x @ self.a @ self.b

    model, x = Adapter(), torch.randn(3, 4)
    zero = [row for row in missing_of(model, lambda: model(x).square().sum()).rows if row.reason == "zero"]
    assert [row.names for row in zero] == [("a",)]
    assert not model.a.grad.any()
    assert model.b.grad.any()
    assert (zero[0].operator, zero[0].line.file) == ("MmBackward0", __file__)
    assert "(b) is zero everywhere" in zero[0].facts


def test_hooks_and_sums_that_make_zeros():
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    model.weight.register_hook(torch.zeros_like)
    rows = missing_of(model, lambda: model(x).sum()).rows
    assert [(row.names[0], row.maker) for row in rows] == [("weight", "hook")]
    w = torch.ones(3, requires_grad=True)
    rows = missing_of({"w": w}, lambda: (w * 2 - w * 2).sum()).rows
    assert [(row.names[0], row.maker) for row in rows] == [("w", "sum")]


def test_zeros_with_fingerprints_and_without_gradients_of_nodes():
    model, x = nn.Linear(64, 64), torch.randn(2, 64)
    assert {row.operator for row in missing_of(model, lambda: (model(x) * 0).sum(), max_bytes=0).rows} == {
        "MulBackward0"
    }
    report = missing_of(model, lambda: (model(x) * 0).sum(), gradients="leaves")
    assert {(row.reason, row.autograd_node) for row in report.rows} == {("zero", None)}
    assert 'gradients="nodes"' in report.missing.notes[0]


# ---------------------------------------------------------------------------------------------------------------- views


def test_table_text_and_html():
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "<b>": nn.Linear(3, 3)})
    x = torch.randn(2, 3)
    report = missing_of(model, lambda: model["used"](x).sum())
    assert list(report.frame["parameter"]) == ["<b>.weight", "<b>.bias"]
    assert list(report.frame["reason"]) == ["not_called"] * 2
    assert report.summary == "2 of 4 parameters got no gradient from this backward."
    assert report.sentences == ["<b>.weight, <b>.bias: their module <b> was not called in the forward of this loss."]
    page = report._repr_html_()
    assert "&lt;b&gt;.weight" in page
    assert "<b>.weight" not in page


def test_many_parameters_stand_in_one_sentence():
    model, loss = MODELS["gpt2"]()
    model.transformer.h.requires_grad_(False)
    report = missing_of(model, loss)
    assert len(report.rows) == len(list(model.transformer.h.parameters()))
    assert len(report.sentences) == 1
    assert "other modules" in report.sentences[0]


def test_a_closed_session_still_has_what_was_seen_in_the_forward():
    model, x = nn.ModuleDict({"used": nn.Linear(3, 3), "unused": nn.Linear(3, 3)}), torch.randn(2, 3)
    with cabw_viz.capture(model) as session:
        model["used"](x).sum().backward()
    session.close()
    report = session[0].missing()
    assert {row.reason for row in report.rows} == {"not_called"}
    assert "the session is closed" in report.missing.notes[0]


def test_the_user_sees_no_difference():
    model, loss = MODELS["resnet"]()
    put(model, FIRST["resnet"], Around(model.get_submodule(FIRST["resnet"]), CALLS["detach"][0]))
    state = {name: each.clone() for name, each in model.state_dict().items()}
    loss().backward()
    plain = {name: each.grad for name, each in model.named_parameters()}
    model.load_state_dict(state)
    model.zero_grad()
    missing_of(model, loss)
    for name, each in model.named_parameters():
        assert (each.grad is None) == (plain[name] is None)
        assert each.grad is None or torch.equal(each.grad, plain[name])
