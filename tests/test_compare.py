"""Judging one gradient: verdicts and errors against values calculated by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._internal.two_tensor import TwoTensor

from cabw_viz.errors import CabwError
from cabw_viz.numerics.compare import bitwise_equal, compare
from cabw_viz.numerics.tolerance import TOLERANCES, Tolerance, tolerance_for
from cabw_viz.runtime.gradient_snapshots import Gradient

EXACT = Tolerance(0.0, 0.0)
FLOAT32 = Tolerance(1.3e-6, 1e-5)


def gradient(values, **options):
    tensor = torch.as_tensor(values, **options)
    return Gradient(tensor, tuple(tensor.stride()))


def judge(reference, candidate, tolerance=FLOAT32):
    return compare("w", reference, candidate, tolerance)


def test_bitwise():
    row = judge(gradient([1.0, -2.0]), gradient([1.0, -2.0]), EXACT)
    assert (row.verdict, row.max_abs_err, row.max_rel_err, row.mismatched) == ("bitwise", 0.0, 0.0, 0)
    assert (row.name, row.shape, row.dtype, row.elements) == ("w", (2,), "torch.float32", 2)


def test_a_negative_zero_is_equal_but_not_bitwise():
    assert judge(gradient([0.0, 1.0]), gradient([-0.0, 1.0]), EXACT).verdict == "within_tolerance"


def test_errors_are_the_largest_difference_and_that_over_the_largest_reference():
    row = judge(gradient([1.0, -4.0, 2.0]), gradient([1.5, -4.25, 2.0]), EXACT)
    assert (row.max_abs_err, row.max_rel_err, row.mismatched) == (0.5, 0.125, 2)
    assert row.verdict == "mismatch"


@pytest.mark.parametrize("scale", [1e-20, 1e-9, 1.0, 1e9, 1e20])
def test_the_scale_of_a_gradient_does_not_matter(scale):
    reference = torch.tensor([1.0, 0.5, 1e-7], dtype=torch.float64) * scale
    wrong, close = reference * 1.001, reference + torch.tensor([0, 0, 5e-6], dtype=torch.float64) * scale
    assert judge(gradient(reference), gradient(wrong)).verdict == "mismatch"
    assert judge(gradient(reference), gradient(close)).verdict == "within_tolerance"  # near zero, in a large gradient


def test_a_zero_reference_admits_nothing_else():
    row = judge(gradient([0.0, 0.0]), gradient([0.0, 1e-30]))
    assert (row.verdict, row.max_rel_err, row.mismatched) == ("mismatch", math.inf, 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_in_the_same_way_on_both_sides_agrees_and_the_others_are_compared(value):
    both = judge(gradient([1.0, value]), gradient([1.0, value]))
    assert (both.verdict, both.nonfinite, both.first) == ("bitwise", 1, None)
    assert both.note == "1 element not finite, in the same way on both sides"
    close = judge(gradient([1.0, value, 2.0]), gradient([1.0, value, 2.0 + 1e-6]))
    assert (close.verdict, close.nonfinite, close.first.index) == ("within_tolerance", 1, (2,))
    assert close.max_rel_err == pytest.approx(5e-7, rel=0.1)
    wrong = judge(gradient([1.0, value, 2.0]), gradient([1.0, value, 3.0]))
    assert (wrong.verdict, wrong.max_abs_err, wrong.mismatched) == ("mismatch", 1.0, 1)
    one = judge(gradient([1.0, 2.0]), gradient([value, value]))
    assert one.verdict == "nonfinite"
    assert "0 elements of the reference, 2 of the candidate" in one.note


def test_other_infinities_in_the_same_places_do_not_agree():
    values = [math.nan, math.inf, -math.inf]
    for one in values:
        for other in values:
            same = repr(one) == repr(other)
            assert (judge(gradient([1.0, one]), gradient([1.0, other])).verdict == "bitwise") == same
    assert judge(gradient([complex(1, math.inf)]), gradient([complex(math.inf, 1)])).verdict == "nonfinite"
    assert judge(gradient([complex(1, math.inf)]), gradient([complex(1, math.inf)])).verdict == "bitwise"
    moved = judge(gradient([math.nan, 1.0]), gradient([1.0, math.nan]))
    assert (moved.verdict, moved.first.index) == ("nonfinite", (0,))


def test_missing_and_unexpected():
    assert judge(gradient([1.0]), None).verdict == "missing"
    assert judge(None, gradient([1.0])).verdict == "unexpected"


@pytest.mark.parametrize(
    ("candidate", "note"),
    [
        (gradient([[1.0, 2.0]]), "shape: (2,) | (1, 2)"),
        (gradient([1.0, 2.0], dtype=torch.float64), "dtype: torch.float32 | torch.float64"),
        (Gradient(torch.tensor([1.0, 2.0]).to_sparse(), None), "layout: torch.strided | torch.sparse_coo"),
        (gradient([1.0, 2.0], device="meta"), "device: cpu | meta"),
    ],
)
def test_metadata(candidate, note):
    row = judge(gradient([1.0, 2.0]), candidate)
    assert row.verdict == "metadata"
    assert note in row.note


def test_memory_format():
    plain = torch.arange(16.0).reshape(1, 2, 2, 4)
    channels_last = plain.contiguous(memory_format=torch.channels_last)
    row = judge(gradient(plain), gradient(channels_last))
    assert row.verdict == "metadata"
    assert row.note == "strides: (16, 8, 4, 1) | (16, 1, 8, 2)"
    # The first stride is that of a dimension of size 1: it means nothing.
    strange = torch.as_strided(plain, (1, 2, 2, 4), (1, 8, 4, 1))
    assert judge(gradient(plain), gradient(strange)).verdict == "bitwise"
    # An accumulated gradient's strides are .grad's own affair.
    assert judge(Gradient(plain, None), gradient(channels_last)).verdict == "bitwise"


def test_sparse_gradients_are_compared_by_value():
    one = torch.sparse_coo_tensor([[0, 2, 2]], [1.0, 2.0, 3.0], (4,), check_invariants=True)
    assert judge(Gradient(one, None), Gradient(one.coalesce(), None)).verdict == "bitwise"
    assert judge(Gradient(one, None), Gradient(one * 2, None)).max_abs_err == 5.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_smallest_numbers_of_a_dtype_are_rounded_by_its_smallest_step(dtype):
    limits = torch.finfo(dtype)
    step = limits.smallest_normal * limits.eps
    tolerance = tolerance_for(dtype)
    one = torch.tensor([5 * step, 9 * step], dtype=torch.float64).to(dtype)
    two_more, many_more = ((one.double() + count * step).to(dtype) for count in (2, 3))
    assert judge(gradient(one), gradient(two_more), tolerance).verdict == "within_tolerance"
    assert judge(gradient(one), gradient(many_more), tolerance).verdict == "mismatch"
    normal = torch.tensor([limits.smallest_normal * 2**6], dtype=dtype)
    assert judge(gradient(normal), gradient(normal * 1.25), tolerance).verdict == "mismatch"
    exact = tolerance_for(dtype, 0.0, 0.0)  # the user's own tolerance has no such floor
    assert judge(gradient(one), gradient(two_more), exact).verdict == "mismatch"


def test_every_inner_tensor_of_a_subclass_is_compared():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    two = Gradient(TwoTensor(a, b), None)
    assert judge(two, Gradient(TwoTensor(a.clone(), b.clone()), None)).verdict == "bitwise"
    for wrong in (TwoTensor(a, b * 3), TwoTensor(a * 3, b)):
        row = judge(two, Gradient(wrong, None))
        assert (row.verdict, row.mismatched, row.elements) == ("mismatch", 2, 4)
        assert row.note == f"in its inner tensor {'b' if wrong.a is a else 'a'}"
    nested = TwoTensor(TwoTensor(a, b), TwoTensor(b, a))
    row = judge(Gradient(nested, None), Gradient(TwoTensor(TwoTensor(a, b), TwoTensor(b, a * 2)), None))
    assert (row.verdict, row.note) == ("mismatch", "in its inner tensor b.b")
    assert not bitwise_equal(nested, TwoTensor(TwoTensor(a, b), TwoTensor(b, a * 2)))
    assert bitwise_equal(nested, TwoTensor(TwoTensor(a, b), TwoTensor(b, a)))
    row = judge(two, gradient(a))
    assert (row.verdict, row.note) == ("metadata", "inner tensors: a, b | none")


def test_complex_gradients():
    row = judge(gradient([1 + 1j, 0j]), gradient([1 + 1j, 3 + 4j]), EXACT)
    assert (row.verdict, row.max_abs_err) == ("mismatch", 5.0)
    assert judge(gradient([1 + 1j]), Gradient(torch.tensor([1 - 1j]).conj(), (1,))).verdict == "bitwise"


def test_an_empty_gradient_is_bitwise():
    assert judge(gradient(torch.zeros(0, 3)), gradient(torch.zeros(0, 3))).verdict == "bitwise"


@pytest.mark.parametrize("dtype", [dtype for dtype in TOLERANCES if dtype is not torch.complex32])  # has no `ones`
def test_default_tolerances_are_those_of_torch_testing(dtype):
    """torch.testing.assert_close takes a difference just inside ours and refuses one just outside."""
    tolerance = tolerance_for(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    limit = tolerance.rtol + tolerance.atol
    options = {"rtol": tolerance.rtol, "atol": tolerance.atol}
    one = torch.ones(1, dtype=wide)
    torch.testing.assert_close(one * (1 + limit * 0.999), one, **options)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(one * (1 + limit * 1.001), one, **options)
    with pytest.raises(AssertionError, match=r"up to \S+ allowed") as error:
        torch.testing.assert_close(torch.zeros(1, dtype=dtype), torch.full((1,), 2.0, dtype=dtype))
    assert f"{tolerance.atol} allowed" in str(error.value)
    assert f"{tolerance.rtol} allowed" in str(error.value)


@pytest.mark.parametrize(
    "bad", [{"rtol": 1e-3}, {"atol": 1e-3}, {"rtol": -1.0, "atol": 0.0}, {"rtol": math.nan, "atol": 0.0}]
)
def test_half_or_senseless_tolerances_are_refused(bad):
    with pytest.raises(CabwError, match="rtol="):
        tolerance_for(torch.float32, **bad)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 31))
def test_one_flipped_bit_is_never_bitwise(values, position, bit):
    one = torch.tensor(values, dtype=torch.float32)
    other = one.clone()
    flipped = other.view(torch.int32)
    flipped[position % len(values)] ^= -(2**31) if bit == 31 else 2**bit
    assert bitwise_equal(one, one.clone())
    assert not bitwise_equal(one, other)
