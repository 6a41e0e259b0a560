"""`cabw_viz.compare`: other devices and dtypes, what is refused, reports, and the helper for tests."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.errors import CabwError
from tests.steps import CHEAP, conv_net, faulty, step_of


@pytest.fixture
def net():
    return conv_net()


@pytest.fixture
def step(net):
    return step_of(net)


# ------------------------------------------------------------------------------------------ other devices and dtypes


def build(device="cpu", dtype=torch.float32):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    x = torch.randn(5, 6).to(device, dtype)
    net.to(device, dtype)
    return (lambda: net(x).square().mean()), net


def test_dtypes():
    matrix = cabw_viz.compare(build, dtypes=["bfloat16", torch.float64], backends=CHEAP, repeats=1)
    assert matrix.ok, matrix
    assert matrix.runs == ("eager", "compiled_autograd", "float64/eager", "float64/compiled_autograd")
    errors = matrix.details.query("run == 'float64/eager' and kind == 'gradient'").max_rel_err
    assert errors.between(1e-4, 1.6e-2).all()
    noise = matrix.details.query("run == 'compiled_autograd' and kind == 'gradient'").noise
    assert (noise > 0).all()  # rounding, measured against float64
    assert matrix.report("float64/compiled_autograd").comparison.reference == "the run float64/eager"


def test_in_another_dtype_parameters_begin_with_the_values_of_the_first():
    def built(dtype):
        net = nn.Linear(2, 1).to(dtype)
        with torch.no_grad():
            net.weight.fill_(1.0 if dtype is torch.float32 else 5.0)
        return (lambda: net(torch.ones(1, 2, dtype=dtype)).square().sum()), net

    assert cabw_viz.compare(built, dtypes=["float32", "float64"], backends=["eager"], repeats=1).ok


def test_another_step_may_have_parameters_of_its_own(net, step):
    double = copy.deepcopy(net).double()
    with torch.no_grad():
        double[5].weight.fill_(3.0)
    x = step.__closure__[1].cell_contents.double()
    matrix = cabw_viz.compare(
        step, net, backends=[], against={"double": (lambda: double(x).square().mean(), double)}, repeats=1
    )
    assert set(matrix.frame["double"]) >= {"metadata"}  # the same values, in float64
    assert (double[5].weight == 3.0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_the_accelerator(dtype):
    backends = ["eager", "compiled_autograd", "aot_eager", "inductor"]
    matrix = cabw_viz.compare(build, devices=["cpu", "auto"], dtypes=[dtype], backends=backends)
    assert matrix.ok, matrix
    assert len(matrix.runs) == 8


# -------------------------------------------------------------------------------------------------- what is refused

MINE = {"mine": lambda: None}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"devices": ["cuda:99"]}, "there is no device 'cuda:99' here"),
        ({"devices": ["nonsense"]}, "one of cpu"),
        ({"devices": ["meta"]}, "have no values"),
        ({"dtypes": ["int8"]}, "'int8' is no dtype for gradients"),
        ({"dtypes": ["float33"]}, "float64, float32"),
        ({"backends": ["nope"]}, "one of eager, compiled_autograd, aot_eager"),
        ({"backends": ["eager", "eager"]}, "two runs are called 'eager'"),
        ({"against": {"eager": MINE["mine"]}}, "two runs are called 'eager'"),
        ({"against": {"as_is": MINE["mine"]}}, "two runs are called 'as_is'"),
        ({"against": {"mine": 3}}, r"against\['mine'\] is a int"),
        ({"against": {3: MINE["mine"]}}, "against with the key 3"),
        ({"against": [MINE["mine"]]}, "against of type list"),
        ({"repeats": 0}, "a whole number from 1"),
        ({"repeats": True}, "a whole number from 1"),
        ({"rtol": 1e-3}, "both or none"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_before_anything_runs(options, said):
    def never(device=None, dtype=None):
        raise AssertionError("was run")

    with pytest.raises(CabwError, match=said):
        cabw_viz.compare(never, **options)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (lambda net, step: (step, [net]), "compare\\(\\) got a list as its parameters"),
        (lambda net, step: (step, {"w": 1}), "the entry 'w': int"),
        (lambda net, step: (step, {"w": net[0].weight * 2}), "which is no leaf"),
        (lambda net, step: (3, net), "got a int as its step"),
        (lambda net, step: (step,), "it returned a Tensor"),
        (lambda net, step: (step, nn.Linear(2, 2)), "left no gradient in any of the parameters"),
        (lambda net, step: (lambda: step().detach(), net), "left no gradient"),
    ],
)
def test_a_step_or_parameters_that_cannot_be_are_refused(net, step, arguments, said):
    with pytest.raises(CabwError, match=said):
        cabw_viz.compare(*arguments(net, step))


@pytest.mark.parametrize("what", ["device", "dtype"])
def test_a_step_that_is_not_built_cannot_be_moved(net, step, what):
    with pytest.raises(CabwError, match=f"cannot be moved to another {what}.*\n.*builds step and parameters"):
        cabw_viz.compare(step, net, **{f"{what}s": ["cpu"] if what == "device" else ["float32"]})


# -------------------------------------------------------------------------------------------- reports, other's tests


def test_a_report_of_one_run_or_of_one_call(net, step):
    matrix = cabw_viz.compare(step, net, backends=["eager"], against={"faulty": faulty(net, step, calls=(1,))})
    whole, good, bad = matrix["faulty"], matrix.report("faulty", 0), matrix.report("faulty", 1)
    assert (whole.ok, good.ok, bad.ok) == (False, True, False)
    assert whole.worst.note == "in call 1 of 3"
    assert bad.worst.name == "5.weight"
    assert matrix["eager"].ok
    for wrong in ({"run": "nope"}, {"run": "eager", "call": 3}):
        with pytest.raises(CabwError, match="'eager', 'faulty', and a call from 0 to 2"):
            matrix.report(**wrong)


def test_assert_gradient_parity_returns_the_matrix(net, step):
    matrix = cabw_viz.testing.assert_gradient_parity(step, net, backends=CHEAP, repeats=1)
    assert matrix.ok


def test_assert_gradient_parity_names_run_call_parameter_and_values(net, step):
    def fault(grad):
        return grad.index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(7.0))

    against = {"faulty": faulty(net, step, fault=fault, calls=(1,))}
    with pytest.raises(AssertionError) as caught:
        cabw_viz.testing.assert_gradient_parity(step, net, backends=CHEAP, against=against)
    summary, line = str(caught.value).splitlines()
    assert summary == "1 of 3 runs differ: faulty in call 1 of 3 (worst 5.weight: mismatch)."
    assert line.startswith("  faulty in call 1 of 3: 5.weight: mismatch: 1 of 192 elements; first [1, 2]: ")
    assert re.search(r": \S+ in the reference, 7 here; max abs err \S+, max rel err \S+; ", line)


def test_assert_gradient_parity_tells_what_a_run_raised(net, step):
    def broken():
        raise ValueError("no data")

    with pytest.raises(AssertionError, match="broken raises in the one call: ValueError: no data"):
        cabw_viz.testing.assert_gradient_parity(step, net, backends=[], against={"broken": broken}, repeats=1)
