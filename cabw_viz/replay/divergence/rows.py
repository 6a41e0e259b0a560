"""A row for each step, and the steps at fault, from the comparisons at all sites."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cabw_viz.record.divergence import BETWEEN, Difference, DivergenceRow, NonFinite, Range
from cabw_viz.record.kinds import GOOD, SEVERITY
from cabw_viz.record.model import AutogradNode, CaptureRecord
from cabw_viz.record.wording import counted
from cabw_viz.replay.divergence.gradient_sites import GradientSites, Step
from cabw_viz.replay.divergence.node_comparison import NodeComparison, range_of
from cabw_viz.runtime.gradient_snapshots import Gradient


@dataclass(frozen=True)
class StepsAlone:
    """The results of steps that ran alone."""

    comparisons: Mapping[str, NodeComparison] = field(default_factory=dict)
    substituted: frozenset[str] = frozenset()
    """The sites at which the steps took the gradients with which they were to begin."""


NO_STEPS = StepsAlone()


@dataclass
class Findings:
    """The comparisons at all sites of a graph."""

    sites: GradientSites
    observed: Mapping[str, NodeComparison]
    """The gradients of the whole graph's run."""
    isolated: StepsAlone = NO_STEPS
    """Each step on the other side's gradients; empty where nothing differed before."""
    repeated: StepsAlone = NO_STEPS
    """Each step on the gradients of the run in question; empty where nothing differed by more than a tolerance."""
    reruns: Sequence[Mapping[str, NodeComparison]] = ()
    """Further runs of the whole graph, against the one that was observed."""
    retyped: bool = False
    """Whether the graph ran in another dtype: what is `bitwise` against the user's run is so once it is rounded."""

    @property
    def compared(self) -> int:
        """How many gradients were compared; one that is compared where it is made and where it is taken counts once."""
        later = {name for step in self.sites.steps if step.kind == "in_place_write" for name in step.outputs}
        return len(self.observed.keys() - later)

    def is_clean(self, step: Step, alone: StepsAlone) -> bool:
        """Whether the inputs of a step that ran alone are the same on both sides."""
        return all(name in alone.substituted or self._agrees(name, alone) for name in step.inputs)

    def _agrees(self, name: str, alone: StepsAlone) -> bool:
        """Whether a gradient agrees; where it was not seen, whether the inputs of the step that makes it agree."""
        if name in alone.comparisons:
            return alone.comparisons[name].agrees
        maker = self.makers.get(name)
        return maker is None or self.is_clean(maker, alone)

    def unseen_before(self, step: Step) -> list[Step]:
        """The steps whose results only a later one shows."""
        makers = (self.makers.get(name) for name in step.inputs if name not in self.observed)
        return [maker for maker in makers if maker is not None and maker.number]

    def range_at(self, name: str, side: int) -> Range | None:
        """The range of a gradient in the reference (0) or the candidate (1)."""
        ranges = self.observed[name].ranges
        if ranges is not None:
            return ranges[side]
        snapshots = self.sites.snapshots(name)  # the same on both sides
        return range_of(snapshots[0].value) if snapshots and isinstance(snapshots[0], Gradient) else None

    @cached_property
    def makers(self) -> Mapping[str, Step]:
        """The step that makes the gradient at each site."""
        return {name: step for step in self.sites.steps for name in step.outputs}

    def own(self, step: Step) -> Difference | None:
        """A step's own difference; None where it is not known."""
        if step.kind == "in_place_write":  # gradients that were one tensor in the run are not when steps run alone
            agree = all(name not in self.observed or self.observed[name].agrees for name in step.inputs)
            return worst(self.observed, step.outputs) if agree else None
        if not self.isolated.comparisons:
            return worst(self.observed, step.outputs) if self._all_equal(step) else None
        own = worst(self.isolated.comparisons, step.outputs) if self.is_clean(step, self.isolated) else None
        again = self._not_again(step)
        if own is not None and own.verdict not in GOOD:
            return again or own if own.verdict == "mismatch" else own
        return self._not_reproducible(step) or self._not_as_alone(step, own) or again or own

    def _not_as_alone(self, step: Step, own: Difference | None) -> Difference | None:
        """The difference of a step that took the same bits in both runs, made another result, and alone the same.

        Of two runs on the same gradients one is as the step runs alone, and the other is not. That a later run of the
        step alone agrees with the other one (a state that alternates) does not change this.
        """
        if self.retyped or own is None or own.verdict != "bitwise" or not self._takes_the_same(step, self.observed):
            return None
        return _another_result(worst(self.observed, step.outputs), ANOTHER_RESULT)

    def _not_again(self, step: Step) -> Difference | None:
        """The difference of a step that made another result of the same bits in a further run of the whole graph."""
        found = [
            difference
            for rerun in self.reruns
            if self._takes_the_same(step, rerun)
            and (difference := _another_result(worst(rerun, step.outputs), "")) is not None
        ]
        if not found:
            return None
        others = counted(len(found), "further run")
        note = f"{others} of the whole graph, of {len(self.reruns)}, gave another result of this step"
        return replace(max(found, key=_badness), note=f"{note} on the same gradients")

    def _takes_the_same(self, step: Step, comparisons: Mapping[str, NodeComparison]) -> bool:
        """Whether what a step takes is the same to the last bit on both sides."""
        for name in step.inputs:
            if name in comparisons:
                if comparisons[name].difference.verdict != "bitwise":
                    return False
            elif name in self.makers and not self._takes_the_same(self.makers[name], comparisons):
                return False
        return True

    def _not_reproducible(self, step: Step) -> Difference | None:
        """The difference of a step that gave another result in the whole run than alone; None where there is none."""
        if not self.is_clean(step, self.repeated):
            return None
        return _another_result(worst(self.repeated.comparisons, step.outputs), ANOTHER_RESULT)

    def _all_equal(self, step: Step) -> bool:
        inputs = [self.observed[name] for name in step.inputs if name in self.observed]
        return all(comparison.difference.verdict == "bitwise" for comparison in inputs)


def worst(comparisons: Mapping[str, NodeComparison], names: Iterable[str]) -> Difference | None:
    """The worst difference at some sites; None where nothing was compared."""
    differences = [comparisons[name].difference for name in names if name in comparisons]
    return max(differences, key=_badness, default=None)


def _another_result(difference: Difference | None, reason: str) -> Difference | None:
    """A difference as `not_reproducible`; None where there is none beyond the tolerance."""
    if difference is None or difference.verdict in GOOD or difference.verdict == "not_judged":
        return None
    note = "; ".join(filter(None, (difference.note, reason)))
    return replace(difference, verdict="not_reproducible", note=note)


def _badness(difference: Difference) -> tuple[int, float]:
    error = difference.max_rel_err
    return SEVERITY.index(difference.verdict), -1.0 if error is None else error


ANOTHER_RESULT = "in the whole run this step gave another result than alone, on the same gradients"

SIDES = ("reference", "candidate")

Rows = tuple[tuple[DivergenceRow, ...], tuple[int, ...], tuple[NonFinite, ...]]


def rows_of(record: CaptureRecord, findings: Findings) -> Rows:
    """A row for each step and for each autograd node without one; the rows at fault; those that make a NaN."""
    steps = [step for step in _with_bare_nodes(record, findings.sites) if _has_row(step, findings)]
    rows = tuple(_row(record, step, findings) for step in steps)
    culprits = tuple(i for i, row in enumerate(rows) if row.own is not None and _is_fault(row.own))
    return rows, culprits, tuple(_nonfinite(steps, findings))


def _is_fault(own: Difference) -> bool:
    return own.verdict not in GOOD and own.verdict != "not_judged"


def _has_row(step: Step, findings: Findings) -> bool:
    """Whether a step has a row. Steps for possible in-place writes are dropped unless the two sides differ there."""
    if step.kind != "in_place_write":
        return True
    own = findings.own(step)
    return own is not None and own.verdict not in GOOD


def _with_bare_nodes(record: CaptureRecord, sites: GradientSites) -> list[Step]:
    """The steps in their order, with each autograd node that makes nothing inserted by its number."""
    own = [(step.number, place) for place, step in enumerate(sites.steps) if step.kind not in BETWEEN]
    numbers, known = [number for number, _ in own], {number for number, _ in own}
    inputs: dict[int, list[str]] = {}
    for name, (side, number, _) in sites.names.items():
        if side == "inputs":
            inputs.setdefault(number, []).append(name)
    bare: dict[int, list[Step]] = {}
    for node in record.autograd_nodes:
        if node.number not in known:
            before = bisect.bisect(numbers, node.number)
            step = Step(node.kind, node.number, tuple(inputs.get(node.number, ())), ())
            bare.setdefault(own[before - 1][1] if before else -1, []).append(step)
    steps = bare.get(-1, [])
    for place, step in enumerate(sites.steps):
        steps += (step, *bare.get(place, ()))
    return steps


def _row(record: CaptureRecord, step: Step, findings: Findings) -> DivergenceRow:
    node = record.by_number[step.number]
    into = worst(findings.observed, step.inputs)
    out = worst(findings.observed, step.outputs)
    own = findings.own(step) if step.outputs else None
    notes = dict.fromkeys(each.note for each in (own, out, into) if each is not None and each.note)
    if own is not None and own.verdict not in GOOD:
        for other in findings.unseen_before(step):
            notes[f"or it is the {name_of(record, node, other)}, which was not seen apart from this"] = None
    return DivergenceRow(
        step.number,
        step.kind,
        name_of(record, node, step),
        node.module,
        node.visit,
        node.line,
        into,
        out,
        own,
        "; ".join(notes),
    )


def name_of(record: CaptureRecord, node: AutogradNode, step: Step) -> str:
    """The name of a step in a row."""
    label = record.label(node)
    if step.kind == "gradient_sum":
        return f"sum into {label}, input {step.input}"
    if step.kind == "in_place_write":
        return f"write in place to what {label} takes, input {step.input}"
    if step.kind == "hook":
        names = [hook.name for kind in dict.fromkeys(step.hooks) for hook in node.hooks if hook.kind == kind]
        return f"{'hook' if len(names) == 1 else 'hooks'} {', '.join(names)} of {label}"
    return label


# -- NaN and infinity --------------------------------------------------------------------------------------------------


def _nonfinite(steps: list[Step], findings: Findings) -> list[NonFinite]:
    """The first step of each side whose inputs are finite and whose outputs are not."""
    reference, candidate = (_first_nonfinite(steps, findings, side) for side in (0, 1))
    if reference is not None and candidate is not None and reference.row == candidate.row:
        return [NonFinite("both", candidate.row, candidate.into, candidate.out)]
    return [each for each in (reference, candidate) if each is not None]


def _first_nonfinite(steps: list[Step], findings: Findings, side: int) -> NonFinite | None:
    if all(comparison.finite[side] for comparison in findings.observed.values()):
        return None
    for row, step in enumerate(steps):
        outputs = [name for name in step.outputs if name in findings.observed]
        nonfinite = [name for name in outputs if not findings.observed[name].finite[side]]
        inputs = [name for name in step.inputs if name in findings.observed]
        if nonfinite and all(findings.observed[name].finite[side] for name in inputs):
            ranges = [bounds for name in inputs if (bounds := findings.range_at(name, side)) is not None]
            out = findings.range_at(nonfinite[0], side)
            return NonFinite(SIDES[side], row, tuple(ranges), out or Range(math.nan, math.nan))
    return None
