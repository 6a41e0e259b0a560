"""Comparing gradients: tensors in, plain rows out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from cabw_viz.numerics.distance import in_float64
from cabw_viz.numerics.tolerance import Tolerance
from cabw_viz.record.comparison import Element, GradientComparison
from cabw_viz.record.kinds import Verdict
from cabw_viz.runtime.gradient_snapshots import Gradient, equal_bits

COMPARABLE_DEVICES = ("cpu", "cuda")
"""Gradients on other devices are compared on the CPU: not all of them have float64."""


def compare(
    name: str, reference: Gradient | None, candidate: Gradient | None, tolerance: Tolerance
) -> GradientComparison:
    """Compare one gradient with its reference; a side without a gradient is None."""
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
    """The attributes that differ, as `attribute: reference | candidate`."""
    differences = []
    for attribute in ("shape", "dtype", "layout", "device"):
        expected, actual = getattr(reference.value, attribute), getattr(candidate.value, attribute)
        if expected != actual:
            sides = (tuple(expected), tuple(actual)) if attribute == "shape" else (expected, actual)
            differences.append(f"{attribute}: {sides[0]} | {sides[1]}")
    if not differences and reference.strides is not None and candidate.strides is not None:
        shape = reference.value.shape
        if reference.value.numel() > 1 and _significant_strides(shape, reference.strides) != _significant_strides(
            shape, candidate.strides
        ):
            differences.append(f"strides: {reference.strides} | {candidate.strides}")
    return differences


def _significant_strides(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Strides of the dimensions along which there is more than one element."""
    return [stride for size, stride in zip(shape, strides, strict=True) if size > 1]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor with the same values: local part of a DTensor, densified sparse tensor, no history."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def aligned(candidate: Gradient, reference: torch.Tensor) -> Gradient:
    """A gradient on the reference's device and in its dtype; complex numbers stay complex."""
    dtype = reference.dtype if reference.is_complex() == candidate.value.is_complex() else candidate.value.dtype
    return Gradient(candidate.value.to(reference.device, dtype), None)


def on_comparable_device(gradient: Gradient) -> Gradient:
    """A gradient on its own device, if gradients can be compared there, or on the CPU."""
    if gradient.value.device.type in COMPARABLE_DEVICES:
        return gradient
    return Gradient(gradient.value.cpu(), None)


def _compare_values(
    name: str, reference: torch.Tensor, candidate: torch.Tensor, tolerance: Tolerance
) -> GradientComparison:
    shape, dtype, count = tuple(reference.shape), str(reference.dtype), reference.numel()
    masks = [~torch.isfinite(side) for side in (reference, candidate)]
    nonfinite = [int(mask.sum()) for mask in masks]
    if any(nonfinite):
        first = first_element(masks[0] | masks[1], reference, candidate)
        note = f"not finite: {nonfinite[0]} elements of the reference, {nonfinite[1]} of the candidate"
        note += "; equal bit by bit" if bitwise_equal(reference, candidate) else ""
        return GradientComparison(name, "nonfinite", None, None, shape, dtype, count, 0, note, first)
    if bitwise_equal(reference, candidate):
        return GradientComparison(name, "bitwise", 0.0, 0.0, shape, dtype, count)
    expected = in_float64(reference)
    errors = (in_float64(candidate) - expected).abs()
    sizes = expected.abs()
    scale = float(sizes.max())
    outside = errors > tolerance.rtol * sizes + tolerance.atol * scale
    mismatched = int(outside.sum())
    largest = float(errors.max())
    relative = largest / scale if scale else (math.inf if largest else 0.0)
    verdict: Verdict = "mismatch" if mismatched else "within_tolerance"
    first = first_element(outside if mismatched else errors > 0, reference, candidate)
    return GradientComparison(name, verdict, largest, relative, shape, dtype, count, mismatched, first=first)


def first_element(mask: torch.Tensor, reference: torch.Tensor, candidate: torch.Tensor) -> Element:
    """The first element for which a mask is true, in the order of the indices."""
    flat = int(mask.reshape(-1).to(torch.uint8).argmax())
    index = tuple(int(position) for position in torch.unravel_index(torch.tensor(flat), reference.shape))
    return Element(index, reference[index].item(), candidate[index].item())


def bitwise_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two dense tensors of one shape and dtype hold the same bits; -0.0 is not 0.0."""
    try:
        return equal_bits(a, b)
    except (RuntimeError, TypeError):  # a tensor subclass without this view
        return torch.equal(a, b)
