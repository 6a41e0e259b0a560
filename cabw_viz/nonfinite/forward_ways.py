"""By which forward ops, and how, a NaN or an infinity was made that a saved tensor shows.

Between the result that shows it and what is known to be finite lie ops of which nothing was saved. All of these may
have made it; what each can make of finite numbers is known for most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cabw_viz.nonfinite import operators
from cabw_viz.nonfinite.bounds import Bounds
from cabw_viz.nonfinite.kept_values import KeptValues
from cabw_viz.nonfinite.operators import op_of
from cabw_viz.record.model import AutogradNode
from cabw_viz.record.nonfinite import ValueRange, Way

LARGEST_REGION = 400
"""Ops of a region that are looked at; of a larger one nothing is said."""


@dataclass(frozen=True)
class Region:
    """The ops that may have made it."""

    makers: tuple[int, ...]
    """Numbers of their nodes, at least one: the nearest to what shows it first."""
    ways: tuple[Way, ...]


class ForwardWays:
    """What the forward ops of one backward can have made."""

    def __init__(self, kept: KeptValues, bounds: Bounds) -> None:
        self._kept, self._record, self._bounds = kept, kept.record, bounds

    def region(self, node: AutogradNode, values: ValueRange | None) -> Region:
        """The ops that may have made what was seen in the result of one.

        Args:
            node: of that op.
            values: of the result; None where the result was not kept, and what the op took shows it.
        """
        sure = self._from_what_it_took(node)
        if sure is not None:
            return Region((node.number,), sure)
        numbers = self._unknown_before(node.number)
        if numbers is None:
            return Region((node.number,), ())
        if op_of(node.name) in operators.FUSED_SOFTMAX and self._is_masked(node, numbers, values):
            return Region((node.number,), ("masked_row",))
        ways: list[Way] = ["masked_row"] if self._may_be_masked(node, numbers, values) else []
        makers: list[int] = [node.number] if ways else []
        is_known = True
        for number in numbers:
            each = self._record.by_number[number]
            own = self._own_ways(each, values, alone=len(numbers) == 1)
            if own is None:
                is_known = False
            if (own or own is None) and number not in makers:
                makers.append(number)
                ways += own or ()
        return Region(tuple(makers) or (node.number,), tuple(dict.fromkeys(ways)) if is_known else ())

    def _unknown_before(self, number: int) -> list[int] | None:
        """A node and those before it in the forward whose results are not known to be finite, the nearest first."""
        numbers = [number]
        for each in numbers:
            for edge in self._record.by_number[each].edges:
                target = self._record.by_number[edge.target]
                if edge.target in numbers or (target.kind == "accumulate_grad" and self._kept.leaf_range(target)):
                    continue
                if not self._bounds.is_finite(edge.target):
                    numbers.append(edge.target)
            if len(numbers) > LARGEST_REGION:
                return None
        return numbers

    def _from_what_it_took(self, node: AutogradNode) -> tuple[Way, ...] | None:
        """How an op made it of what it is known to have taken; None where that shows nothing."""
        op = op_of(node.name)
        if op in operators.DOMAINS and (taken := self._kept.field(node, "self")) is not None and taken.is_finite:
            domain = operators.DOMAINS[op]
            ways: tuple[Way, ...] = ("outside_domain",) if taken.low < domain else ()
            at_zero = taken.zeros if not domain else taken.low == domain
            return (*ways, *(("log_of_zero",) if at_zero and not ways else ())) or None
        if op == "Div" and (divisor := self._kept.field(node, "other")) is not None and divisor.zeros:
            return ("division_by_zero",)
        return None

    def _own_ways(self, node: AutogradNode, values: ValueRange | None, *, alone: bool) -> tuple[Way, ...] | None:
        """How an op can make NaN or infinity of finite numbers: empty if it cannot, None if that is not known."""
        if node.kind in ("custom_function", "cpp_function"):
            return ("custom_function",)
        if node.kind == "aot_backward":
            return ("compiled_region",)
        op = op_of(node.name)
        has_constant = len(node.edges) < node.outputs
        nans_alone = values is not None and values.nans > 0 and not values.infinities
        if op in ("Add", "Sub") and has_constant and alone and nans_alone:
            return ("held",)  # finite numbers have no sum that is NaN
        held: tuple[Way, ...] = ("held",) if has_constant and op in ("Add", "Sub", "Cat", "Stack", "Where") else ()
        if op in ("Sqrt", "Rsqrt", "Reciprocal", "Pow"):
            return self._root_ways(op, node, values)
        if op in operators.PASSING or op in operators.BOUNDED or op in operators.NEVER_LARGER or op == "LogSoftmax":
            return held
        if op in operators.GROWING:
            return (*held, "overflow")
        if op == "Div":
            divisor = self._kept.field(node, "other")
            return ("overflow",) if divisor is not None and divisor.zeros == 0 else ("division_by_zero", "overflow")
        return None

    def _root_ways(self, op: str, node: AutogradNode, values: ValueRange | None) -> tuple[Way, ...] | None:
        if op == "Sqrt":
            return ("outside_domain",)
        if op == "Rsqrt" and values is not None:
            return (
                *(("outside_domain",) if values.nans else ()),
                *(("division_by_zero",) if values.infinities else ()),
            )
        taken = self._bounds.output(node.edges[0].target) if node.edges else None
        taken = taken or self._kept.field(node, "self")
        if op == "Reciprocal" and taken is not None and taken.is_finite:
            return ("division_by_zero",) if taken.zeros else ("overflow",)
        if op == "Pow" and taken is not None and taken.is_finite and taken.low >= 0:
            return ("overflow",) if not taken.zeros else ("division_by_zero", "overflow")
        return (
            ("division_by_zero", "overflow")
            if op == "Reciprocal"
            else ("overflow", "division_by_zero", "outside_domain")
        )

    # -- softmax -----------------------------------------------------------------------------------------------

    def _may_be_masked(self, node: AutogradNode, region: list[int], values: ValueRange | None) -> bool:
        """Whether a softmax is NaN, and something before it puts numbers in place."""
        if op_of(node.name) not in operators.FUSED_SOFTMAX or values is None or not values.nans:
            return False
        before = [self._record.by_number[number] for number in region]
        return any(op_of(each.name) in operators.PLACING for each in before)

    def _is_masked(self, node: AutogradNode, region: list[int], values: ValueRange | None) -> bool:
        """Whether a softmax is NaN in the rows that a mask leaves nothing of, and only there."""
        if values is None or not values.nans or values.infinities:
            return False
        result = next(
            (r for n, r in self._bounds.results(node.number) if r.shape == values.shape and n == node.number), None
        )
        tensor = None if result is None else self._kept.saved_tensor(node.number, result)
        if tensor is None or not tensor.dim():
            return False
        with torch.no_grad():
            nan_rows = tensor.isnan().all(-1)
            if int(nan_rows.sum()) * tensor.shape[-1] != values.nans:
                return False
            return any(_covers(mask, tensor, nan_rows) for mask in self._masks(region))

    def _masks(self, region: list[int]) -> list[torch.Tensor]:
        """The conditions of each op of the region that fills elements, and their opposites."""
        nodes = [self._record.by_number[number] for number in region]
        fields = [(each, row) for each in nodes for row in each.saved if (op_of(each.name), row.field) in _CONDITIONS]
        masks = [self._kept.saved_mask(each.number, row) for each, row in fields]
        return [mask for each in masks if each is not None for mask in (each, ~each)]


_CONDITIONS = (("MaskedFill", "mask"), ("Where", "condition"))


def _covers(mask: torch.Tensor, result: torch.Tensor, nan_rows: torch.Tensor) -> bool:
    try:
        return bool((mask.expand_as(result).all(-1) == nan_rows).all())
    except RuntimeError:  # the mask was of another shape, before a reshape
        return False
