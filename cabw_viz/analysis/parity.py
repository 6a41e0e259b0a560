"""The outcome of a comparison of gradients."""

from __future__ import annotations

import math
from collections import Counter

from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.record.kinds import GOOD, SEVERITY, Verdict


def ok(comparison: Comparison) -> bool:
    """Whether every gradient agrees. A comparison without gradients shows nothing, and is not ok."""
    return bool(comparison.rows) and all(row.verdict in GOOD for row in comparison.rows)


def worst(comparison: Comparison) -> GradientComparison | None:
    """The gradient with the worst verdict and, of those, the largest error; the first of equals; None without any."""
    return max(comparison.rows, key=badness, default=None)


def badness(row: GradientComparison) -> tuple[int, float, float]:
    """A key that sorts gradients from harmless to worst."""
    return SEVERITY.index(row.verdict), _error(row.max_rel_err), _error(row.max_abs_err)


def _error(error: float | None) -> float:
    """An error to sort by: NaN is the largest, None the smallest."""
    if error is None:
        return -1.0
    return math.inf if math.isnan(error) else error


def counts(comparison: Comparison) -> dict[Verdict, int]:
    """How many gradients have each verdict that occurs, from harmless to worst."""
    numbers = Counter(row.verdict for row in comparison.rows)
    return {verdict: numbers[verdict] for verdict in SEVERITY if numbers[verdict]}


def summary(comparison: Comparison) -> str:
    """The outcome in one sentence, such as `All 4 gradients agree: 4 bitwise`."""
    total = len(comparison.rows)
    noun = "gradient" if all(row.kind == "gradient" for row in comparison.rows) else "value"
    coverage = f" {comparison.coverage}" if comparison.coverage else ""
    if not total:
        return f"No gradients were compared, so nothing is shown.{coverage}"
    listed = ", ".join(f"{count:,} {verdict}" for verdict, count in counts(comparison).items())
    bad = sum(row.verdict not in GOOD for row in comparison.rows)
    alike = _not_finite_alike(comparison)
    if not bad:
        return f"{_subject(comparison, noun)}: {listed}.{alike}{coverage}"
    first = worst(comparison)
    assert first is not None
    compared = " that were compared" if comparison.coverage else ""
    return f"{bad:,} of {total:,} {noun}s{compared} differ, worst {first.name}: {listed}.{alike}{coverage}"


def _subject(comparison: Comparison, noun: str) -> str:
    """What agrees: not all where something was not compared."""
    total = len(comparison.rows)
    if comparison.coverage:
        return f"The {total:,} {noun}s that were compared agree" if total > 1 else f"The one {noun} compared agrees"
    return f"All {total:,} {noun}s agree" if total > 1 else f"The one {noun} agrees"


def _not_finite_alike(comparison: Comparison) -> str:
    """A sentence on the gradients that hold NaN or infinities, the same on both sides; empty if there are none."""
    rows = [row for row in comparison.rows if row.nonfinite]
    if not rows:
        return ""
    others = f" and {len(rows) - 1:,} more hold" if len(rows) > 1 else " holds"
    return f" {rows[0].name}{others} NaN or infinity, in the same elements on both sides."
