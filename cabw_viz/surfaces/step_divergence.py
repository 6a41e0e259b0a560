"""The autograd node at which the gradients of a whole step first differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cabw_viz.analysis import divergence as analysis
from cabw_viz.record.kinds import GOOD
from cabw_viz.record.steps import StepRun
from cabw_viz.replay.steps.running import captured_call
from cabw_viz.replay.steps.step_plan import CompareArguments, Plan, plan_of
from cabw_viz.surfaces.session import Session, capture
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
    """A line for each run with a gradient that differs because of a node of the graph; most often one line or none.

    The step is captured once more, in eager, and the graph of its backward runs again as in that run: op by op for
    compiled autograd, else under the backend. A fault outside of the backward, in a forward or in a step of the user's
    own, shows no divergence there, and gives no line.

    Args:
        step: what was compared; this and the following as given to `compare`.
        params: its parameters.
        matrix: the outcome of the comparison.
        backward: how it calls its backward.
        backends: the backends that it ran under.
        repeats: how often.
    """
    plan = plan_of(CompareArguments(step, params, backward, None, None, backends, {}, repeats, None, None))
    replay_backends = {mode.name: mode.replay_backend for mode in plan.modes}
    lines = []
    for run in matrix.matrix.runs:
        call, backend = _first_wrong_call(run), replay_backends.get(run.name)
        if call is None or backend is None:
            continue
        summary = next(_summaries(plan, call, backend), None)
        if summary is not None:
            lines.append(f"{run.name}: {summary}")
    return lines


def _first_wrong_call(run: StepRun) -> int | None:
    """The first call in which a gradient differs; None where none does."""
    wrong = (
        index
        for index, call in enumerate(run.calls)
        if any(row.kind == "gradient" and row.verdict not in GOOD for row in call.rows)
    )
    return next(wrong, None)


def _summaries(plan: Plan, call: int, backend: Any) -> Iterator[str]:
    """A sentence for each backward in a call of the step that has a divergence."""
    try:
        with captured_call(plan, call, _capture) as session:
            for captured in session:
                report = captured.divergence(backend=backend)
                if report.first is not None:
                    yield analysis.summary(report.divergence)
            session.close()
    except Exception:  # noqa: BLE001  # the assertion has failed already; whatever this raises would hide why
        return


def _capture(params: Any) -> Session:
    return capture(params, lines=False, tripwire=False, snapshot=True)
