"""Divergence: the gradients into and out of every autograd node, in the user's own run and in the graph run again.

1. The graph runs once, and the gradient at each site is compared with eager's.
2. If anything differs, it runs once more, each step on eager's own gradients: what differs now is the step's own
   difference. The steps of a compiled graph cannot run alone: there each step runs in eager, on the gradients that the
   compiled graph had at that site, and its results are compared with those that the compiled graph had next.
3. If a step's own difference is more than a tolerance allows, or is in half precision, where tolerances are wide,
   further runs of that step show whether rounding explains it (`step_judgement.py`).
4. If gradients differ by more than a tolerance allows, each step runs once more, on the gradients of the whole graph's
   run: what is another result then does not come again. Under a compiler, each step runs in eager on the gradients of
   the user's own run instead.
5. There the whole graph runs again too (`repeats`), against its first run: what differs by more than a tolerance, at a
   step that took the same bits, is not reproducible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from cabw_viz.errors import CabwError
from cabw_viz.record.coverage import coverage_text
from cabw_viz.record.divergence import Divergence
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.options import HookPolicy
from cabw_viz.record.wording import RUN_WORDS, counted
from cabw_viz.replay.divergence.compiled import CompiledSteps
from cabw_viz.replay.divergence.gradient_sites import GradientSites, gradient_sites
from cabw_viz.replay.divergence.interpreted import InterpretedSteps
from cabw_viz.replay.divergence.isolated_steps import IsolatedSteps, Steps
from cabw_viz.replay.divergence.node_comparison import NodeComparer, NodeComparison
from cabw_viz.replay.divergence.probing import StoppedError
from cabw_viz.replay.divergence.rows import Findings, StepsAlone, rows_of
from cabw_viz.replay.divergence.step_judgement import StepJudge
from cabw_viz.replay.parity.descriptions import hook_notes
from cabw_viz.replay.placement.target import AS_CAPTURED, Target
from cabw_viz.replay.replay import Replay
from cabw_viz.runtime.capture_state import Captured
from cabw_viz.runtime.gradient_snapshots import NodeGradients

REPEATS = 2
"""How often the whole graph runs again: a state that alternates shows in one of two."""


def _check_repeats(repeats: object) -> None:
    """Raise a CabwError where `repeats` is no count."""
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 0:
        raise CabwError(
            f"cap.divergence() got repeats={repeats!r}",
            expected="how often the whole graph runs again, from 0",
            try_=f"cap.divergence(repeats={REPEATS})",
        )


def divergence(
    captured: Captured,
    *,
    target: Target = AS_CAPTURED,
    hooks: HookPolicy = "run",
    rtol: float | None = None,
    atol: float | None = None,
    repeats: int = REPEATS,
) -> Divergence:
    """Find the steps of a backward whose outputs differ from eager's although their inputs match.

    Nothing is written. The replay's gradients are released as it runs; those of a compiled graph are all outputs of it,
    and are compared afterwards.

    Args:
        captured: the capture.
        target: where, in which dtype and under which backend the graph runs again.
        hooks: see `Replay`; the graph runs up to three times, and hooks with it.
        rtol: relative tolerance; with `atol`, instead of torch.testing's for the dtype, and final then.
        atol: tolerance in units of a gradient's largest element.
        repeats: how often the whole graph runs again, where more differs than a tolerance allows.

    Raises:
        CabwError: the gradients of the nodes were not kept, the graph cannot be run again, or `repeats` is no count.
    """
    record = captured.record
    _check_repeats(repeats)
    NodeComparer(rtol, atol).tolerance(torch.float32)
    replay = Replay(captured, target, hooks)
    gradients = check_node_gradients(captured)
    sites = gradient_sites(captured, gradients)
    python = runs_python(record)
    if python:
        sites = sites.with_writes()
    comparer = NodeComparer(rtol, atol, target.moves, rereads=python)
    search = _Search(replay, sites, comparer, repeats)
    findings = search.findings()
    rows, culprits, nonfinite = rows_of(record, findings)
    return Divergence(
        RUN_WORDS["eager"].reference,
        candidate_description(target),
        rows,
        culprits,
        nonfinite,
        comparer.used.rows(),
        findings.compared,
        (*hook_notes(record, hooks), *_notes(target, gradients), *search.notes),
        coverage_text(record),
    )


def check_node_gradients(captured: Captured) -> NodeGradients:
    """The gradients of the user's own run, at every autograd node.

    Raises:
        CabwError: they were not kept.
    """
    if captured.record.run != "eager":
        raise CabwError(
            "this backward ran through compiled autograd, where the gradients of its nodes cannot be seen",
            expected="a backward that ran in eager, which is the side to compare with",
            try_='cabw_viz.capture(model, run="eager"), outside of any compiled autograd of your own, then '
            "cap.divergence(backend=...)",
        )
    captured.check_reference()
    if captured.state.node_gradients is None:
        raise CabwError(
            'the session was captured with gradients="leaves", so the gradients of the nodes were not kept',
            expected="gradients into and out of every autograd node",
            try_='cabw_viz.capture(..., gradients="nodes"), which is the default',
        )
    return captured.state.node_gradients


def runs_python(record: CaptureRecord) -> bool:
    """Whether code of the user's runs in a backward: it may write to gradients without autograd's knowledge."""
    return any(node.hooks or node.kind in ("custom_function", "cpp_function") for node in record.autograd_nodes)


def candidate_description(target: Target) -> str:
    """What is compared with eager: `the captured graph run again in torch.float64, op by op on eager kernels`."""
    how = "op by op on eager kernels" if not target.compiles else f"compiled by {target.backend_name}"
    where = f" on {target.device}" if target.device is not None else ""
    dtype = f" in {target.dtype}" if target.dtype is not None else ""
    return f"the captured graph run again{where}{dtype}, {how}"


def _notes(target: Target, gradients: NodeGradients) -> list[str]:
    """What a reader of the comparison must know of the two sides."""
    notes = []
    if target.compiles:
        notes.append(
            "the gradients of all nodes are outputs of this compiled graph; without them its kernels may be fused "
            "differently"
        )
    if gradients.fingerprints:
        notes.append(
            f"{gradients.fingerprints:,} gradients were too many for max_bytes: they are compared by fingerprints "
            "(norm, range, a hash of the bits, samples)"
        )
    return notes


class _Search:
    """One search.

    findings
    ├─ Steps.observe   the graph runs once
    ├─ _alone          where anything differs: it runs again, each step on the other side's gradients
    ├─ _repeated       where more differs than a tolerance allows: each step on those of the run that is in question
    └─ _reruns         there too: the whole graph, again
    """

    def __init__(self, replay: Replay, sites: GradientSites, comparer: NodeComparer, repeats: int) -> None:
        self.replay, self.sites, self.comparer, self.repeats = replay, sites, comparer, repeats
        self.notes: list[str] = []

    def findings(self) -> Findings:
        """Run the graph, and each of its steps alone if anything differs."""
        steps: CompiledSteps | InterpretedSteps
        steps = (CompiledSteps if self.replay.target.compiles else InterpretedSteps)(
            self.replay, self.sites, self.comparer
        )
        observed, stopped = steps.observe()
        mapping = steps.graph.mapping
        findings = Findings(self.sites, observed, retyped=mapping is not None and mapping.retypes)
        if isinstance(stopped, StoppedError):
            observed.update(stopped.rejected())
        if stopped is not None:
            if not any(comparison.differs for comparison in observed.values()):
                raise stopped
            self.notes.append(f"the replay stopped: {stopped.seen}")
        elif all(comparison.difference.verdict == "bitwise" for comparison in observed.values()):
            return findings
        findings.isolated = self._alone(steps, self.replay, self.comparer)
        if stopped is None and any(comparison.differs for comparison in observed.values()):
            findings.repeated = self._repeated(steps, observed)
            findings.reruns = self._reruns(steps, observed)
        return findings

    def _reruns(
        self, steps: CompiledSteps | InterpretedSteps, observed: Mapping[str, NodeComparison]
    ) -> list[dict[str, NodeComparison]]:
        """Run the whole graph again, and compare with the run that was observed."""
        reruns: list[dict[str, NodeComparison]] = []
        try:
            reruns.extend(steps.again(observed) for _ in range(self.repeats))
        except CabwError as error:
            self.notes.append(f"the whole graph could not be run again: {error.seen}")
        is_same = all(comparison.agrees for rerun in reruns for comparison in rerun.values())
        if reruns and is_same:
            runs = counted(len(reruns), "further run")
            self.notes.append(f"{runs} of the whole graph gave the same gradients: what differs comes again")
        return reruns

    def _repeated(self, steps: CompiledSteps | InterpretedSteps, observed: Mapping[str, NodeComparison]) -> StepsAlone:
        """Run each step on the gradients of the run in question, and compare with what that run made of them.

        A compiled graph's own steps are compared so already: there it is the user's run that is in question.
        """
        if isinstance(steps, InterpretedSteps):
            comparer = replace(self.comparer, across=False, rereads=True)
            return self._alone(steps.repeated(observed), self.replay, comparer)
        replay = self.replay.at(AS_CAPTURED)
        comparer = replace(self.comparer, across=False)
        return self._alone(InterpretedSteps(replay, self.sites, comparer), replay, comparer)

    def _alone(self, steps: Steps, replay: Replay, comparer: NodeComparer) -> StepsAlone:
        """Run each step on the other side's gradients; its results, and the sites at which these were known."""
        try:
            isolated = IsolatedSteps(steps.graph, self.sites, steps, comparer)
        except CabwError as error:
            self.notes.append(f"no step could be run alone: {error.seen}")
            return StepsAlone()
        try:
            replay.run(isolated)
        except CabwError as error:
            self.notes.append(f"not every step could be run alone: {error.seen}")
            if isinstance(error, StoppedError):
                isolated.comparisons |= error.rejected()
        if isolated.questions:
            judge = StepJudge(
                replay, self.sites, steps.other_side, isolated.questions, isolated.comparisons, steps.reproduced
            )
            judge.judge()
            self.notes += judge.notes
        return StepsAlone(isolated.comparisons, frozenset(isolated.substituted))
