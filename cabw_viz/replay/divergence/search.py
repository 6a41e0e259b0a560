"""Divergence: the gradients into and out of every autograd node, in the user's own run and in the graph run again.

1. The graph runs once, and the gradient at each site is compared with eager's.
2. If anything differs, it runs once more, each step on eager's own gradients: what differs now is the step's own
   difference. The steps of a compiled graph cannot run alone: there each step runs in eager, on the gradients that the
   compiled graph had at that site, and its results are compared with those that the compiled graph had next.
3. If a step's own difference is more than a tolerance allows, or is in half precision, where tolerances are wide, a run
   in double precision shows whether rounding explains it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Protocol

import torch

from cabw_viz.errors import CabwError
from cabw_viz.record.coverage import coverage_text
from cabw_viz.record.divergence import Divergence
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.options import HookPolicy
from cabw_viz.record.wording import RUN_WORDS
from cabw_viz.replay.divergence.compiled import CompiledSteps
from cabw_viz.replay.divergence.gradient_sites import GradientSites, gradient_sites
from cabw_viz.replay.divergence.interpreted import InterpretedSteps
from cabw_viz.replay.divergence.node_comparison import NodeComparer, NodeComparison
from cabw_viz.replay.divergence.probing import ProbingInterpreter, StoppedError, substitute
from cabw_viz.replay.divergence.rows import Findings, rows_of
from cabw_viz.replay.divergence.step_rounding import StepOutputs, judge_against_float64, needs_float64
from cabw_viz.replay.parity.descriptions import hook_notes
from cabw_viz.replay.placement.placed_graph import PlacedGraph
from cabw_viz.replay.placement.target import AS_CAPTURED, Target
from cabw_viz.replay.replay import Replay
from cabw_viz.runtime.capture_state import Captured
from cabw_viz.runtime.gradient_snapshots import Gradient, GradientSnapshot, NodeGradients


def divergence(
    captured: Captured,
    *,
    target: Target = AS_CAPTURED,
    hooks: HookPolicy = "run",
    rtol: float | None = None,
    atol: float | None = None,
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

    Raises:
        CabwError: the gradients of the nodes were not kept, or the graph cannot be run again.
    """
    record = captured.record
    NodeComparer(rtol, atol).tolerance(torch.float32)
    replay = Replay(captured, target, hooks)
    gradients = check_node_gradients(captured)
    sites = gradient_sites(captured, gradients)
    python = runs_python(record)
    if python:
        sites = sites.with_writes()
    comparer = NodeComparer(rtol, atol, target.moves, rereads=python)
    search = _Search(replay, sites, comparer)
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


class Steps(Protocol):
    """The two sides of each step of a graph, interpreted or compiled."""

    graph: PlacedGraph

    def observe(self) -> tuple[dict[str, NodeComparison], CabwError | None]:
        """Run the graph; each gradient against that of the user's own run, and what stopped the run on the way."""

    def other_side(self, name: str) -> Any:
        """The gradient at a site with which a step that runs alone begins; None where it is not known."""

    def pairs(self, name: str, value: Any) -> list[tuple[GradientSnapshot | None, Any]]:
        """Reference and candidate at a site, of which the value was made by a step that ran alone."""

    def reproduced(self, names: Collection[str]) -> frozenset[str]:
        """The sites, of these, where a fault of the candidate cannot be in a float64 run of the graph too."""


class _Search:
    """One search.

    findings
    ├─ Steps.observe            the graph runs once
    ├─ _IsolatedSteps           where anything differs: it runs again, each step alone
    └─ _judge_against_float64   where that is in question: once more in double precision
    """

    def __init__(self, replay: Replay, sites: GradientSites, comparer: NodeComparer) -> None:
        self.replay, self.sites, self.comparer = replay, sites, comparer
        self.steps: Steps = (CompiledSteps if replay.target.compiles else InterpretedSteps)(replay, sites, comparer)
        self.notes: list[str] = []

    def findings(self) -> Findings:
        """Run the graph, and each of its steps alone if anything differs."""
        observed, stopped = self.steps.observe()
        findings = Findings(self.sites, observed)
        if isinstance(stopped, StoppedError):
            observed.update(stopped.rejected())
        if stopped is not None:
            if all(comparison.agrees for comparison in observed.values()):
                raise stopped
            self.notes.append(f"the replay stopped: {stopped.seen}")
        elif all(comparison.difference.verdict == "bitwise" for comparison in observed.values()):
            return findings
        findings.isolated, findings.substituted = self._isolate_steps()
        return findings

    def _isolate_steps(self) -> tuple[dict[str, NodeComparison], frozenset[str]]:
        """Run each step on the other side's gradients; its results, and the sites at which these were known."""
        isolated = _IsolatedSteps(self.steps.graph, self.sites, self.steps, self.comparer)
        try:
            self.replay.run(isolated)
        except CabwError as error:
            self.notes.append(f"not every step could be run alone: {error.seen}")
            if isinstance(error, StoppedError):
                isolated.comparisons |= error.rejected()
        if isolated.in_question:
            self._judge_against_float64(isolated)
        return isolated.comparisons, frozenset(isolated.substituted)

    def _judge_against_float64(self, isolated: _IsolatedSteps) -> None:
        """Run each step in double precision on the same gradients; what rounding explains is no mismatch."""
        replay = self.replay.at(Target(dtype=torch.float64))
        reproduced = self.steps.reproduced(isolated.in_question)
        try:
            replay.run(_Float64Steps(replay.graph, isolated, reproduced))
        except CabwError as error:
            self.notes.append(f"differences could not be judged in double precision: {error.seen}")


class _IsolatedSteps(ProbingInterpreter):
    """Runs each step on the other side's gradients, and compares its results."""

    def __init__(self, graph: PlacedGraph, sites: GradientSites, steps: Steps, comparer: NodeComparer) -> None:
        super().__init__(graph, sites)
        self.steps, self._compare = steps, comparer
        self.comparisons: dict[str, NodeComparison] = {}
        self.substituted: set[str] = set()
        """The sites at which the next step took the other side's gradient."""
        self.in_question: dict[str, StepOutputs] = {}
        """The results that a float64 run must judge."""

    def on_value(self, name: str, value: Any) -> Any:
        """Judge it; the graph goes on with what the other side had."""
        for reference, candidate in self.steps.pairs(name, value):
            comparison = self._compare(reference, candidate)
            if comparison is None:
                continue
            self.comparisons[name] = comparison
            if self._compare.has_user_tolerance or not isinstance(reference, Gradient) or candidate is None:
                continue
            if needs_float64(comparison.difference, reference.value, candidate):
                self.in_question[name] = StepOutputs(reference.value.detach(), candidate.detach())
        other = substitute(self.steps.other_side(name), value)
        if other is None:
            return value
        self.substituted.add(name)
        return other


class _Float64Steps(ProbingInterpreter):
    """Runs each step in double precision on the other side's gradients, and judges the differences in question."""

    def __init__(self, graph: PlacedGraph, isolated: _IsolatedSteps, reproduced: frozenset[str]) -> None:
        super().__init__(graph, isolated.sites)
        self._isolated, self._reproduced = isolated, reproduced

    def on_value(self, name: str, value: Any) -> Any:
        """Judge by it; the graph goes on with what the other side had."""
        isolated = self._isolated
        if name in isolated.in_question and isinstance(value, torch.Tensor):
            comparison, independent = isolated.comparisons[name], name in self._reproduced
            difference = judge_against_float64(
                comparison.difference, isolated.in_question[name], value, independent=independent
            )
            isolated.comparisons[name] = replace(comparison, difference=difference)
        other = substitute(isolated.steps.other_side(name), value)
        return value if other is None else other
