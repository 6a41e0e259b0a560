"""`cabw_viz.compare`: what it runs, and what it finds."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import cabw_viz
from tests.steps import CHEAP, conv_net, faulty, step_of


@pytest.fixture
def net():
    return conv_net()


@pytest.fixture
def step(net):
    return step_of(net)


# ------------------------------------------------------------------------------------------------------- what is run


def test_a_step_that_returns_its_loss(net, step):
    matrix = cabw_viz.compare(step, net)
    assert matrix.ok
    assert matrix.runs == ("eager", "compiled_autograd", "aot_eager")
    assert (matrix.frame == "bitwise").all().all()
    gradients = [name for name, _ in net.named_parameters()]
    buffers = [f"(buffer) {name}" for name, _ in net.named_buffers()]
    assert list(matrix.frame.index) == [*gradients, "(loss)", *buffers]
    assert matrix.worst.row.verdict == "bitwise"


def test_a_step_that_makes_its_backward_itself(net, step):
    def whole():
        net.zero_grad()
        loss = step()
        loss.backward()
        return loss

    matrix = cabw_viz.compare(whole, net)
    assert matrix.ok
    assert matrix.frame.shape[0] == 10


def test_a_backward_of_the_users_own_is_called_with_what_the_step_returned(net, step):
    seen = []

    def backward(returned):
        seen.append(returned)
        (returned["loss"] * 2).backward()
        return {"norm": net[5].weight.grad.norm(), "name": "doubled"}

    plain = cabw_viz.compare(step, net, backends=CHEAP, repeats=1)
    own = cabw_viz.compare(lambda: {"loss": step(), "x": 1.5}, net, backward=backward, backends=CHEAP, repeats=1)
    assert own.ok
    assert all(returned["x"] == 1.5 for returned in seen)
    assert set(own.frame.index) - set(plain.frame.index) == {"(result) x", "(result) norm", "(result) name"}


@pytest.mark.parametrize("kind", ["tuple", "mapping", "number"])
def test_further_results_are_compared(net, step, kind):
    def first():
        loss = step()
        if kind == "number":
            loss.backward()
            return loss.item()
        return (loss, [1, None, "a"]) if kind == "tuple" else {"logits": (loss * 2, object()), "loss": loss}

    def second():
        changed = first()
        if kind == "number":
            return changed * 1.5
        return (changed[0], [2, None, "b"]) if kind == "tuple" else changed | {"logits": (changed["loss"] * 3,)}

    matrix = cabw_viz.compare(first, net, backends=["eager"], against={"other": second}, repeats=1)
    bad = {"tuple": ["(result) [1][0]", "(result) [1][2]"], "mapping": ["(result) logits[0]"], "number": ["(loss)"]}
    frame = matrix.frame
    assert list(frame.index[frame["other"] == "mismatch"]) == bad[kind]
    assert (frame["eager"] == "bitwise").all()


def test_the_calls_of_a_run_go_on_from_each_other_and_each_run_begins_anew(net, step):
    seen = []

    def counted():
        seen.append((int(net[1].num_batches_tracked), all(p.grad is None for p in net.parameters())))
        return step()

    cabw_viz.compare(counted, net, backends=CHEAP, repeats=3)
    assert seen == [(0, True), (1, True), (2, True)] * 3
    assert net[1].num_batches_tracked == 0


def test_a_compiled_part_of_the_step_is_told_apart(net):
    x = torch.randn(5, 2, 6, 6)
    compiled = torch.compile(net, backend="aot_eager")
    matrix = cabw_viz.compare(lambda: compiled(x).square().mean(), compiled, backends=CHEAP, repeats=1)
    assert matrix.ok
    assert matrix.runs == ("eager", "as_is", "compiled_autograd")
    assert "0.weight" in matrix.frame.index  # and not _orig_mod.0.weight
    assert matrix.report("compiled_autograd").comparison.reference == "the run as_is"


def test_a_compiled_part_that_rounds_otherwise_is_no_fault(net):
    net[4].eval()
    x = torch.randn(5, 2, 6, 6)
    compiled = torch.compile(net, backend="aot_eager_decomp_partition")
    matrix = cabw_viz.compare(lambda: compiled(x).square().mean(), net, backends="compiled_autograd", repeats=1)
    assert matrix.ok, matrix
    assert matrix.frame["as_is"]["0.bias"] == "within_noise"


@pytest.mark.parametrize("kind", ["method", "object", "partial", "module"])
def test_any_callable_is_a_step(net, kind):
    class Task(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = torch.randn(5, 2, 6, 6)

        def forward(self, factor=1.0):
            return net(self.x).square().mean() * factor

        def loss(self):
            return self.forward()

    task = Task()
    step = {"method": task.loss, "object": Task.forward.__get__(task), "partial": functools.partial(task, 2.0)}
    assert cabw_viz.compare(step.get(kind, task), net, backends="aot_eager", repeats=1).ok


def test_a_backend_may_be_a_function(net, step):
    def broken(graph, inputs):
        return lambda *args: [out * 1.01 if torch.is_floating_point(out) else out for out in graph(*args)]

    matrix = cabw_viz.compare(step, net, backends=[broken], repeats=1)
    assert matrix.runs == ("broken",)
    assert not matrix.ok


def test_a_run_in_which_nothing_was_compiled_says_so(net, step):
    with torch.compiler.set_stance("force_eager"):
        matrix = cabw_viz.compare(step, net, backends="aot_eager", repeats=1)
    assert "nothing was compiled: this is eager" in repr(matrix)


# ----------------------------------------------------------------------------------------------------- what is found


def transposed(grad):
    return grad.reshape(-1).flip(0).reshape(grad.shape)


def with_nan(grad):
    return grad.index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(float("nan")))


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (lambda grad: grad * 1.001, "mismatch"),
        (lambda grad: grad - grad.mean(), "mismatch"),
        (transposed, "mismatch"),
        (with_nan, "nonfinite"),
        (lambda grad: None, "missing"),
        (lambda grad: grad.t().contiguous().t(), "metadata"),
    ],
    ids=["factor", "dropped term", "order", "nan", "missing", "strides"],
)
@pytest.mark.parametrize("calls", [(0,), (2,), (0, 1, 2)], ids=["first", "last", "every"])
def test_a_planted_fault_is_found_in_its_parameter_and_calls(net, step, fault, verdict, calls):
    matrix = cabw_viz.compare(step, net, backends=[], against={"faulty": faulty(net, step, fault=fault, calls=calls)})
    assert not matrix.ok
    bad = matrix.details.query("verdict != 'bitwise'")
    assert list(bad.parameter.unique()) == ["5.weight"]
    assert list(bad.verdict.unique()) == [verdict]
    assert tuple(bad.call) == calls
    finding = matrix.worst
    assert (finding.run, finding.row.name, finding.row.verdict, finding.differs) == (
        "faulty",
        "5.weight",
        verdict,
        calls,
    )


def test_an_unexpected_gradient_a_wrong_loss_and_a_wrong_buffer_are_found(net, step):
    net.register_parameter("unused", nn.Parameter(torch.zeros(2)))

    def other():
        loss = step() * 1.5 + (net.unused.sum() if net[1].num_batches_tracked == 2 else 0)
        loss.backward()
        net[1].running_mean.add_(0.1)
        return loss

    matrix = cabw_viz.compare(step, net, backends=[], against={"other": other})
    frame = matrix.frame["other"]
    assert frame["unused"] == "unexpected"
    assert frame["(loss)"] == frame["(buffer) 1.running_mean"] == "mismatch"
    assert frame["(buffer) 1.num_batches_tracked"] == "bitwise"
    assert "unexpected" in repr(matrix)
    assert "in call 1 of 3" in repr(matrix)


def test_the_first_wrong_element_is_named_with_both_values(net, step):
    def fault(grad):
        return grad.index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(7.0))

    matrix = cabw_viz.compare(step, net, backends=[], against={"faulty": faulty(net, step, fault=fault)}, repeats=1)
    first = matrix.worst.row.first
    assert first.index == (1, 2)
    assert first.candidate == 7.0
    step().backward()
    assert first.reference != 7.0
    row = matrix.details.query("parameter == '5.weight'").iloc[0]
    assert (row["first"], row["candidate"], row["mismatched"], row["elements"]) == ((1, 2), 7.0, 1, 192)


def test_a_run_that_raises_is_a_column(net, step):
    calls = [0]

    def sometimes():
        calls[0] += 1
        if calls[0] == 2:
            raise ValueError("not\ntoday")
        return step()

    matrix = cabw_viz.compare(step, net, backends=["eager"], against={"mine": sometimes})
    assert matrix.raised == {"mine": "ValueError: not\ntoday"}
    assert not matrix.ok
    assert set(matrix.frame["mine"]) == {"raises"}
    assert "mine raises in call 1 of 3: ValueError: not today" in matrix.differences
    assert set(matrix.details.query("run == 'mine'").call) == {0, 2}


def test_a_step_that_raises_in_eager_is_told_so(net):
    def broken():
        raise ValueError("no data")

    matrix = cabw_viz.compare(broken, net, backends=CHEAP)
    assert not matrix.ok
    assert matrix.summary == "The uncompiled step itself raises in every call: ValueError: no data"
    assert set(matrix.raised) == {"eager", "compiled_autograd"}


# ------------------------------------------------------------------------------------------------- what is not a fault


ROUNDED = "aot_eager_decomp_partition"
"""Takes batch norm apart, and so rounds otherwise; dropout it draws otherwise."""


def test_rounding_is_no_fault_not_even_in_a_gradient_that_should_be_zero(net, step):
    net[4].eval()
    matrix = cabw_viz.compare(step, net, backends=ROUNDED)
    assert matrix.ok, matrix
    details = matrix.details.set_index("parameter")
    assert set(details.loc["0.bias"].verdict) == {"within_noise"}  # a bias before a batch norm
    assert details.loc["0.bias"].max_rel_err.max() > 1e-2
    assert "~ within_noise" in repr(matrix)


@pytest.mark.parametrize("name", ["0.weight", "1.weight", "1.bias", "5.weight", "5.bias"])
def test_beside_rounding_a_fault_of_a_thousandth_is_found(net, step, name):
    net[4].eval()
    other = faulty(net, torch.compile(step, backend=ROUNDED), name=name)
    matrix = cabw_viz.compare(step, net, backends=[], against={"faulty": other})
    frame = matrix.frame["faulty"]
    assert list(frame.index[frame == "mismatch"]) == [name]


def test_a_gradient_that_should_be_zero_and_is_not_is_found(net, step):
    other = faulty(net, step, name="0.bias", fault=lambda grad: grad + 1e-3)
    matrix = cabw_viz.compare(step, net, backends=[], against={"faulty": other}, repeats=1)
    assert matrix.frame["faulty"]["0.bias"] == "mismatch"


def test_noise_of_eager_itself_is_no_fault():
    """Nondeterministic sums, as atomics on a GPU make them: each call is off by a few units in the last places."""
    w, x = torch.ones(50, requires_grad=True), torch.rand(50) + 0.5
    generator = torch.Generator().manual_seed(0)

    def step(size=3e-5):
        loss = (w * x).square().sum()
        loss.backward()
        w.grad = w.grad * (1 + size * torch.randn(50, generator=generator))
        return loss

    steady = cabw_viz.compare(step, {"w": w}, backends=CHEAP)
    assert steady.ok
    assert set(steady.details.query("kind == 'gradient'").verdict) == {"within_noise"}
    wild = cabw_viz.compare(lambda: step(0.1), {"w": w}, backends=CHEAP)
    assert not wild.ok
    assert "eager differs from itself" in repr(wild)
    faulty = cabw_viz.compare(step, {"w": w}, backends=[], against={"faulty": lambda: step(0.1)})
    assert not faulty.ok


def test_a_state_of_the_steps_own_excuses_nothing_and_is_told(net, step):
    count = [0]

    def drifting():
        count[0] += 1
        return step() * count[0]

    matrix = cabw_viz.compare(drifting, net, backends=CHEAP)
    assert not matrix.ok
    assert "a function that builds the step" in repr(matrix)

    def build():
        fresh, calls, x = conv_net(), [0], torch.randn(5, 2, 6, 6)

        def stepped():
            calls[0] += 1
            return fresh(x).square().mean() * calls[0]

        return stepped, fresh

    assert cabw_viz.compare(build, backends=CHEAP).ok


def test_in_bfloat16_a_backend_agrees_and_a_fault_of_a_tenth_is_found():
    def build(dtype=torch.bfloat16, factor=1.0):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)
        )
        x = torch.randn(8, 16).to(dtype)
        net.to(dtype)[3].weight.register_hook(lambda grad: grad * factor)
        return (lambda: net(x).square().mean()), net

    against = {"faulty": functools.partial(build, factor=1.1)}
    matrix = cabw_viz.compare(build, backends=ROUNDED, against=against, repeats=1)
    frame = matrix.frame
    assert set(frame[ROUNDED]) <= {"bitwise", "within_tolerance", "within_noise"}
    assert list(frame.index[frame["faulty"] == "mismatch"]) == ["3.weight"]


def test_under_autocast_a_step_is_judged_by_the_precision_in_which_it_computes(net):
    net[4].eval()
    x = torch.randn(5, 2, 6, 6)

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            return net(x).square().mean()

    other = faulty(net, step, fault=lambda grad: grad * 1.3)
    matrix = cabw_viz.compare(step, net, backends=ROUNDED, against={"faulty": other}, repeats=1)
    assert set(matrix.frame[ROUNDED]) <= {"bitwise", "within_tolerance", "within_noise"}, matrix
    assert list(matrix.frame.index[matrix.frame["faulty"] == "mismatch"]) == ["5.weight"]


def test_own_tolerances(net, step):
    other = {"faulty": faulty(net, step)}
    assert cabw_viz.compare(step, net, backends=[], against=other, rtol=2e-3, atol=0.0).ok
    assert not cabw_viz.compare(step, net, backends=[], against=other, rtol=5e-4, atol=0.0).ok
