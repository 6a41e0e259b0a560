"""Comparing gradients: tensors in, plain rows out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from cabw_viz import torch_adapter
from cabw_viz.numerics.chunks import chunks, is_finite, row_chunks
from cabw_viz.numerics.distance import in_float64
from cabw_viz.numerics.tolerance import Tolerance, has_digits
from cabw_viz.record.comparison import Element, GradientComparison
from cabw_viz.record.kinds import SEVERITY, Verdict
from cabw_viz.record.wording import counted
from cabw_viz.runtime.gradient_snapshots import Gradient, equal_bits

COMPARABLE_DEVICES = ("cpu", "cuda")
"""Gradients on other devices are compared on the CPU: not all of them have float64."""


def compare(
    name: str, reference: Gradient | None, candidate: Gradient | None, tolerance: Tolerance
) -> GradientComparison:
    """Compare one gradient with its reference; a side without a gradient is None.

    Of wrapper subclasses each inner tensor is compared, and the row is that of the worst. Elements that are NaN or
    infinite in the same way on both sides agree; `GradientComparison.nonfinite` counts them.
    """
    present = reference or candidate
    if present is None:
        raise ValueError(f"{name} has a gradient on neither side")
    shape, dtype = tuple(present.value.shape), str(present.value.dtype)
    if reference is None or candidate is None:
        verdict: Verdict = "unexpected" if reference is None else "missing"
        return GradientComparison(name, verdict, None, None, shape, dtype, present.value.numel())
    differences = metadata_differences(reference, candidate)
    sides = dense_parts(reference.value), dense_parts(candidate.value)
    differences = differences or _differences_of_parts(*sides)
    if differences:
        return GradientComparison(
            name, "metadata", None, None, shape, dtype, present.value.numel(), 0, "; ".join(differences)
        )
    rows = [(part, _compare_values(name, value, sides[1][part], tolerance)) for part, value in sides[0].items()]
    return rows[0][1] if len(rows) == 1 else _worst_of_parts(rows, shape, dtype)


def _worst_of_parts(
    rows: Sequence[tuple[str, GradientComparison]], shape: tuple[int, ...], dtype: str
) -> GradientComparison:
    """One row for a tensor of several: that of the part with the worst verdict."""
    part, worst = max(rows, key=lambda each: (SEVERITY.index(each[1].verdict), each[1].max_rel_err or 0.0))
    place = "" if worst.verdict == "bitwise" else f"in its inner tensor {part}"
    return replace(
        worst,
        shape=shape,
        dtype=dtype,
        elements=sum(row.elements for _, row in rows),
        mismatched=sum(row.mismatched for _, row in rows),
        nonfinite=sum(row.nonfinite for _, row in rows),
        note="; ".join(filter(None, (place, worst.note))),
    )


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


def dense_parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The dense tensors of which a tensor is made, without history, by name.

    The local part of a DTensor, a densified sparse tensor, and any other tensor that is one: under an empty name. A
    wrapper subclass: what its `__tensor_flatten__` names, and what is in those, as `values` or `inner.values`.
    """
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    inner = torch_adapter.inner_tensors(tensor)
    if not inner:
        return {"": tensor if tensor.layout is torch.strided else tensor.to_dense()}
    return {
        f"{name}.{further}".strip("."): part for name, value in inner for further, part in dense_parts(value).items()
    }


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor with the same values, without history; of a wrapper subclass all floating parts in a row."""
    parts = dense_parts(tensor)
    if len(parts) == 1:
        return next(iter(parts.values()))
    floating = [part.reshape(-1) for part in parts.values() if has_digits(part.dtype)]
    return torch.cat(floating) if floating else torch.zeros(0)


def _differences_of_parts(reference: dict[str, torch.Tensor], candidate: dict[str, torch.Tensor]) -> list[str]:
    """How two tensors are made of others in different ways."""
    if len(reference) == len(candidate) == 1:  # a subclass around one tensor is compared with a tensor as it is
        (reference,), (candidate,) = ([{"": value} for value in side.values()] for side in (reference, candidate))
    names = [", ".join(filter(None, side)) or "none" for side in (reference, candidate)]
    if names[0] != names[1]:
        return [f"inner tensors: {names[0]} | {names[1]}"]
    return [
        f"{attribute} of {part or 'its values'}: {sides[0]} | {sides[1]}"
        for part, value in reference.items()
        for attribute, sides in (
            ("shape", (tuple(value.shape), tuple(candidate[part].shape))),
            ("dtype", (value.dtype, candidate[part].dtype)),
        )
        if sides[0] != sides[1]
    ]


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
    is_bitwise = bitwise_equal(reference, candidate)
    note, nonfinite = "", 0
    if not (is_finite(reference) and (is_bitwise or is_finite(candidate))):
        masks = [~torch.isfinite(side) for side in (reference, candidate)]
        counts = [int(mask.sum()) for mask in masks]
        nonfinite = counts[0]
        if not (is_bitwise or equal_where_not_finite(reference, candidate)):
            place = first_element(masks[0] | masks[1], reference, candidate)
            note = f"not finite: {counts[0]} elements of the reference, {counts[1]} of the candidate"
            return GradientComparison(name, "nonfinite", None, None, shape, dtype, count, 0, note, place)
        note = f"{counted(nonfinite, 'element')} not finite, in the same way on both sides"
        reference, candidate = (reference, candidate) if is_bitwise else zeros_where_not_finite(reference, candidate)
    alike = GradientComparison(name, "bitwise", 0.0, 0.0, shape, dtype, count, note=note, nonfinite=nonfinite)
    return alike if is_bitwise else _with_values(alike, reference, candidate, tolerance)


def _with_values(
    row: GradientComparison, reference: torch.Tensor, candidate: torch.Tensor, tolerance: Tolerance
) -> GradientComparison:
    """A row with the differences of values that are finite."""
    scale = largest_size(reference)
    mismatched, largest = 0, 0.0
    for chunk in chunks(reference, candidate):
        errors, outside = _errors(chunk, tolerance, scale)
        mismatched += int(torch.count_nonzero(outside))
        largest = max(largest, float(errors.max()))
    relative = largest / scale if scale else (math.inf if largest else 0.0)
    verdict: Verdict = "mismatch" if mismatched else "within_tolerance"
    first = _first_difference(reference, candidate, tolerance, scale, outside=mismatched > 0) if largest else None
    return replace(row, verdict=verdict, max_abs_err=largest, max_rel_err=relative, mismatched=mismatched, first=first)


def largest_size(tensor: torch.Tensor) -> float:
    """The largest absolute value of a dense tensor, in float64."""
    return max((float(in_float64(chunk).abs().max()) for (chunk,) in chunks(tensor) if chunk.numel()), default=0.0)


def _errors(pair: tuple[torch.Tensor, ...], tolerance: Tolerance, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """By how much elements differ, and whether that is outside the tolerance, for references as large as `scale`."""
    expected, actual = map(in_float64, pair)
    errors = (actual - expected).abs()
    return errors, errors > tolerance.rtol * expected.abs() + tolerance.atol * scale + tolerance.floor


def _first_difference(
    reference: torch.Tensor, candidate: torch.Tensor, tolerance: Tolerance, scale: float, *, outside: bool
) -> Element:
    """The first element that differs, or that is outside the tolerance."""
    before = 0
    for chunk in row_chunks(reference, candidate):
        errors, beyond = _errors(chunk, tolerance, scale)
        differing = beyond if outside else errors > 0
        if bool(differing.any()):
            return _element(before + _first_true(differing), reference, candidate)
        before += errors.numel()
    raise ValueError("no element differs")


def equal_where_not_finite(reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    """Whether NaN and infinities stand in the same places, with the same signs of infinities."""
    sides = [torch.view_as_real(side.resolve_conj()) if side.is_complex() else side for side in (reference, candidate)]
    classes = [torch.nan_to_num(side, nan=2.0, posinf=1.0, neginf=-1.0) * ~torch.isfinite(side) for side in sides]
    return torch.equal(*classes)


def zeros_where_not_finite(*sides: torch.Tensor) -> list[torch.Tensor]:
    """Tensors of one shape, with 0 where any of them is not finite."""
    finite = torch.stack([torch.isfinite(side).to(sides[0].device) for side in sides]).all(0)
    return [
        torch.where(finite.to(side.device), side, torch.zeros((), dtype=side.dtype, device=side.device))
        for side in sides
    ]


def first_element(mask: torch.Tensor, reference: torch.Tensor, candidate: torch.Tensor) -> Element:
    """The first element for which a mask is true, in the order of the indices."""
    return _element(_first_true(mask), reference, candidate)


def _first_true(mask: torch.Tensor) -> int:
    return int(mask.reshape(-1).to(torch.uint8).argmax())


def _element(flat: int, reference: torch.Tensor, candidate: torch.Tensor) -> Element:
    index = tuple(int(position) for position in torch.unravel_index(torch.tensor(flat), reference.shape))
    return Element(index, reference[index].item(), candidate[index].item())


def bitwise_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two dense tensors of one shape and dtype hold the same bits; -0.0 is not 0.0."""
    try:
        return equal_bits(a, b)
    except (RuntimeError, TypeError):  # a tensor subclass without this view
        return torch.equal(a, b)
