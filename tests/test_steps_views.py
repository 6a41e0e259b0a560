"""Comparisons of whole steps as text, as tables and as HTML; made of records, without torch."""

from __future__ import annotations

import pytest

from cabw_viz.analysis import steps
from cabw_viz.record.comparison import Element, GradientComparison
from cabw_viz.record.steps import StepCall, StepMatrix, StepRun
from cabw_viz.views.html import matrix_html
from cabw_viz.views.steps_table import DETAILS, details_frame, matrix_frame, matrix_styler
from cabw_viz.views.steps_text import matrix_text
from tests.test_html import HOSTILE, TAME, Page


def row(name, verdict="bitwise", error=0.0, kind="gradient", **more):
    none = verdict in ("missing", "unexpected", "nonfinite", "metadata")
    errors = (None, None) if none else (error, error)
    return GradientComparison(name, verdict, *errors, (2, 3), "torch.float32", 6, kind=kind, **more)


def run(name, *calls, **more):
    made = (call if isinstance(call, StepCall) else StepCall(i, tuple(call)) for i, call in enumerate(calls))
    return StepRun(name, f"run {name}", "eager", tuple(made), **more)


def matrix(*runs, repeats=2, **more):
    return StepMatrix(runs, "the step in eager", repeats, **more)


GOOD = [row("w"), row("", kind="loss"), row("mean", kind="buffer")]
WRONG = row("w", "mismatch", 0.5, mismatched=2, first=Element((0, 1), 0.25, 0.75), noise=1e-7)
BAD = [WRONG, row("", "within_noise", 1e-5, kind="loss"), row("mean", kind="buffer")]
RAISED = StepCall(1, (), "ValueError: no\ndata")
MATRIX = matrix(
    run("eager", GOOD, GOOD),
    run("mine", GOOD, BAD, notes=("nothing was compiled",)),
    run("other", [row("w", "missing"), row("extra", "unexpected")], [row("w", "missing")]),
    run("boom", GOOD, RAISED),
    tolerances=(("torch.float32", 1.3e-6, 1e-5),),
    notes=("a note",),
)

TEXT = """\
reference: the step in eager
eager: run eager
mine: run mine
other: run other
boom: run boom
tolerance: torch.float32 rtol=1.3e-06 atol=1e-05
note: mine: nothing was compiled
note: a note

parameter      eager      mine                                other                        boom
w              ✓ bitwise  ✗ mismatch 5.00e-01 in call 1 of 2  ∅ missing                    ✗ raises
extra          none       none                                + unexpected in call 0 of 2  ✗ raises
(loss)         ✓ bitwise  ~ within_noise 1.00e-05             none                         ✗ raises
(buffer) mean  ✓ bitwise  ✓ bitwise                           none                         ✗ raises

  boom raises in call 1 of 2: ValueError: no data
  other in every call, worst in call 0: w: missing: the reference has a gradient (2, 3), this run has none
  mine in call 1 of 2: w: mismatch: 2 of 6 elements; first [0, 1]: 0.25 in the reference, 0.75 here; max abs err \
5.00e-01, max rel err 5.00e-01; eager's own noise 1.00e-07
  other in call 0 of 2: extra: unexpected: this run has a gradient (2, 3), the reference has none
3 of 4 runs differ: mine in call 1 of 2 (worst w: mismatch); other in every call (worst w: missing); boom raises in \
call 1 of 2 (ValueError)."""


def test_text():
    assert matrix_text(MATRIX) == TEXT


def test_long_lists_of_differences_are_cut():
    many = matrix(run("mine", [row(f"w{i}", "mismatch", 0.1) for i in range(30)]), repeats=1)
    assert "  … and 18 more" in matrix_text(many)


@pytest.mark.parametrize(
    ("made", "ok", "summary"),
    [
        (matrix(), False, "Nothing was run, so nothing is shown."),
        (matrix(run("eager", [], [])), False, "The one run differs: eager gave nothing to compare."),
        (matrix(run("eager", GOOD, GOOD)), True, "The one run agrees, 2 calls each."),
        (matrix(run("a", GOOD), run("b", GOOD), repeats=1), True, "All 2 runs agree, one call each."),
        (
            matrix(run("a", StepCall(0, (), "", "E: x")), repeats=1, raised=("E: x",)),
            False,
            "The uncompiled step itself raises in the one call: E: x",
        ),
    ],
)
def test_outcomes(made, ok, summary):
    assert steps.all_ok(made) is ok
    assert steps.summary(made) == summary


def test_a_call_of_which_the_reference_raised_is_not_ok():
    assert not steps.ok(run("mine", GOOD, StepCall(1, (), "", "E: x")))


def test_findings_go_from_worst_to_least_and_name_their_calls():
    found = [(finding.run, finding.row.name, finding.call, finding.differs) for finding in steps.findings(MATRIX)]
    assert found == [("other", "w", 0, (0, 1)), ("mine", "w", 1, (1,)), ("other", "extra", 0, (0,))]
    assert steps.worst(MATRIX) == steps.findings(MATRIX)[0]
    assert steps.worst(matrix()) is None


def test_frame():
    frame = matrix_frame(MATRIX)
    assert list(frame.columns) == ["eager", "mine", "other", "boom"]
    assert frame.index.name == "parameter"
    assert frame.loc["w"].tolist() == ["bitwise", "mismatch", "missing", "raises"]
    assert frame.loc["extra"].tolist() == ["none", "none", "unexpected", "raises"]
    assert matrix_frame(matrix()).empty


def test_a_column_of_a_run_that_raised_stands_beside_what_the_reference_gave():
    made = matrix(run("boom", StepCall(0, (), "E: x")), repeats=1, values=(("gradient", "w"), ("loss", "")))
    assert matrix_frame(made)["boom"].to_dict() == {"w": "raises", "(loss)": "raises"}


def test_details():
    frame = details_frame(MATRIX)
    assert list(frame.columns) == list(DETAILS)
    assert len(frame) == 18
    line = frame.query("run == 'mine' and call == 1 and kind == 'gradient'").iloc[0]
    assert (line["first"], line.reference, line.candidate, line.noise) == ((0, 1), 0.25, 0.75, 1e-7)
    assert (frame.dtypes == details_frame(matrix()).dtypes).all()


def test_a_report_of_a_run_names_all_that_must_be_known():
    comparison = steps.report(MATRIX, MATRIX.runs[3])
    assert comparison.notes == ("raises in call 1 of 2: ValueError: no\ndata", "a note")
    assert [row.name for row in comparison.rows] == ["w", "(loss)", "(buffer) mean"]
    assert comparison.reference == "the step in eager"


# ----------------------------------------------------------------------------------------------------------------- HTML


def named(names):
    """A comparison in which everything that may be anybody's text is one of these."""
    first, second, third, *_ = names
    rows = [row(name, "mismatch", 0.5, note=name) for name in names] + [row(third, kind="buffer")]
    return matrix(
        run(first, rows, rows, notes=(second,)),
        run(second, rows, StepCall(1, (), f"ValueError: {first}")),
        values=tuple(("result", name) for name in names),
        notes=(third,),
    )


def test_html_says_what_the_text_says():
    page = Page(matrix_html(MATRIX))
    for words in ("3 of 4 runs differ", "✗ mismatch 5.00e-01 in call 1 of 2", "∅ missing", "boom raises", "a note"):
        assert words in page.text
    assert page.elements["table"] == 1


def test_html_escapes_every_text():
    hostile, tame = Page(matrix_html(named(HOSTILE))), Page(matrix_html(named(TAME)))
    assert hostile.elements == tame.elements
    assert hostile.attributes == tame.attributes
    assert hostile.comments == []
    for name in HOSTILE[:5]:
        assert name in hostile.text


def test_runs_of_one_name_and_html_of_one_input_are_told_apart_and_the_same():
    twice = matrix(run("a<b", GOOD), run("a<b", BAD), repeats=1)
    assert "a&lt;b" in matrix_styler(twice).to_html()
    assert matrix_html(twice) == matrix_html(twice)


def test_the_hotter_a_cell_the_larger_the_error():
    errors = {"a": 1e-4, "b": 1e-2, "c": 0.5}
    rows = [row(name, "mismatch", error) for name, error in errors.items()] + [row("d", "missing"), row("e")]
    text = matrix_styler(matrix(run("mine", rows), repeats=1)).to_html()
    assert text.count("cabw-heat1") == text.count("cabw-heat2") == 2  # a style and a cell
    assert text.count("cabw-heat3") == 3
    assert "cabw-bitwise" in text


def test_html_where_there_is_nothing_to_show():
    assert "Nothing was run" in Page(matrix_html(matrix())).text
