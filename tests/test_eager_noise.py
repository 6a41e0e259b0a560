"""Eager, rounded otherwise: what is changed, what is left alone, and which differences that explains."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.steps import StepCall
from cabw_viz.replay.steps.eager_noise import EagerNoise, EagerPerturbations
from cabw_viz.replay.steps.observing import CallResult
from cabw_viz.runtime.gradient_snapshots import Gradient

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_gradient_depends_on_is_changed_by_the_precision_of_its_dtype(dtype):
    x = torch.ones(1000, dtype=dtype, requires_grad=True)
    with EagerPerturbations().context():
        y = x * 1
    off = ((y - 1).abs() / torch.finfo(dtype).eps).detach().double()
    assert 0 < off.max() <= 2
    assert x._version == 0


def test_the_dtypes_in_which_a_step_computes_are_known_afterwards():
    perturbations, layer = EagerPerturbations(), torch.nn.Linear(4, 4)
    with perturbations.context(), torch.autocast("cpu", torch.bfloat16):
        layer(torch.ones(1, 4)).sum().backward()
    assert perturbations.dtypes == {torch.float32, torch.bfloat16}


def test_each_context_rounds_in_another_way_and_all_over_again():
    x = torch.ones(100, requires_grad=True)

    def drawn(context):
        with context():
            return (x * 1).detach()

    one, other = EagerPerturbations().context, EagerPerturbations().context
    first = drawn(one)
    assert not torch.equal(first, drawn(one))
    assert torch.equal(first, drawn(other))


def test_the_backward_is_rounded_too():
    x = torch.ones(100, requires_grad=True)
    with EagerPerturbations().context():
        (x.sum() * 3).backward()
    assert len(x.grad.unique()) > 1 or x.grad[0] != 3


def test_indices_and_random_numbers_are_left_alone():
    torch.manual_seed(0)
    expected, state = torch.rand(3), torch.get_rng_state()
    torch.manual_seed(0)
    x = torch.arange(100.0, requires_grad=True)
    with EagerPerturbations().context():
        assert torch.equal(torch.rand(3), expected)
        assert torch.equal(torch.arange(100.0).add(1).long(), torch.arange(1, 101))  # no gradient depends on it
        assert torch.equal(x.detach().floor().long(), torch.arange(100))
        assert torch.equal((x + 0.5).floor().long(), torch.arange(100))
        assert torch.equal(torch.zeros(5, requires_grad=True) * 1, torch.zeros(5))
    assert torch.equal(torch.get_rng_state(), state)


def test_memory_that_an_operator_shares_is_not_changed_twice():
    x = torch.ones(4, 4, requires_grad=True)
    with EagerPerturbations().context():
        view = torch.ops.aten._unsafe_view(x, [16])
    assert torch.equal(view, torch.ones(16))
    assert torch.equal(x, torch.ones(4, 4))


# ----------------------------------------------------------------------------------------- what noise explains


def row(error, name="w", verdict="mismatch", dtype="torch.float32", kind="gradient", size=1.0):
    return GradientComparison(name, verdict, error, error / size, (2,), dtype, kind=kind)


def noise(error, largest=1.0):
    references = [CallResult({("gradient", "big"): Gradient(torch.tensor([largest, -0.5]), None)})]
    return EagerNoise.none(references).including([StepCall(0, (row(error),))])


@pytest.mark.parametrize(
    ("error", "measured", "dtype", "verdict"),
    [
        (3.1e-5, 1e-6, "torch.float32", "within_noise"),  # 32 times
        (3.3e-5, 1e-6, "torch.float32", "mismatch"),
        (3.9e-2, 1e-2, "torch.bfloat16", "within_noise"),  # 4 times
        (4.1e-2, 1e-2, "torch.bfloat16", "mismatch"),
        (5e-4, 1e-3, "torch.float32", "mismatch"),  # the measured is more than rounding could be
        (1.0, 1.0, "torch.int64", "mismatch"),
        (1e-9, 0.0, "torch.float32", "mismatch"),
    ],
)
def test_a_mismatch_is_noise_up_to_a_limit(error, measured, dtype, verdict):
    assert noise(measured).apply_to(row(error, dtype=dtype)).verdict == verdict


def test_what_was_computed_in_half_precision_is_judged_as_that():
    half = replace(noise(1e-2), dtype=torch.bfloat16)
    assert half.apply_to(row(3.9e-2)).verdict == "within_noise"
    assert half.apply_to(row(4.1e-2)).verdict == "mismatch"
    assert half.apply_to(row(1.0, dtype="torch.int64")).verdict == "mismatch"


def test_only_a_mismatch_is_ever_excused():
    for verdict in ("missing", "unexpected", "nonfinite", "metadata", "bitwise", "within_tolerance"):
        assert noise(1.0).apply_to(row(0.0, verdict=verdict)).verdict == verdict
    assert noise(1e-6).apply_to(row(1e-6, name="another")).noise is None


def test_what_a_step_differs_by_from_itself_is_measured_by_its_largest_gradient():
    """A gradient that should be zero differs by all of its own size; it is rounding nevertheless."""
    steady = noise(0.0)
    assert steady.covers(row(1e-4, size=1e-4))
    assert not steady.covers(row(1e-3, size=1e3))
    assert steady.covers(row(1e-3, kind="loss", size=100.0))
    assert not steady.covers(row(1e-3, kind="loss", size=1.0))
    assert not steady.covers(GradientComparison("w", "missing", None, None, (2,), "torch.float32"))
    assert not steady.covers(row(1.0, dtype="torch.int64", kind="buffer"))


def test_gradients_that_are_not_finite_do_not_set_the_scale():
    references = [
        CallResult(
            {
                ("gradient", "a"): Gradient(torch.tensor([float("nan")]), None),
                ("gradient", "b"): Gradient(torch.tensor([2.0]), None),
                ("gradient", "c"): Gradient(torch.zeros(0), None),
                ("loss", ""): Gradient(torch.tensor(100.0), None),
            }
        )
    ]
    assert EagerNoise.none(references).largest == 2.0
    assert EagerNoise.none([]).largest == 0.0
