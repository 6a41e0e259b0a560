"""Divergence: the gradients into and out of every autograd node, in the user's own run and in the graph run again.

1. The graph runs once, and what it has at each place is held against what eager had there.
2. If anything differs, it runs once more, each step on eager's own gradients: what differs now is the step's own doing.
   For a compiled graph, whose steps cannot be run alone, it is the other way round: each step runs in eager on what the
   compiled graph had there, and what it makes is held against what the compiled graph had next.
3. If a step's own difference is more than a tolerance allows, or is in half precision, where tolerances are wide, a run
   in double precision tells whether both sides are as far off as rounding takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.divergence import Difference, Divergence
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.options import EAGER, HookPolicy
from cabw_viz.replay.divergence.gradient_sites import GradientSites, gradient_sites
from cabw_viz.replay.divergence.node_comparison import Judged, NodeJudge
from cabw_viz.replay.divergence.probing import Following, StoppedError, with_places_out
from cabw_viz.replay.divergence.rows import Findings, rows_of
from cabw_viz.replay.divergence.step_rounding import StepOutputs, judge_against_float64, needs_float64
from cabw_viz.replay.parity.comparison import check_reference
from cabw_viz.replay.parity.comparison import notes as notes_of_hooks
from cabw_viz.replay.parity.descriptions import RUNS
from cabw_viz.replay.placement.compiled import run_compiled
from cabw_viz.replay.placement.runnable_graph import RunnableGraph
from cabw_viz.replay.placement.target import AS_CAPTURED, Target
from cabw_viz.replay.runner import interpreted, prepared, runnable
from cabw_viz.runtime.capture_state import CaptureState
from cabw_viz.runtime.gradient_snapshots import Gradient, GradientSnapshot, NodeGradients


def divergence(
    record: CaptureRecord,
    live: CaptureState,
    *,
    target: Target = AS_CAPTURED,
    hooks: HookPolicy = "run",
    rtol: float | None = None,
    atol: float | None = None,
) -> Divergence:
    """Find the steps of a backward whose gradients differ from eager's although what they were given agrees.

    Nothing is written. The replay's gradients are let go as it runs; those of a compiled graph are all outputs of it,
    and are compared afterwards.

    Args:
        record: the capture.
        live: what it keeps alive.
        target: where, in which dtype and under which backend the graph runs again.
        hooks: see `replay`; the graph runs up to three times, and hooks with it.
        rtol: relative tolerance; with `atol`, instead of torch.testing's for the dtype, and final then.
        atol: tolerance in units of a gradient's largest element.

    Raises:
        CabwError: the gradients of the nodes were not kept, or the graph cannot be run again.
    """
    NodeJudge(rtol, atol).tolerance(torch.float32)
    graph, _ = runnable(record, live)
    eager = check_kept(record, live)
    places = gradient_sites(record, graph.graph)
    python = runs_python(record)
    if python and not target.compiles:  # a compiler is told of writes, and makes them as if nobody else read that
        places = places.with_writes()
    across = target.device is not None or target.dtype is not None
    judge = NodeJudge(rtol, atol, across, rereads=python)
    search = _Search(record, live, eager, places, target, hooks, judge)
    findings = search.findings()
    rows, culprits, nonfinite = rows_of(record, findings)
    return Divergence(
        RUNS["eager"],
        words_of(target),
        rows,
        culprits,
        nonfinite,
        tuple((dtype, *values) for dtype, values in sorted(judge.used.items())),
        findings.compared,
        tuple(search.notes()),
    )


def check_kept(record: CaptureRecord, live: CaptureState) -> NodeGradients:
    """The gradients of the user's own run.

    Raises:
        CabwError: they were not kept.
    """
    if record.run != "eager":
        raise CabwError(
            "this backward ran through compiled autograd, where the gradients of its nodes cannot be seen",
            expected="a backward that ran in eager, which is the side to compare with",
            try_='cabw_viz.capture(model, run="eager"), outside of any compiled autograd of your own, then '
            "cap.divergence(backend=...)",
        )
    check_reference(record, live)
    if live.node_gradients is None:
        raise CabwError(
            'the session was captured with gradients="leaves", so the gradients of the nodes were not kept',
            expected="gradients into and out of every autograd node",
            try_='cabw_viz.capture(..., gradients="nodes"), which is the default',
        )
    return live.node_gradients


def runs_python(record: CaptureRecord) -> bool:
    """Whether code of the user's runs in a backward: it may write to gradients behind autograd's back."""
    return any(node.hooks or node.kind in ("custom_function", "cpp_function") for node in record.autograd_nodes)


def words_of(target: Target) -> str:
    """What is held against eager, in words."""
    how = "op by op on eager kernels" if not target.compiles else f"compiled by {target.backend_name}"
    where = f" on {target.device}" if target.device is not None else ""
    dtype = f" in {target.dtype}" if target.dtype is not None else ""
    return f"the captured graph run again{where}{dtype}, {how}"


@dataclass
class _Search:
    """One comparison on its way."""

    record: CaptureRecord
    live: CaptureState
    eager: NodeGradients
    places: GradientSites
    target: Target
    hooks: HookPolicy
    judge: NodeJudge
    compiled: dict[str, Any] = field(default_factory=dict)
    """What a compiled graph had at each place."""
    held: dict[str, StepOutputs] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        flowing = {name for step in self.places.steps for name in (*step.reads, *step.makes)}
        self.of_interest = frozenset(self.places.names) | flowing
        writes = any(step.kind == "in_place_write" for step in self.places.steps)
        self.taken = self.places.taken if writes else {}

    def findings(self) -> Findings:
        """Follow the graph, and look at its steps alone if anything differs."""
        ready = prepared(self.record, self.live, self.target, self.hooks)
        followed, stopped = self._follow_compiled(ready) if self.target.compiles else self._follow(ready)
        findings = Findings(self.places, self.eager, followed)
        if stopped is not None:
            followed.update(self._refused(stopped))
            if all(judged.agrees for judged in followed.values()):
                raise stopped
            self.said.append(f"the replay stopped: {stopped.seen}")
        elif all(judged.difference.verdict == "bitwise" for judged in followed.values()):
            return findings
        findings.alone, findings.given = self._step_alone(ready)
        if self.held:
            self._excuse(findings.alone)
        return findings

    # -- following -----------------------------------------------------------------------------------------------

    def _follow(self, ready: RunnableGraph) -> tuple[dict[str, Judged], CabwError | None]:
        """Run the graph, and judge what it has at each place; with what stopped it on the way."""
        judged: dict[str, Judged] = {}

        def at(name: str, value: Any) -> Any:
            found = self._against_eager(name, value)
            if found is not None:
                judged[name] = found
            return value

        try:
            self._interpret(ready, at)
        except CabwError as error:
            return judged, error
        return judged, None

    def _follow_compiled(self, ready: RunnableGraph) -> tuple[dict[str, Judged], CabwError | None]:
        """Run the compiled graph, and judge what it had at each place."""
        graph, names = with_places_out(ready.graph, self._values_to_return())
        ran = run_compiled(self.record, replace(ready, graph=graph), hooks=self.hooks == "run")
        self.compiled = dict(zip(names, ran.returned[len(ran.returned) - len(names) :], strict=True))
        for step in self.places.steps:
            if step.kind == "accumulate_grad":
                self.compiled[step.makes[0]] = ran.collected.get(step.number)
        pairs = ((name, self._against_eager(name, value)) for name, value in self.compiled.items())
        return {name: found for name, found in pairs if found is not None}, None

    def _values_to_return(self) -> set[str]:
        accumulations = {step.makes[0] for step in self.places.steps if step.kind == "accumulate_grad"}
        return set(self.of_interest - accumulations)

    # -- step by step --------------------------------------------------------------------------------------------

    def _step_alone(self, ready: RunnableGraph) -> tuple[dict[str, Judged], frozenset[str]]:
        """Run each step on what the other side had; what it makes of that, and at which places that was known."""
        judged: dict[str, Judged] = {}
        given: set[str] = set()

        def at(name: str, value: Any) -> Any:
            if self.compiled:
                references: tuple[GradientSnapshot | None, ...] = (None if value is None else Gradient(value, None),)
                candidate = self.compiled.get(name)
            else:
                references, candidate = self.places.kept(name, self.eager), value
            for reference in references:
                found = self._judged_alone(name, reference, candidate)
                if found is not None:
                    judged[name] = found
            instead = self._instead(name, value)
            if instead is None:
                return value
            given.add(name)
            return instead

        try:
            self._interpret(replace(ready, target=replace(ready.target, backend=EAGER)), at)
        except CabwError as error:
            self.said.append(f"not every step could be run alone: {error.seen}")
            judged |= self._refused(error)
        return judged, frozenset(given)

    def _refused(self, stopped: CabwError) -> dict[str, Judged]:
        """Where a replay stopped because an autograd node had made a gradient of another shape: that."""
        node = stopped.node if isinstance(stopped, StoppedError) else None
        if node is None or not torch_adapter.is_validate_outputs(node.target):
            return {}
        difference = Difference("metadata", note=stopped.reason if isinstance(stopped, StoppedError) else "")
        return {user.name: Judged(difference, (True, True), (None, None)) for user in node.users}

    def _judged_alone(self, name: str, reference: GradientSnapshot | None, candidate: Any) -> Judged | None:
        found = self.judge(reference, candidate)
        if found is None or self.judge.given or not isinstance(reference, Gradient) or candidate is None:
            return found
        if needs_float64(found.difference, reference.value, candidate):
            self.held[name] = StepOutputs(reference.value.detach(), candidate.detach())
        return found

    def _instead(self, name: str, value: Any) -> torch.Tensor | None:
        """What the other side had at a place, as a tensor that the graph can go on with."""
        if value is None:
            return None
        if self.compiled:
            other = self.compiled.get(name)
        else:
            found = self.places.kept(name, self.eager)
            other = found[0].value if found and isinstance(found[0], Gradient) else None
        if not isinstance(other, torch.Tensor):
            return None
        # A copy, for hooks and custom Functions may write to what they are given.
        return other.detach().to(value.device, value.dtype, copy=True) if other.layout is value.layout else None

    def _excuse(self, alone: dict[str, Judged]) -> None:
        """Run each step in double precision on the same, and excuse what rounding explains."""
        # A compiler's fault is in its own code alone; one of an operator is in every run of the graph.
        reproduced = frozenset(self.held) if self.compiled else self._reproduced()

        def at(name: str, value: Any) -> Any:
            if name in self.held and isinstance(value, torch.Tensor):
                independent = name in reproduced
                difference = judge_against_float64(
                    alone[name].difference, self.held[name], value, independent=independent
                )
                alone[name] = replace(alone[name], difference=difference)
            there = self._instead(name, value)
            return value if there is None else there

        exact = Target(dtype=torch.float64)
        try:
            self._interpret(prepared(self.record, self.live, exact, self.hooks), at)
        except CabwError as error:
            self.said.append(f"differences could not be judged in double precision: {error.seen}")

    def _reproduced(self) -> frozenset[str]:
        """Where eager's own device and dtype are enough for the graph to make what eager made."""
        found: set[str] = set()
        judge = NodeJudge(rereads=True)

        def at(name: str, value: Any) -> Any:
            references = self.places.kept(name, self.eager) if name in self.held else ()
            if any(judged is not None and judged.agrees for judged in (judge(each, value) for each in references)):
                found.add(name)
            there = self._instead(name, value)
            return value if there is None else there

        if self.judge.across:
            try:
                self._interpret(prepared(self.record, self.live, AS_CAPTURED, self.hooks), at)
            except CabwError:  # it may be that only the target can run it; nothing is reproduced then
                return frozenset(found)
        return frozenset(found)

    # -- both ----------------------------------------------------------------------------------------------------

    def _interpret(self, ready: RunnableGraph, at: Callable[[str, Any], Any]) -> None:
        elsewhere = ready.elsewhere

        def judging(name: str, value: Any) -> Any:
            assert elsewhere is not None
            with elsewhere.paused():  # else what we compute would be computed in the target's dtype
                return at(name, value)

        seeing = at if elsewhere is None else judging
        interpreted(
            self.record, ready, partial(Following, places=self.of_interest, taken=self.taken, at=seeing), self.hooks
        )

    def _against_eager(self, name: str, candidate: Any) -> Judged | None:
        """A gradient against what eager had there; None where nothing was seen."""
        found = self.places.kept(name, self.eager)
        return self.judge(found[0], candidate) if found else None

    def notes(self) -> list[str]:
        """What a reader of the comparison must know."""
        found = list(notes_of_hooks(self.record, self.hooks))
        if self.target.compiles:
            found.append(
                "the gradients of all nodes are outputs of this compiled graph; without them its kernels may be fused "
                "otherwise"
            )
        if self.eager.fingerprints:
            found.append(
                f"{self.eager.fingerprints:,} gradients were too many for max_bytes: they are compared by fingerprints "
                "(norm, range, a hash of the bits, samples)"
            )
        return found + self.said
