"""Comparing gradients: tensors in, plain rows out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cabw_viz.errors import CabwError
from cabw_viz.record.comparison import Element, GradientComparison
from cabw_viz.record.kinds import Verdict
from cabw_viz.runtime.gradient_snapshots import Gradient, equal_bits


@dataclass(frozen=True)
class Tolerance:
    """How far two gradients may be apart.

    An element may differ by `rtol` times its own size plus `atol` times the largest size in the whole reference:
    torch.testing's rule, read at the scale of the gradient. So a gradient of 1e-9 is not waved through by an
    absolute tolerance meant for values around 1, and an element near zero in a large gradient raises no alarm.
    """

    rtol: float
    atol: float


def tolerance_for(dtype: torch.dtype, rtol: float | None = None, atol: float | None = None) -> Tolerance:
    """The tolerance for a dtype: the one given, or torch.testing's default.

    Raises:
        CabwError: one of the two is given without the other, or is negative or no number.
    """
    if (rtol is None) != (atol is None):
        raise CabwError(f"rtol={rtol}, atol={atol}", expected="both or none", try_="rtol=1e-4, atol=1e-5")
    if rtol is not None and atol is not None:
        if not all(map(_is_tolerance, (rtol, atol))):
            raise CabwError(f"rtol={rtol!r}, atol={atol!r}", expected="two numbers from 0", try_="rtol=1e-4, atol=1e-5")
        return Tolerance(rtol, atol)
    return Tolerance(*DEFAULTS.get(dtype, (0.0, 0.0)))


def _is_tolerance(given: object) -> bool:
    return isinstance(given, int | float) and math.isfinite(given) and given >= 0


# torch.testing.assert_close, documented in its reference.
DEFAULTS: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}


def compare(
    name: str, reference: Gradient | None, candidate: Gradient | None, tolerance: Tolerance
) -> GradientComparison:
    """Judge one gradient against its reference; a side that has none is None."""
    present = reference or candidate
    if present is None:
        raise ValueError(f"{name} has a gradient on neither side")
    shape, dtype = tuple(present.value.shape), str(present.value.dtype)
    if reference is None or candidate is None:
        verdict: Verdict = "unexpected" if reference is None else "missing"
        return GradientComparison(name, verdict, None, None, shape, dtype, present.value.numel())
    differences = metadata_differences(reference, candidate)
    if differences:
        return GradientComparison(
            name, "metadata", None, None, shape, dtype, present.value.numel(), 0, "; ".join(differences)
        )
    return _compare_values(name, plain(reference.value), plain(candidate.value), tolerance)


def metadata_differences(reference: Gradient, candidate: Gradient) -> list[str]:
    """What differs beside the values, `attribute: reference | candidate`."""
    found = []
    for attribute in ("shape", "dtype", "layout", "device"):
        ours, theirs = getattr(reference.value, attribute), getattr(candidate.value, attribute)
        if ours != theirs:
            shown = (tuple(ours), tuple(theirs)) if attribute == "shape" else (ours, theirs)
            found.append(f"{attribute}: {shown[0]} | {shown[1]}")
    if not found and reference.strides is not None and candidate.strides is not None:
        shape = reference.value.shape
        if reference.value.numel() > 1 and _significant(shape, reference.strides) != _significant(
            shape, candidate.strides
        ):
            found.append(f"strides: {reference.strides} | {candidate.strides}")
    return found


def _significant(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Strides of the dimensions along which there is more than one element."""
    return [stride for size, stride in zip(shape, strides, strict=True) if size > 1]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor with the same values: local part of a DTensor, densified sparse tensor, no history."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _compare_values(
    name: str, reference: torch.Tensor, candidate: torch.Tensor, tolerance: Tolerance
) -> GradientComparison:
    shape, dtype, count = tuple(reference.shape), str(reference.dtype), reference.numel()
    infinite = [~torch.isfinite(side) for side in (reference, candidate)]
    wrong = [int(side.sum()) for side in infinite]
    if any(wrong):
        infinity = first_element(infinite[0] | infinite[1], reference, candidate)
        note = f"not finite: {wrong[0]} elements of the reference, {wrong[1]} of the candidate"
        note += "; equal bit by bit" if bitwise_equal(reference, candidate) else ""
        return GradientComparison(name, "nonfinite", None, None, shape, dtype, count, 0, note, infinity)
    if bitwise_equal(reference, candidate):
        return GradientComparison(name, "bitwise", 0.0, 0.0, shape, dtype, count)
    wide = torch.complex128 if reference.is_complex() else torch.float64
    exact = reference.to(wide)
    distance = (candidate.to(wide) - exact).abs()
    size = exact.abs()
    scale = float(size.max())
    outside = distance > tolerance.rtol * size + tolerance.atol * scale
    mismatched = int(outside.sum())
    largest = float(distance.max())
    relative = largest / scale if scale else (math.inf if largest else 0.0)
    verdict: Verdict = "mismatch" if mismatched else "within_tolerance"
    first = first_element(outside if mismatched else distance > 0, reference, candidate)
    return GradientComparison(name, verdict, largest, relative, shape, dtype, count, mismatched, first=first)


def first_element(picked: torch.Tensor, reference: torch.Tensor, candidate: torch.Tensor) -> Element:
    """The first of the picked elements, in the order of their indices."""
    place = int(picked.reshape(-1).to(torch.uint8).argmax())
    index = tuple(int(position) for position in torch.unravel_index(torch.tensor(place), reference.shape))
    return Element(index, reference[index].item(), candidate[index].item())


def bitwise_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two dense tensors of one shape and dtype hold the same bits; -0.0 is not 0.0."""
    try:
        return equal_bits(a, b)
    except (RuntimeError, TypeError):  # a tensor subclass without this view
        return torch.equal(a, b)
