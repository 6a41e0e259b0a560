"""What a search for the first divergence shows, from plain data: frame, text, coloured table, sentences."""

from __future__ import annotations

import math
import re

import pytest

from cabw_viz.analysis import divergence as analysis
from cabw_viz.record.divergence import Difference, Divergence, DivergenceRow, NonFinite, Range
from cabw_viz.record.source_line import SourceLine
from cabw_viz.views import divergence_table as views
from cabw_viz.views.html import divergence_html

SAME = Difference("bitwise", 0.0, 0.0)
OFF = Difference("mismatch", 2e-3, 1e-3)
NOISE = Difference("within_noise", 3e-3, 2e-2, "in float64: 1e-02 off the reference, 1e-02 off the candidate")
HOSTILE = "<img src=x onerror=alert(1)>\n$x$ " + "\u202e" + "a" * 300


def row(number, kind="builtin", *, name="MulBackward0", into=SAME, out=SAME, own=SAME, **more):
    return DivergenceRow(number, kind, name, into=into, out=out, own=own, **more)


def divergence(*rows, culprits=(), **more):
    return Divergence("your own eager run", "the graph", rows, culprits, compared=len(rows), **more)


FAULT = divergence(
    row(0, "graph_root", name="GraphRoot", into=None),
    row(1),
    row(2, "gradient_sum", name="sum into TanhBackward0, input 0"),
    row(2, name="TanhBackward0", out=OFF, own=OFF, module="layers.3", visit=1, line=SourceLine("/a/model.py", 12, "x")),
    row(3, into=OFF, out=OFF),
    row(4, "accumulate_grad", name="AccumulateGrad w", into=OFF, out=OFF, own=None),
    culprits=(3,),
)


def test_the_first_is_named_with_module_call_and_line():
    assert FAULT.first is FAULT.rows[3]
    assert not analysis.ok(FAULT)
    assert analysis.summary(FAULT) == (
        "First divergence: #2 TanhBackward0 in layers.3 (call 2), model.py:12. Its inputs match eager; its "
        "output is off by 0.001 (relative to the largest element)."
    )


def test_a_nan_on_one_side_is_no_agreement_though_no_step_alone_is_at_fault():
    nan = Difference("nonfinite", note="not finite: 0 | 3")
    rows = row(0, out=nan), row(1, into=nan, out=nan)
    for side in ("reference", "candidate"):
        found = divergence(*rows, nonfinite=(NonFinite(side, 0, (Range(0.0, 1.0),), Range(math.nan, math.nan)),))
        assert not analysis.ok(found)
        assert not analysis.drifts(found)
        assert "a NaN or an infinity begins where the other side has none" in analysis.summary(found)
    assert analysis.ok(divergence(*rows, nonfinite=(NonFinite("both", 0, (), Range(math.nan, math.nan)),)))


def test_sums_and_hooks_are_named_by_what_they_stand_at():
    found = divergence(
        row(5, "gradient_sum", name="sum into AddBackward0, input 0", out=OFF, own=OFF),
        row(5, "hook", name="hook f of AddBackward0", own=Difference("nonfinite", note="not finite: 0 | 3")),
        culprits=(0, 1),
    )
    assert analysis.summary(found).startswith("First divergence: sum into AddBackward0, input 0 (#5). ")
    assert analysis.summary(found).endswith(" Also diverging on its own: hook f of AddBackward0 (#5).")


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (Difference("missing"), "it has no output, and the reference has one"),
        (Difference("unexpected"), "it has an output, and the reference has none"),
        (Difference("metadata", note="shape: (2,) | (3,)"), "the metadata of its output differ (shape: (2,) | (3,))"),
        (Difference("nonfinite", note="not finite: 1"), "its output is not finite (not finite: 1)"),
    ],
)
def test_each_kind_of_difference_has_its_words(own, says):
    assert says in analysis.summary(divergence(row(1, out=own, own=own), culprits=(0,)))


def test_many_at_fault_are_counted():
    rows = [row(i, own=OFF) for i in range(9)]
    text = analysis.summary(divergence(*rows, culprits=tuple(range(9))))
    named = "#1 MulBackward0, #2 MulBackward0, #3 MulBackward0, #4 MulBackward0, #5 MulBackward0"
    assert text.endswith(f"Also diverging on their own: {named} and 3 more.")


def test_none_and_nothing_and_drift():
    assert analysis.summary(divergence(row(1))) == "No divergence: 1 gradients were compared at 1 steps (1 bitwise)."
    assert analysis.summary(divergence()) == "No gradients were compared, so nothing is shown."
    assert not analysis.ok(divergence())
    drift = divergence(row(1, out=OFF, own=NOISE))
    assert analysis.ok(drift)
    assert analysis.drifts(drift)
    assert "drift apart by rounding" in analysis.summary(drift)
    assert not analysis.drifts(divergence(row(1)))


def test_where_nan_begins():
    found = divergence(
        row(1),
        row(2, name="SqrtBackward0"),
        nonfinite=(NonFinite("both", 1, (Range(0.0, 2.5),), Range(0.0, math.inf)),),
    )
    text = views.divergence_text(found)
    assert "First NaN or infinity on both sides: #2 SqrtBackward0. Inputs: 0 to 2.5; output: 0 to inf." in text


def test_the_frame_has_a_row_for_each_step():
    frame = views.divergence_frame(FAULT)
    assert dict(frame.dtypes.astype(str)) == views.COLUMNS
    assert list(frame["number"]) == [0, 1, 2, 2, 3, 4]
    assert list(frame["verdict_own"]) == ["bitwise"] * 3 + ["mismatch", "bitwise", None]
    assert frame.loc[3, ["module", "visit", "line"]].tolist() == ["layers.3", 1, "/a/model.py:12"]
    assert frame.loc[3, "max_rel_err_own"] == 1e-3
    assert math.isnan(frame.loc[5, "max_rel_err_own"])
    assert dict(views.divergence_frame(divergence()).dtypes.astype(str)) == views.COLUMNS


def test_the_text_marks_the_first_and_says_how_many_rows_are_left():
    text = views.divergence_text(FAULT)
    marked = [line for line in text.splitlines() if line.startswith("→")]
    assert len(marked) == 1
    assert re.search(
        r"^→ +2 +TanhBackward0 +layers\.3 +model\.py:12 +✓ bitwise +✗ mismatch +✗ mismatch +1\.00e-03$", marked[0]
    )
    assert "more rows" not in text
    many = divergence(*(row(i) for i in range(50)), row(50, own=OFF), *(row(i) for i in range(51, 99)), culprits=(50,))
    assert "… 92 more rows: .frame" in views.divergence_text(many)
    assert analysis.shown_rows(many) == list(range(46, 53))


def test_without_a_fault_the_largest_of_the_roundings_are_shown():
    assert analysis.shown_rows(divergence(*(row(i) for i in range(20)))) == []
    rows = [row(i, own=Difference("within_tolerance", 0.0, i * 1e-7)) for i in range(20)]
    assert analysis.shown_rows(divergence(*rows)) == list(range(12, 20))


def test_nothing_of_a_model_can_run():
    wild = divergence(
        row(1, name=HOSTILE, module=HOSTILE, line=SourceLine(HOSTILE, 1), out=OFF, own=OFF, note=HOSTILE),
        culprits=(0,),
        notes=(HOSTILE,),
    )
    page = divergence_html(wild)
    assert "<img" not in page
    assert "&lt;img src=x" in page
    assert "mathjax_ignore" in page
    assert "\n" not in views.divergence_text(wild).splitlines()[-1]
    assert divergence_html(wild) == page
