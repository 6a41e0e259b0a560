"""Where in the forward a NaN or an infinity begins: a walk from what is not finite towards the leaves.

The walk goes along the edges of the autograd graph, from a node to those whose forward made what its own has taken.
It stops where the result of a forward op is known to be finite: a saved tensor says so, or the magnitudes of what the
op took (`Bounds`). So what is not finite elsewhere, such as the negative infinities of a mask before a softmax, is no
cause. Of what it meets, the first in the order of the forward is the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cabw_viz.nonfinite import operators
from cabw_viz.nonfinite.bounds import Bounds, is_result
from cabw_viz.nonfinite.forward_ways import ForwardWays
from cabw_viz.nonfinite.kept_values import KeptValues
from cabw_viz.nonfinite.operators import op_of
from cabw_viz.record.model import AutogradNode, SavedTensor
from cabw_viz.record.nonfinite import NonFiniteOrigin, NonFiniteTensor, Stage, ValueRange

HOPS = 20
"""How many ops a mask is followed back to the op that placed it."""


@dataclass(frozen=True)
class _Sighting:
    """A tensor of the forward that is not finite, or a result that cannot be."""

    position: float
    """Of the op that made it in the order of the forward; of what none made, just before the first that took it."""
    stage: Stage
    node: AutogradNode
    """That made it, or that took it."""
    values: ValueRange | None
    what: str
    names: tuple[str, ...] = ()
    is_mask: bool = False


class ForwardSearch:
    """The walks through one forward."""

    def __init__(self, kept: KeptValues) -> None:
        self.kept, self.record = kept, kept.record
        self.bounds = Bounds(kept)
        self._ways = ForwardWays(kept, self.bounds)

    def saved(self) -> tuple[NonFiniteTensor, ...]:
        """The saved tensors that hold NaN or infinity, in the order of the forward."""
        rows = []
        for (number, field), row in self.kept.nonfinite_saved():
            values = self.kept.saved_range(number, row)
            if values is not None:
                made_by = self.bounds.maker(number, row)
                mask = self._is_mask(values, made_by)
                position = self._position(number) - 0.5 if made_by is None else self._position(made_by)
                rows.append((position, -number, NonFiniteTensor(number, field, made_by, values, mask)))
        return tuple(row for _, _, row in sorted(rows, key=lambda each: each[:2]))

    def origin(self, starts: Iterable[int]) -> NonFiniteOrigin | None:
        """The earliest cause among what the forward ops of some nodes have made; None where nothing shows one."""
        sightings = list(self._walk(starts))
        clear = [each for each in sightings if not each.is_mask] or sightings
        if not clear:
            return None
        return self._origin(min(clear, key=lambda each: (each.position, each.stage == "forward", -each.node.number)))

    # -- the walk ----------------------------------------------------------------------------------------------

    def _walk(self, starts: Iterable[int]) -> Iterator[_Sighting]:
        todo = [(number, self._position(number) + 1) for number in starts]
        visited: set[int] = set()
        while todo:
            number, consumer = todo.pop()
            node = self.record.by_number[number]
            if node.kind == "accumulate_grad":
                yield from self._leaf(node, consumer)
                continue
            if number in visited or self.bounds.is_finite(number):
                continue
            visited.add(number)
            yield from self._result(node)
            yield from self._taken(node)
            todo += [(edge.target, self._position(number)) for edge in node.edges]

    def _position(self, number: int) -> float:
        """Place in the order of the forward; nodes without a sequence number by their place in the backward."""
        node = self.record.by_number[number]
        return float(node.order) if node.order is not None else len(self.record.autograd_nodes) - number

    def _leaf(self, node: AutogradNode, consumer: float) -> Iterator[_Sighting]:
        values = self.kept.leaf_range(node)
        if values is not None and not values.is_finite:
            names = self.record.leaves[node.leaf].names if node.leaf is not None else ()
            yield _Sighting(consumer - 0.5, "leaf", node, values, "the leaf itself", names)

    def _result(self, node: AutogradNode) -> Iterator[_Sighting]:
        position = self._position(node.number)
        for number, row in self.bounds.results(node.number):
            values = self.kept.saved_range(number, row)
            if values is not None and not values.is_finite:
                what = f"{row.field}, saved by {self.record.by_number[number].name} (#{number})"
                yield _Sighting(position, "forward", node, values, what, is_mask=self._is_mask(values, node.number))
        domain = operators.DOMAINS.get(op_of(node.name))
        taken = self.kept.field(node, "self") if domain is not None else None
        if domain is not None and taken is not None and taken.low <= domain:
            yield _Sighting(position, "forward", node, None, f"its result, of self down to {taken.low:.4g}")
        if op_of(node.name) == "Div" and (divisor := self.kept.field(node, "other")) is not None and divisor.zeros:
            yield _Sighting(position, "forward", node, None, f"its result: {divisor.zeros:,} zeros in other")

    def _taken(self, node: AutogradNode) -> Iterator[_Sighting]:
        """What a node's op took, and no op of this backward has made."""
        for row in node.saved:
            if self.bounds.maker(node.number, row) is not None:
                continue
            values = self.kept.saved_range(node.number, row)
            if values is not None and not values.is_finite and not self._is_leaf_of(node, row):
                stage: Stage = "leaf" if row.names or row.view_of else "input"
                what = f"{row.field}, saved by {node.name} (#{node.number})"
                position = self._position(node.number) - 0.5
                mask = self._is_mask(values, None)
                yield _Sighting(position, stage, node, values, what, row.names or row.view_of, mask)

    def _is_leaf_of(self, node: AutogradNode, row: SavedTensor) -> bool:
        """Whether the walk meets a saved tensor as a leaf, too."""
        targets = (self.record.by_number[edge.target] for edge in node.edges)
        leaves = [self.record.leaves[each.leaf].names for each in targets if each.leaf is not None]
        return bool(row.names) and row.names in leaves

    def _is_mask(self, values: ValueRange, made_by: int | None) -> bool:
        """Whether infinities were put in place: by an op that fills, or with a tensor that no op has made."""
        if values.nans or values.positive:
            return False
        for _ in range(HOPS):
            if made_by is None:
                return True
            node = self.record.by_number[made_by]
            op = op_of(node.name)
            has_constant = len(node.edges) < node.outputs
            if op in operators.PLACING and (has_constant or op not in ("Add", "Sub")):
                return True
            carries = op in operators.PASSING or op in ("LogSoftmax", "Mul", "Div", "ToCopy", "Add", "Sub")
            if not carries or not node.edges:
                return False
            made_by = node.edges[0].target
        return False

    # -- the cause ---------------------------------------------------------------------------------------------

    def _origin(self, seen: _Sighting) -> NonFiniteOrigin:
        node = seen.node
        if seen.stage != "forward":
            name = " = ".join(seen.names) if seen.names else "a tensor that no op of this backward has made"
            return NonFiniteOrigin(
                seen.stage, node.kind, node.number, name, seen.what, node.module, node.visit, node.line, ("held",),
                out=seen.values,
            )  # fmt: skip
        region = self._ways.region(node, seen.values)
        maker = self.record.by_number[region.makers[0]]
        return NonFiniteOrigin(
            "forward", maker.kind, maker.number, self.record.label(maker), seen.what, maker.module, maker.visit,
            maker.line, region.ways, into=self._into(maker), out=seen.values, others=region.makers[1:],
        )  # fmt: skip

    def _into(self, node: AutogradNode) -> tuple[ValueRange, ...]:
        """What the op of a node took, as far as it was kept."""
        rows = [row for row in node.saved if not is_result(node, row)]
        saved = [self.kept.saved_range(node.number, row) for row in rows]
        made_by = {row.made_by for row in rows}
        others = [self.bounds.seen(edge.target) for edge in node.edges if edge.target not in made_by]
        return tuple(values for values in (*saved, *others) if values is not None)[:4]
