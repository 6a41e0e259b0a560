"""The outcome of a comparison of whole steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import get_args

from cabw_viz.analysis.parity import badness
from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.record.kinds import GOOD, Compared
from cabw_viz.record.steps import StepCall, StepMatrix, StepRun

KINDS: tuple[Compared, ...] = get_args(Compared)


@dataclass(frozen=True)
class Finding:
    """One value of one run, as it is in the call in which it is worst."""

    run: str
    call: int
    row: GradientComparison
    differs: tuple[int, ...]
    """The calls in which it differs."""


@dataclass(frozen=True)
class Cell:
    """One value in all calls of a run."""

    worst: GradientComparison
    call: int
    """The call in which it was worst, the first of equals."""
    differs: tuple[int, ...]
    """The calls in which it differs."""


def label(row: GradientComparison) -> str:
    """A row's name among all of a step: a parameter's own name, and `(loss)` or `(buffer) 1.running_mean`."""
    return _label(row.kind, row.name)


def _label(kind: Compared, name: str) -> str:
    return name if kind == "gradient" else f"({kind}) {name}".rstrip()


# -- runs ----------------------------------------------------------------------------------------------------


def ok(run: StepRun) -> bool:
    """Whether neither a run nor its reference raised, and every value of every call agrees."""
    return all(call_ok(call) for call in run.calls) and any(call.rows for call in run.calls)


def call_ok(call: StepCall) -> bool:
    """The same of one call."""
    return not call.raised and not call.reference_raised and all(row.verdict in GOOD for row in call.rows)


def failed_calls(run: StepRun) -> tuple[int, ...]:
    """The calls that differ or raise."""
    return tuple(call.index for call in run.calls if not call_ok(call))


def cells(run: StepRun) -> dict[str, Cell]:
    """Each value in all calls, by its label."""
    rows: dict[str, list[tuple[int, GradientComparison]]] = {}
    for call in run.calls:
        for row in call.rows:
            rows.setdefault(label(row), []).append((call.index, row))
    return {name: _cell(calls) for name, calls in rows.items()}


def _cell(rows: list[tuple[int, GradientComparison]]) -> Cell:
    call, worst = max(rows, key=lambda row: badness(row[1]))
    return Cell(worst, call, tuple(index for index, row in rows if row.verdict not in GOOD))


def raised(run: StepRun) -> dict[str, tuple[int, ...]]:
    """The texts of the exceptions of a run, and the calls that raised them."""
    return _by_text(call.raised for call in run.calls)


def reference_raised(matrix: StepMatrix) -> dict[str, tuple[int, ...]]:
    """The same of the uncompiled step."""
    return _by_text(matrix.raised)


def _by_text(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    calls: dict[str, tuple[int, ...]] = {}
    for index, text in enumerate(texts):
        if text:
            calls[text] = (*calls.get(text, ()), index)
    return calls


def in_calls(calls: tuple[int, ...], repeats: int) -> str:
    """A phrase for some calls: `in call 0 of 3`; `in every call`."""
    if len(calls) == repeats:
        return "in every call" if repeats > 1 else "in the one call"
    listed = ", ".join(map(str, calls))
    return f"in call{'s' if len(calls) > 1 else ''} {listed} of {repeats}"


# -- all of them ---------------------------------------------------------------------------------------------


def all_ok(matrix: StepMatrix) -> bool:
    """Whether every run agrees. No run at all shows nothing, and is not ok."""
    return bool(matrix.runs) and all(ok(run) for run in matrix.runs)


def labels(matrix: StepMatrix) -> list[str]:
    """The names of all values: parameters, then loss, results and buffers."""
    kinds = {_label(kind, name): kind for kind, name in matrix.values}
    kinds |= {label(row): row.kind for run in matrix.runs for call in run.calls for row in call.rows}
    return sorted(kinds, key=lambda name: KINDS.index(kinds[name]))


def findings(matrix: StepMatrix) -> list[Finding]:
    """Every value that differs, worst first."""
    return sorted(
        (finding for finding in _everything(matrix) if finding.differs),
        key=lambda finding: badness(finding.row),
        reverse=True,
    )


def worst(matrix: StepMatrix) -> Finding | None:
    """The worst value of all, whether it agrees or not; None without any value."""
    return max(_everything(matrix), key=lambda finding: badness(finding.row), default=None)


def _everything(matrix: StepMatrix) -> Iterator[Finding]:
    for run in matrix.runs:
        for cell in cells(run).values():
            yield Finding(run.name, cell.call, cell.worst, cell.differs)


def summary(matrix: StepMatrix) -> str:
    """The outcome in one sentence."""
    bad = [run for run in matrix.runs if not ok(run)]
    eager = reference_raised(matrix)
    if not matrix.runs:
        return "Nothing was run, so nothing is shown."
    if eager:
        text, calls = next(iter(eager.items()))
        return f"The uncompiled step itself raises {in_calls(calls, matrix.repeats)}: {text}"
    if not bad:
        each = f"{matrix.repeats} calls each" if matrix.repeats > 1 else "one call each"
        return f"All {len(matrix.runs)} runs agree, {each}." if len(matrix.runs) > 1 else f"The one run agrees, {each}."
    count = f"{len(bad)} of {len(matrix.runs)} runs differ" if len(matrix.runs) > 1 else "The one run differs"
    return f"{count}: {'; '.join(outcome(run) for run in bad)}."


def outcome(run: StepRun) -> str:
    """The outcome of a run, as a phrase: `inductor in call 0 of 3 (worst w: mismatch)`."""
    if ok(run):
        return f"{run.name} agrees"
    for text, calls in raised(run).items():
        return f"{run.name} raises {in_calls(calls, len(run.calls))} ({text.partition(':')[0]})"
    failed = failed_calls(run)
    if not failed:
        return f"{run.name} gave nothing to compare"
    where = in_calls(failed, len(run.calls))
    first = max(cells(run).values(), key=lambda cell: badness(cell.worst), default=None)
    named = f" (worst {label(first.worst)}: {first.worst.verdict})" if first else ""
    return f"{run.name} {where}{named}"


def report(matrix: StepMatrix, run: StepRun, call: int | None = None) -> Comparison:
    """One run as a comparison of gradients: of one call, or the worst of all, with the calls in the notes."""
    notes = [*run.notes, *(f"raises {in_calls(calls, len(run.calls))}: {text}" for text, calls in raised(run).items())]
    if call is not None:
        rows = [replace(row, name=label(row)) for row in run.calls[call].rows]
    else:
        rows = [_merged(name, cell, len(run.calls)) for name, cell in cells(run).items()]
    candidate = run.description if call is None else f"{run.description}, call {call}"
    reference = matrix.reference if run.reference == "eager" else f"the run {run.reference}"
    return Comparison(reference, candidate, tuple(rows), matrix.tolerances, (*notes, *matrix.notes))


def _merged(name: str, cell: Cell, repeats: int) -> GradientComparison:
    """The worst comparison of a value, with the calls in which it differs in the note."""
    where = in_calls(cell.differs, repeats) if cell.differs and repeats > 1 else ""
    return replace(cell.worst, name=name, note="; ".join(filter(None, (where, cell.worst.note))))
