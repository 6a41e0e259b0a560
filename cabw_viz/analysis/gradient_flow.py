"""Where gradients fall or rise on their way through the backward, and how large they are by module.

Branches of a model may have much smaller gradients than what flows beside them (queries and keys of an attention), so
the size at a moment of the backward is that of the largest gradient on its way then: a gradient that some node has
sent and no node has taken yet. Scalars do not count, nor what goes to a leaf alone. Sums and means over many elements
change the root mean square or the norm, but not both in the same way: a change counts where both change by more than
the factor.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cabw_viz.analysis.families import family_of
from cabw_viz.analysis.memory import module_text
from cabw_viz.errors import CabwError
from cabw_viz.record.gradient_flow import ChangeKind, Flow, FlowChange, FlowPoint
from cabw_viz.record.gradients import GradientSizes, GradientStatistics
from cabw_viz.record.model import AutogradNode, CaptureRecord


@dataclass(frozen=True)
class _Level:
    """The largest gradients on their way after a node has run."""

    node: AutogradNode
    rms: float
    norm: float


def flow(record: CaptureRecord, sizes: GradientSizes, factor: float) -> Flow:
    """The flow of gradients, and where it changes by more than a factor.

    Raises:
        CabwError: `factor` is no number above 1.
    """
    if type(factor) not in (int, float) or not 1 < factor < math.inf:
        raise CabwError(f"factor={factor!r} is no factor", expected="a number above 1", try_="factor=1000")
    levels = list(_levels(record, sizes))
    return Flow(factor, tuple(_points(record, sizes)), tuple(_changes(levels, factor)), tuple(_zeros(record, sizes)))


# ---------------------------------------------------------------------------------------------------------- the largest


def _levels(record: CaptureRecord, sizes: GradientSizes) -> Iterator[_Level]:
    outputs = {each.number: each.outputs for each in sizes.nodes}
    by_rms: list[tuple[float, int]] = []
    by_norm: list[tuple[float, int]] = []
    to_leaf = _leading_to_leaves(record)
    for node in record.autograd_nodes:
        for edge in node.edges:
            sent = outputs.get(node.number, ())
            gradient = sent[edge.output] if edge.output < len(sent) else None
            if gradient is None or gradient.rms is None or not gradient.shape or edge.target in to_leaf:
                continue
            if math.isfinite(gradient.rms):
                heapq.heappush(by_rms, (-gradient.rms, edge.target))
                heapq.heappush(by_norm, (-(gradient.norm or 0.0), edge.target))
        rms, norm = _largest(by_rms, node.number), _largest(by_norm, node.number)
        if rms is not None and norm is not None and node.number not in to_leaf:
            yield _Level(node, rms, norm)


def _largest(heap: list[tuple[float, int]], number: int) -> float | None:
    """The largest of the gradients that wait for a node after this one; None where there are none."""
    while heap and heap[0][1] <= number:
        heapq.heappop(heap)
    return -heap[0][0] if heap else None


def _leading_to_leaves(record: CaptureRecord) -> frozenset[int]:
    """The nodes that accumulate, and the views before them alone: the transposition of a weight."""
    numbers: set[int] = set()
    for node in reversed(record.autograd_nodes):
        targets = {edge.target for edge in node.edges}
        is_view = family_of(node) == "view" and len(targets) == 1
        if node.kind == "accumulate_grad" or (is_view and targets <= numbers):
            numbers.add(node.number)
    return frozenset(numbers)


# ----------------------------------------------------------------------------------------------------------- changes


def _changes(levels: Sequence[_Level], factor: float) -> Iterator[FlowChange]:
    """Each longest part over which the levels go one way by more than the factor, smaller turns left aside.

    What goes up and down again inside of a module is its own arithmetic (the mean of squares in a norm): only the
    levels after its last node count, and where it makes zeros.
    """
    places = [place for place in range(len(levels)) if _is_border(levels, place)]
    turns = _turns([levels[place].rms for place in places], factor)
    for first, last in pairwise(turns):
        begin, end = levels[places[first]], levels[places[last]]
        if end.rms == 0:
            yield _change("dies", levels, places[first], places[last])
        elif begin.rms > 0 and _is_beyond(begin, end, factor):
            yield _change("falls" if end.rms < begin.rms else "rises", levels, places[first], places[last])


def _is_border(levels: Sequence[_Level], place: int) -> bool:
    """Whether the next node belongs to another call of a module, or no module but the subject is known."""
    node = levels[place].node
    if not node.module or place + 1 == len(levels):
        return True
    other = levels[place + 1].node
    return (node.module, node.visit) != (other.module, other.visit)


def _is_beyond(begin: _Level, end: _Level, factor: float) -> bool:
    ratios = end.rms / begin.rms, end.norm / begin.norm if begin.norm else 0.0
    return max(ratios) * factor < 1 or min(ratios) > factor


def _change(kind: ChangeKind, levels: Sequence[_Level], first: int, last: int) -> FlowChange:
    begin, end = levels[first], levels[last]
    steps = range(first + 1, last + 1)
    falls = kind != "rises"
    steepest = max(steps, key=lambda i: _ratio(levels[i - 1].rms, levels[i].rms, falls=falls))
    node = levels[steepest].node
    ratio = _ratio(begin.rms, end.rms, falls=falls)
    modules = module_text(begin.node), module_text(end.node)
    numbers = begin.node.number, end.node.number, node.number
    return FlowChange(kind, ratio, begin.rms, end.rms, *numbers, module_text(node), node.line, modules)


def _ratio(begin: float, end: float, *, falls: bool) -> float:
    """How many times smaller or larger the second is."""
    above, below = (begin, end) if falls else (end, begin)
    if above == below:
        return 1.0
    return above / below if below else math.inf


def _turns(sizes: Sequence[float], factor: float) -> list[int]:
    """The places of the extremes between which sizes change by more than the factor, one way and the other in turn."""
    turns: list[int] = []
    extreme = {-1: 0, 1: 0}
    way = 0
    for place, size in enumerate(sizes):
        for sign in (-1, 1):  # where it falls, the lowest place is sought, and how far it has risen since
            if way in (0, sign):
                best = sizes[extreme[sign]]
                if sign * size > sign * best or (way == 0 and size == best):
                    extreme[sign] = place
        for sign in (-1, 1):
            if way != sign and _is_farther(sizes[extreme[-sign]], size, sign, factor):
                turns.append(extreme[-sign])
                way = sign
                extreme[sign] = place
                break
    return [*turns, extreme[way]] if way else []


def _is_farther(begin: float, end: float, sign: int, factor: float) -> bool:
    return end > begin * factor if sign > 0 else begin > end * factor


# ------------------------------------------------------------------------------------------------------------ modules


def _points(record: CaptureRecord, sizes: GradientSizes) -> Iterator[FlowPoint]:
    """The calls of modules, from the model's input to its loss."""
    by_number = {each.number: each for each in sizes.nodes}
    calls: dict[tuple[str, int], list[int]] = {}
    for node in record.autograd_nodes:
        if node.kind not in ("accumulate_grad", "graph_root"):
            calls.setdefault((module_text(node), node.visit), []).append(node.number)
    of_leaves = _leaves_by_module(record, sizes)
    entering = _entering(record, calls)
    for (module, visit), numbers in sorted(calls.items(), key=lambda item: -item[1][0]):
        gradients = [
            by_number[n].inputs[i]
            for n, i in entering[module, visit]
            if n in by_number and i < len(by_number[n].inputs)
        ]
        leaves = of_leaves.get(module, []) if visit == 0 else []
        yield FlowPoint(module, visit, numbers[0], _largest_rms(gradients), _largest_rms(leaves))


def _entering(
    record: CaptureRecord, calls: dict[tuple[str, int], list[int]]
) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Node and input of the gradients that flow into each call of a module from elsewhere."""
    call_of = {number: call for call, numbers in calls.items() for number in numbers}
    entering: dict[tuple[str, int], list[tuple[int, int]]] = {call: [] for call in calls}
    for node in record.autograd_nodes:
        for edge in node.edges:
            call = call_of.get(edge.target)
            if call is not None and call_of.get(node.number) != call:
                entering[call].append((edge.target, edge.input))
    return entering


def _leaves_by_module(record: CaptureRecord, sizes: GradientSizes) -> dict[str, list[GradientStatistics | None]]:
    leaves: dict[str, list[GradientStatistics | None]] = {}
    for each in sizes.leaves:
        leaves.setdefault(_module_of_leaf(record, each.leaf), []).append(each.gradient)
    return leaves


def _module_of_leaf(record: CaptureRecord, leaf: int) -> str:
    number = record.leaves[leaf].autograd_node
    node = None if number is None else record.by_number.get(number)
    return "" if node is None else module_text(node)


def _largest_rms(gradients: Sequence[GradientStatistics | None]) -> float | None:
    known = [gradient.rms for gradient in gradients if gradient is not None and gradient.rms is not None]
    return max(known, default=None, key=lambda rms: (math.isnan(rms), rms))


def _zeros(record: CaptureRecord, sizes: GradientSizes) -> Iterator[tuple[str, str]]:
    for each in sizes.leaves:
        if each.gradient is not None and each.gradient.is_zero:
            yield _module_of_leaf(record, each.leaf), record.leaves[each.leaf].label


# -------------------------------------------------------------------------------------------------------------- words


def sentences(flow: Flow) -> list[str]:
    """What is to be said of a flow, a sentence each; empty where nothing is."""
    words = [sentence(change) for change in flow.changes]
    if flow.zero_leaves:
        names = [name for _, name in flow.zero_leaves]
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        words.append(f"zero everywhere: the gradients of {', '.join(names[:NAMED])}{more}")
    return words


NAMED = 5
"""So many leaves are named in a sentence."""


def sentence(change: FlowChange) -> str:
    """`falls by 3e+09, from 1e-03 to 4e-13, between layers.19 and layers.3; most in layers.7 (#42) at model.py:12`."""
    begin, end = (module or "the loss" for module in change.modules)
    where = f"{change.module or 'outside of any module'} (#{change.steepest})"
    at = f" at {change.line}" if change.line is not None else ""
    if change.kind == "dies":
        return f"dies: {change.start:.1e} after {begin}, zero everywhere from {where} on{at}"
    between = f"in {begin}" if begin == end else f"between {begin} and {end}"
    sizes = f"by {change.factor:.1e}, from {change.start:.1e} to {change.end:.1e}"
    return f"{change.kind} {sizes}, {between}; most in {where}{at}"
