"""Which results of forward ops are known to be finite: by a saved tensor, or by the magnitudes of what the op took."""

from __future__ import annotations

import math

import torch

from cabw_viz.nonfinite import operators
from cabw_viz.nonfinite.kept_values import KeptValues
from cabw_viz.nonfinite.operators import op_of
from cabw_viz.record.model import AutogradNode, SavedTensor
from cabw_viz.record.nonfinite import ValueRange

DEPTH = 60
"""How many ops magnitudes are followed through."""

_RESULTS = frozenset(
    [
        "logsumexp",
        "output",
        "buffer",
        "total_weight",
        "save_mean",
        "save_var",
        "log_sumexp",
        "log_alpha",
        "neg_log_likelihood",
    ]
)


def is_result(node: AutogradNode, row: SavedTensor) -> bool:
    """Whether a saved tensor is what the node's own forward has made, beside what `made_by` says."""
    return row.made_by == node.number or row.field.startswith("result") or row.field in _RESULTS


class Bounds:
    """The results of the forward ops of one backward."""

    def __init__(self, kept: KeptValues) -> None:
        self._kept, self._record = kept, kept.record
        self._results: dict[int, list[tuple[int, SavedTensor]]] = {}
        for node in self._record.autograd_nodes:
            for row in node.saved:
                maker = self.maker(node.number, row)
                if maker is not None and not row.packed:
                    self._results.setdefault(maker, []).append((node.number, row))
        self._bounds: dict[int, float | None] = {}

    def maker(self, number: int, row: SavedTensor) -> int | None:
        """The node whose forward op made a saved tensor; None where no op of this backward did, or it is not known."""
        if row.made_by is not None:
            return row.made_by
        return number if is_result(self._record.by_number[number], row) else None

    def results(self, number: int) -> list[tuple[int, SavedTensor]]:
        """(node that saves it, field) of each result of a node's forward op that is saved anywhere."""
        return self._results.get(number, [])

    def output(self, number: int) -> ValueRange | None:
        """The figures of the result of a forward op, or of a leaf; None where it was not kept."""
        node = self._record.by_number[number]
        if node.kind == "accumulate_grad":
            return self._kept.leaf_range(node)
        if node.inputs != 1:
            return None
        rows = ((saver, row) for saver, row in self.results(number) if row.made_by is not None)
        return next((values for each in rows if (values := self._kept.saved_range(*each)) is not None), None)

    def seen(self, number: int) -> ValueRange | None:
        """The same, also of what the op shows in another shape."""
        for _ in range(DEPTH):
            values, node = self.output(number), self._record.by_number[number]
            if values is not None or op_of(node.name) not in operators.RESHAPING or len(node.edges) != 1:
                return values
            number = node.edges[0].target
        return None

    def is_finite(self, number: int) -> bool:
        """Whether the result of a forward op is known to be finite."""
        return self.of(number) is not None

    def of(self, number: int, depth: int = DEPTH) -> float | None:
        """A magnitude that no element of a result exceeds; None where it is not known to be finite."""
        if number not in self._bounds:
            self._bounds[number] = None  # of a circle, nothing is known
            self._bounds[number] = self._bound(number, depth)
        return self._bounds[number]

    def _bound(self, number: int, depth: int) -> float | None:
        values = self.output(number)
        if values is not None:
            return _magnitude(values) if values.is_finite else None
        node = self._record.by_number[number]
        if depth <= 0 or node.kind != "builtin" or self._has_nonfinite_result(number):
            return None
        bound = self._computed(node, depth - 1)
        spec = node.gradients_in[0] if node.gradients_in else None
        if bound is None or spec is None:
            return None
        return bound if bound < largest_number(spec.dtype) / 2 else None  # the sum's own rounding stays below that

    def _has_nonfinite_result(self, number: int) -> bool:
        return any(self._kept.saved_is_finite(*each) is False for each in self.results(number))

    def _computed(self, node: AutogradNode, depth: int) -> float | None:
        op = op_of(node.name)
        taken = [self.of(edge.target, depth) for edge in node.edges]
        if op in ("Mm", "Addmm", "Bmm", "Baddbmm", "Linear"):
            return self._product(node, op)
        if op == "Mul":
            return self._factors(node, taken)
        if None in taken or len(taken) < node.outputs:
            return None
        known = [each for each in taken if each is not None]
        if op in operators.PASSING:
            return max(known)
        if op in operators.BOUNDED:
            return operators.BOUNDED[op]
        if op in operators.NEVER_LARGER:
            return 2 * max(known)
        return sum(known) if op in ("Add", "Sub") else None

    def _product(self, node: AutogradNode, op: str) -> float | None:
        """A matrix product: rows times columns, and what is added."""
        names = {"Addmm": ("mat1", "mat2"), "Baddbmm": ("batch1", "batch2"), "Linear": ("input", "weight")}
        one, other = (self._kept.field(node, name) for name in names.get(op, ("self", "mat2")))
        factors = [values for values in (one, other) if values is not None and values.is_finite]
        if len(factors) < 2 or not factors[0].shape:
            return None
        added = 0.0
        if len(node.edges) == node.outputs == 3:
            bias = self.of(node.edges[0].target if op != "Linear" else node.edges[2].target)
            if bias is None:
                return None
            added = bias
        elif node.outputs == 3 and op != "Linear":
            return None
        return factors[0].shape[-1] * _magnitude(factors[0]) * _magnitude(factors[1]) + added

    def _factors(self, node: AutogradNode, taken: list[float | None]) -> float | None:
        saved = [self._kept.field(node, name) for name in ("self", "other")]
        sizes = [_magnitude(values) for values in saved if values is not None and values.is_finite]
        if len(sizes) == 2:
            return sizes[0] * sizes[1]
        return sizes[0] * taken[0] if len(sizes) == len(taken) == 1 and taken[0] is not None else None


def _magnitude(values: ValueRange) -> float:
    return 0.0 if math.isnan(values.largest) else values.largest


def largest_number(dtype: str) -> float:
    """The largest finite number of a dtype such as `torch.float16`; 0 of one that is not known."""
    known = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(known, torch.dtype) or not (known.is_floating_point or known.is_complex):
        return 0.0
    return float(torch.finfo(known).max)
