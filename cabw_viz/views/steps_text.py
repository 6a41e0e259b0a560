"""Whole steps compared, as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from cabw_viz.analysis import steps
from cabw_viz.analysis.steps import Cell, Finding
from cabw_viz.record.comparison import GradientComparison
from cabw_viz.record.kinds import GOOD
from cabw_viz.record.steps import StepMatrix, StepRun
from cabw_viz.views.tables import figure, marked, shape_text
from cabw_viz.views.text import aligned, in_line, name_in_line

RAISES = "raises"
"""Stands for every value of a run that raised."""
NONE = "none"
"""Stands for a value that neither side of a run has."""

FINDINGS_SHOWN = 12


def matrix_text(matrix: StepMatrix) -> str:
    """The matrix as plain text: what was run, a line for each value, what differs, the outcome."""
    names = steps.labels(matrix)
    columns = [["parameter", *map(name_in_line, names)]]
    columns += [[in_line(run.name), *column(run, names)] for run in matrix.runs]
    table = list(zip(*columns, strict=True))
    differences = [f"  {line}" for line in finding_lines(matrix)]
    return "\n".join([*facts(matrix), "", *aligned(table), "", *differences, steps.summary(matrix)])


def facts(matrix: StepMatrix) -> list[str]:
    """The lines on the runs, their references, the tolerances and the notes."""
    lines = [f"reference: {matrix.reference}", *map(_fact, matrix.runs)]
    lines += [f"tolerance: {dtype} rtol={rtol:g} atol={atol:g}" for dtype, rtol, atol in matrix.tolerances]
    lines += [f"note: {in_line(run.name)}: {in_line(note, 500)}" for run in matrix.runs for note in run.notes]
    return lines + [f"note: {in_line(note, 500)}" for note in matrix.notes]


def _fact(run: StepRun) -> str:
    """A line on one run and its reference."""
    against = "" if run.reference == "eager" else f"; against {in_line(run.reference)}"
    return f"{in_line(run.name)}: {in_line(run.description, 200)}{against}"


def column(run: StepRun, names: list[str]) -> list[str]:
    """What stands in a run's column for the values of these names."""
    if steps.raised(run):
        return [f"✗ {RAISES}"] * len(names)
    cells = steps.cells(run)
    return [_cell_text(run, cells[name]) if name in cells else NONE for name in names]


def _cell_text(run: StepRun, cell: Cell) -> str:
    """A value in a run: `✓ bitwise`, or `✗ mismatch 1.20e-01 in call 0 of 3`."""
    row = cell.worst
    error = "" if row.verdict == "bitwise" or row.max_rel_err is None else figure(row.max_rel_err)
    some = bool(cell.differs) and len(cell.differs) < len(run.calls)
    where = steps.in_calls(cell.differs, len(run.calls)) if some else ""
    return " ".join(filter(None, (marked(row.verdict), error, where)))


def finding_lines(matrix: StepMatrix, shown: int = FINDINGS_SHOWN) -> list[str]:
    """What differs, worst first, and what was raised: a line each."""
    lines = list(_raised_lines(matrix))
    findings = steps.findings(matrix)
    lines += [finding_text(finding, matrix.repeats) for finding in findings[:shown]]
    return [*lines, f"… and {len(findings) - shown:,} more"] if len(findings) > shown else lines


def _raised_lines(matrix: StepMatrix) -> Iterator[str]:
    for run in matrix.runs:
        for text, calls in steps.raised(run).items():
            yield f"{in_line(run.name)} raises {steps.in_calls(calls, matrix.repeats)}: {_one_line(text)}"


def _one_line(text: str) -> str:
    return in_line(" ".join(text.split()), 500)


def finding_text(finding: Finding, repeats: int) -> str:
    """One value that differs: run, calls, name, verdict, the first wrong element on both sides, errors."""
    row = finding.row
    where = f"{in_line(finding.run)} {steps.in_calls(finding.differs, repeats)}"
    worst = f", worst in call {finding.call}" if len(finding.differs) > 1 else ""
    return f"{where}{worst}: {name_in_line(steps.label(row))}: {row.verdict}: {'; '.join(_reasons(row))}"


def _reasons(row: GradientComparison) -> Iterator[str]:
    kind = {"gradient": "a gradient", "loss": "a loss"}.get(row.kind, f"this {row.kind}")
    if row.verdict == "missing":
        yield f"the reference has {kind} {shape_text(row.shape)}, this run has none"
    elif row.verdict == "unexpected":
        yield f"this run has {kind} {shape_text(row.shape)}, the reference has none"
    elif row.verdict == "mismatch" and row.mismatched:
        yield f"{row.mismatched:,} of {row.elements:,} elements"
    if row.first is not None:
        place = str(list(row.first.index)) if row.first.index else "the value"
        yield f"first {place}: {row.first.reference:.6g} in the reference, {row.first.candidate:.6g} here"
    if row.max_abs_err is not None and row.verdict not in GOOD:
        yield f"max abs err {figure(row.max_abs_err)}, max rel err {figure(row.max_rel_err)}"
    if row.noise:
        yield f"eager's own noise {figure(row.noise)}"
    if row.note:
        yield in_line(row.note, 200)
