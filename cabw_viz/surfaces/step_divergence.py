"""Which autograd node is to blame where a whole step's gradients differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cabw_viz import torch_adapter
from cabw_viz.analysis import divergence as analysis
from cabw_viz.record.kinds import GOOD
from cabw_viz.record.steps import StepRun
from cabw_viz.replay.steps.observing import observe
from cabw_viz.replay.steps.random_state import RandomState
from cabw_viz.replay.steps.step_plan import COMPILED_AUTOGRAD, EAGER, Plan, Wanted, plan_of
from cabw_viz.replay.steps.step_under_test import State
from cabw_viz.surfaces.session import capture
from cabw_viz.surfaces.step_report import BACKENDS, ParityMatrix


def first_divergences(  # the arguments of `compare`, given by their names
    step: Any,
    params: Any,
    matrix: ParityMatrix,
    *,
    backward: Callable[[Any], Any] | None = None,
    backends: Any = BACKENDS,
    repeats: int = 3,
    **_: Any,
) -> list[str]:
    """A line for each run with a gradient that differs and of whose graph a node can be named; most often one or none.

    The step is captured once more, in eager, and the graph of its backward runs again as the run had it: op by op for
    compiled autograd, else under the backend. What is wrong elsewhere, in a forward or in a step of the user's own,
    shows no divergence there, and nothing is said of it.

    Args:
        step: what was compared; this and the following as given to `compare`.
        params: its parameters.
        matrix: what it came to.
        backward: how it calls its backward.
        backends: what it was run under.
        repeats: how often.
    """
    plan = plan_of(Wanted(step, params, backward, None, None, backends, {}, repeats, None, None))
    given = [backends] if isinstance(backends, str) or callable(backends) else backends
    by_name = dict(zip((manner.name for manner in plan.manners), given, strict=True))
    lines = []
    for run in matrix.matrix.runs:
        call, backend = _first_wrong_call(run), by_name.get(run.name, EAGER.name)
        if call is None or backend == EAGER.name:
            continue
        found = next(_found(plan, call, EAGER.name if backend == COMPILED_AUTOGRAD.name else backend), None)
        if found is not None:
            lines.append(f"{run.name}: {found}")
    return lines


def _first_wrong_call(run: StepRun) -> int | None:
    """The first call in which a gradient differs; None where none does."""
    wrong = (
        index
        for index, call in enumerate(run.calls)
        if any(row.kind == "gradient" and row.verdict not in GOOD for row in call.rows)
    )
    return next(wrong, None)


def _found(plan: Plan, call: int, backend: Any) -> Iterator[str]:
    """The first divergence of each backward in a call of the step that has one."""
    random = RandomState()
    subject = plan.source(plan.variants[0])
    state = State(subject)
    try:
        for _ in range(call):
            observe(subject, subject.step, plan.backward, None)
        with capture(subject.params, lines=False, tripwire=False, snapshot=True) as session:
            observe(subject, subject.step, plan.backward, None)
        for captured in session:
            report = captured.divergence(backend=backend)
            if report.first is not None:
                yield analysis.summary(report.divergence)
        session.close()
    except Exception:  # noqa: BLE001  # the assertion has failed already; whatever this raises would hide why
        return
    finally:
        state.put_back()
        random.restore()
        torch_adapter.reset_dynamo()
