"""Eager, rounded otherwise: what is changed, what is left alone, and which differences that explains."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.steps import StepCall
from cabw_viz.replay.steps.eager_noise import EagerNoise, EagerPerturbations
from cabw_viz.replay.steps.observing import CallResult, ValueKey
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
        (4e-4, 1e-4, "torch.float32", "mismatch"),  # more than the root of the precision, 3.5e-4
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


def test_the_limit_is_that_of_each_gradient_and_not_of_the_largest_of_all():
    """A fault of all of a small gradient is no noise, whatever perturbed runs did to it."""
    assert noise(1e-4).apply_to(row(1e-4, size=1e-4)).verdict == "mismatch"
    assert noise(1e-8).apply_to(row(3e-8, size=1e-4)).verdict == "within_noise"


def measured_in_backward(error, in_backward):
    return replace(noise(error), of_backward={("gradient", "w"): in_backward})


def test_a_gradient_that_should_be_zero_may_differ_by_what_the_backward_rounds():
    zero = row(1e-6, size=1e-6)
    assert noise(1e-6).leaves_open(noise(1e-6).apply_to(zero))
    assert measured_in_backward(1e-6, 1e-7).apply_to(zero).verdict == "within_noise"
    assert not measured_in_backward(1e-6, 1e-7).leaves_open(noise(1e-6).apply_to(zero))
    huge = measured_in_backward(1e-2, 1e-2).apply_to(row(1e-2, size=1e-2))
    assert huge.verdict == "not_judged"  # beyond the root of the precision of the largest gradient


def test_what_only_a_choice_of_the_forward_explains_is_not_judged():
    judged = measured_in_backward(1e-4, 1e-12).apply_to(row(1e-4, size=1e-4))
    assert judged.verdict == "not_judged"
    assert "rounding turns a choice over" in judged.note
    assert measured_in_backward(1e-6, 1e-12).apply_to(row(1e-4, size=1e-4)).verdict == "mismatch"  # 100 times the noise


@pytest.mark.parametrize(
    ("dtype", "norm_err", "error", "verdict"),
    [
        ("torch.bfloat16", 0.2, 0.2, "within_noise"),
        ("torch.bfloat16", 0.3, 0.2, "not_judged"),  # more than a few choices make
        ("torch.bfloat16", 0.2, 0.5, "not_judged"),  # more than twice the noise
        ("torch.float32", 0.2, 0.2, "not_judged"),
    ],
)
def test_a_few_choices_that_turn_over_are_noise_in_half_precision(dtype, norm_err, error, verdict):
    turned = replace(row(error, dtype=dtype), norm_err=norm_err)
    assert measured_in_backward(0.2, 0.0).apply_to(turned).verdict == verdict


def test_what_eager_does_not_give_twice_is_not_reproducible():
    steady = noise(0.0)
    calls = [StepCall(0, (row(0.5), row(1e-5, "other", size=1.0)))]
    keys: frozenset[ValueKey] = frozenset({("gradient", "w")})
    assert steady.uncovered(calls) == keys
    unsteady = replace(steady, unsteady=keys)
    for verdict in ("bitwise", "within_tolerance", "mismatch", "nonfinite"):
        assert unsteady.apply_to(row(0.0, verdict=verdict)).verdict == "not_reproducible"
    assert unsteady.apply_to(row(0.0, verdict="missing")).verdict == "missing"
    assert unsteady.apply_to(row(0.0, name="other", verdict="bitwise")).verdict == "bitwise"


def test_only_the_backward_can_be_rounded_otherwise_and_what_it_recomputes_is_not():
    seen = []

    def block(x):
        seen.append(x * 3)
        return seen[-1].sin()

    x = torch.ones(100, requires_grad=True)
    with EagerPerturbations(only_backward=True).context():
        checkpoint(block, x, use_reentrant=False).sum().backward()
    assert [values.unique().tolist() for values in seen] == [[3.0], [3.0]]
    assert len(x.grad.unique()) > 1


def test_what_a_step_differs_by_from_itself_is_measured_by_itself_or_by_rounding_of_its_largest_gradient():
    """A gradient that should be zero differs by all of its own size; it is rounding nevertheless."""
    steady = noise(0.0)
    assert steady.covers(row(3e-6, size=3e-6))
    assert not steady.covers(row(1e-4, size=1e-4))
    assert steady.covers(row(1e-3, size=1e3))
    assert not steady.covers(row(1.0, size=1e3))
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


def test_kernels_that_call_others_on_conjugates_are_right_under_changes():
    """Below a dispatch mode alone `pinv` of a complex matrix comes out wrong, by more than its own size."""
    torch.manual_seed(0)
    a = torch.randn(4, 3, dtype=torch.complex64, requires_grad=True)
    expected = torch.linalg.pinv(a)
    with EagerPerturbations().context():
        changed = torch.linalg.pinv(a)
    assert 0 < (changed - expected).abs().max() < 1e-5 * expected.abs().max()
