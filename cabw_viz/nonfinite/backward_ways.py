"""How a step of the backward makes NaN or infinity: by what it is, what it has saved, and what flows in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from cabw_viz.nonfinite import operators
from cabw_viz.nonfinite.backward_steps import BackwardStep
from cabw_viz.nonfinite.bounds import is_result, largest_number
from cabw_viz.nonfinite.forward import ForwardSearch
from cabw_viz.nonfinite.kept_values import KeptValues
from cabw_viz.nonfinite.operators import op_of
from cabw_viz.record.model import SavedTensor
from cabw_viz.record.nonfinite import ValueRange, Way
from cabw_viz.runtime.gradient_snapshots import Gradient


@dataclass(frozen=True)
class Ways:
    """How it is made: of several it is one, and not known which; of none nothing is known."""

    ways: tuple[Way, ...] = ()
    note: str = ""
    saved: tuple[SavedTensor, ...] = field(default=())
    """The saved tensors that hold NaN or infinity themselves, where these pass it on."""


class BackwardWays:
    """What the steps of one backward have made."""

    def __init__(self, kept: KeptValues, forward: ForwardSearch) -> None:
        self._kept, self._forward = kept, forward

    def of(self, step: BackwardStep, into: Sequence[ValueRange], out: ValueRange | None) -> Ways:
        """How a step makes what is not finite of finite gradients, or NaN of infinite ones."""
        if step.kind == "hook":
            return Ways(("hook",))
        if step.kind == "in_place_write":
            return Ways(("hook", "in_place_write"))
        infinite = any(values.infinities for values in into)
        if step.kind == "gradient_sum":
            return Ways(("infinity_minus_infinity",) if infinite else ("overflow",))
        saved = self._nonfinite_saved(step)
        if saved:
            return self._of_saved(step, saved, into, out)
        if step.kind in ("custom_function", "cpp_function"):
            return Ways(("custom_function",))
        if step.kind == "aot_backward":
            return Ways(("compiled_region",))
        if infinite:
            return self._of_infinity(step, into)
        return self._of_formula(step, out)

    # -- saved tensors that are not finite ---------------------------------------------------------------------

    def _nonfinite_saved(self, step: BackwardStep) -> list[SavedTensor]:
        rows = []
        for row in step.node.saved:
            values = None if row.packed else self._kept.saved_range(step.node.number, row)
            if values is not None and not values.is_finite and not self._is_mask_of_softmax(step, row, values):
                rows.append(row)
        return rows

    @staticmethod
    def _is_mask_of_softmax(step: BackwardStep, row: SavedTensor, values: ValueRange) -> bool:
        """Whether it is an attention's mask, or what a softmax has made of one: the formulas allow for these."""
        placed = not values.nans and not values.positive
        op = op_of(step.node.name)
        return placed and (row.field in ("attn_mask", "attn_bias") or (op == "LogSoftmax" and row.field == "result"))

    def _of_saved(
        self, step: BackwardStep, saved: list[SavedTensor], into: Sequence[ValueRange], out: ValueRange | None
    ) -> Ways:
        ranges = [self._kept.saved_range(step.node.number, row) for row in saved]
        if any(values is not None and values.nans for values in ranges):
            return Ways(("passed_on",), saved=tuple(saved))
        meets_zero = any(values.zeros for values in into)
        is_product = op_of(step.node.name) in operators.BACKWARD_GROWING
        if out is not None and out.nans and meets_zero and is_product:
            return Ways(("zero_times_infinity",), saved=tuple(saved))
        return Ways(("passed_on",), saved=tuple(saved))

    # -- infinities that flow in -------------------------------------------------------------------------------

    def _of_infinity(self, step: BackwardStep, into: Sequence[ValueRange]) -> Ways:
        """What makes a NaN of them: a product with 0, or a sum of both signs."""
        op = op_of(step.node.name)
        if op not in operators.BACKWARD_GROWING:
            return Ways()
        rows = [row for row in step.node.saved if op not in ("Exp", "Relu") or is_result(step.node, row)]
        saved = [self._kept.saved_range(step.node.number, row) for row in rows]
        ways: list[Way] = []
        if op in ("Relu", "Abs", "Clone") and not saved:
            return Ways()
        if not saved or any(values is None or values.zeros is None or values.zeros for values in saved):
            ways.append("zero_times_infinity")
        if op not in ("Mul", "Exp", "Tanh", "Sigmoid", "Relu", "Neg", "Abs") or any(
            values.positive and values.negative for values in into
        ):
            ways.append("infinity_minus_infinity")
        return Ways(tuple(ways))

    # -- finite gradients and finite saved tensors -------------------------------------------------------------

    def _of_formula(self, step: BackwardStep, out: ValueRange | None) -> Ways:
        op = op_of(step.node.name)
        if op in operators.POLES:
            return self._of_pole(step, op)
        if op in operators.BACKWARD_GROWING and self._has_read_all(step):
            return Ways(("overflow",), _size_note(out))
        return Ways()

    def _has_read_all(self, step: BackwardStep) -> bool:
        """Whether all that a formula has saved is known to be finite."""
        numbers = [row for row in step.node.saved if not _is_integral(row)]
        return all(not row.packed and self._kept.saved_is_finite(step.node.number, row) for row in numbers)

    def _of_pole(self, step: BackwardStep, op: str) -> Ways:
        """A formula that divides by a saved tensor: where that is at its pole, and nowhere else, it is the division."""
        name, poles = operators.POLES[op]
        row = next((row for row in step.node.saved if row.field == name), None)
        divisor = None if row is None else self._kept.saved_tensor(step.node.number, row)
        if divisor is None:
            return Ways()
        with torch.no_grad():
            at_pole = torch.zeros_like(divisor, dtype=torch.bool)
            for pole in poles:
                at_pole |= divisor == pole
            if not bool(at_pole.any()):
                return Ways(("overflow",) if op != "Pow" and not _is_negative(divisor, op) else ())
            spots = _spots(step, at_pole)
        made: Way = "root_at_zero" if op in operators.ROOTS else "division_by_zero"
        if spots is None or spots.share == "some":
            return Ways((made, "overflow"))
        if spots.share == "none":
            return Ways(("overflow",) if op != "Pow" or spots.are_infinite else ("outside_domain",))
        if spots.have_zero_gradient:
            return Ways(("zero_times_infinity",), f"the derivative is infinite where {name} is {poles[0]:g}")
        return Ways((made,), f"{name} is {' or '.join(f'{pole:g}' for pole in poles)} in {int(at_pole.sum()):,} places")


def _size_note(out: ValueRange | None) -> str:
    largest = 0.0 if out is None else largest_number(out.dtype)
    return f"the largest number of {out.dtype.removeprefix('torch.')} is {largest:.5g}" if out and largest else ""


def _is_negative(divisor: torch.Tensor, op: str) -> bool:
    return op == "Sqrt" and bool((divisor < 0).any())


def _is_integral(row: SavedTensor) -> bool:
    return not row.dtype.removeprefix("torch.").startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True)
class _Spots:
    """The elements of a formula's results that are not finite."""

    share: Literal["all", "some", "none"]
    """Whether they stand where the formula divides by zero."""
    have_zero_gradient: bool
    """Whether the gradient that flows in is 0 at each of them."""
    are_infinite: bool
    """Whether none of them is NaN."""


def _spots(step: BackwardStep, at_pole: torch.Tensor) -> _Spots | None:
    """None where shapes do not show which element is which, or the gradients were not kept in full."""
    outputs = [each.value for each in step.outputs if isinstance(each, Gradient)]
    inputs = [each.value for each in step.inputs if isinstance(each, Gradient)]
    if not outputs or len(inputs) != 1 or len(outputs) < len([each for each in step.outputs if each is not None]):
        return None
    poles, zeros, infinite = [], [], []
    try:
        for output in outputs:
            bad = ~torch.isfinite(output)
            poles.append(at_pole.expand_as(bad)[bad])
            zeros.append(inputs[0].expand_as(bad)[bad] == 0)
            infinite.append(output[bad].isinf())
    except RuntimeError:
        return None
    stand = torch.cat(poles)
    share: Literal["all", "some", "none"] = "all" if bool(stand.all()) else "some" if bool(stand.any()) else "none"
    return _Spots(share, bool(torch.cat(zeros).all()), bool(torch.cat(infinite).all()))
