import math
from dataclasses import replace

import pytest

from cabw_viz.analysis import parity
from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.record.kinds import SEVERITY


def row(name, verdict, rel=0.0, absolute=None):
    return GradientComparison(name, verdict, rel if absolute is None else absolute, rel, (2,), "float32")


def comparison(*rows):
    return Comparison("your own eager run", "the captured graph, run again", rows)


def test_a_comparison_of_nothing_is_not_ok():
    nothing = comparison()
    assert parity.ok(nothing) is False
    assert parity.worst(nothing) is None
    assert parity.counts(nothing) == {}
    assert parity.summary(nothing) == "No gradients were compared, so nothing is shown."


@pytest.mark.parametrize("verdict", SEVERITY)
def test_only_the_good_verdicts_are_ok(verdict):
    good = {"bitwise", "within_tolerance", "within_noise"}
    assert parity.ok(comparison(row("a", "bitwise"), row("b", verdict))) is (verdict in good)


def test_the_worst_goes_by_verdict_before_error():
    rows = [row("far", "mismatch", 0.5), row("gone", "missing", None), row("near", "within_tolerance", 0.9)]
    assert parity.worst(comparison(*rows)).name == "gone"


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([row("a", "mismatch", 0.1), row("b", "mismatch", 0.3), row("c", "mismatch", 0.2)], "b"),
        ([row("a", "mismatch", 0.3), row("b", "mismatch", 0.3)], "a"),  # the first of equals
        ([row("a", "nonfinite", 7.0), row("b", "nonfinite", math.nan)], "b"),
        ([row("a", "metadata", None), row("b", "metadata", 0.0)], "b"),
        ([row("a", "mismatch", 0.3, 1.0), row("b", "mismatch", 0.3, 2.0)], "b"),
        ([row("a", "bitwise"), row("b", "within_tolerance", 1e-9)], "b"),
    ],
)
def test_the_worst_of_one_verdict_has_the_largest_error(rows, name):
    assert parity.worst(comparison(*rows)).name == name


def test_counts_go_from_harmless_to_worst():
    rows = [row("a", "nonfinite"), row("b", "bitwise"), row("c", "metadata"), row("d", "bitwise")]
    assert list(parity.counts(comparison(*rows)).items()) == [("bitwise", 2), ("metadata", 1), ("nonfinite", 1)]


def test_summaries():
    good = [row("a", "bitwise"), row("b", "within_tolerance", 1e-8)]
    assert parity.summary(comparison(*good)) == "All 2 gradients agree: 1 bitwise, 1 within_tolerance."
    assert parity.summary(comparison(good[0])) == "The one gradient agrees: 1 bitwise."
    alike = [replace(each, nonfinite=2) for each in good]
    assert parity.summary(comparison(alike[0])).endswith(
        f" {alike[0].name} holds NaN or infinity, in the same elements on both sides."
    )
    assert "and 1 more hold NaN or infinity" in parity.summary(comparison(*alike))
    bad = row("0.weight", "mismatch", 1e-3)
    assert (
        parity.summary(comparison(*good, bad))
        == "1 of 3 gradients differ, worst 0.weight: 1 bitwise, 1 within_tolerance, 1 mismatch."
    )
