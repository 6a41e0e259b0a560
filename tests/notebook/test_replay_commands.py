"""`%cabw parity` and `%%cabw` that run the graph on another device, in another dtype, through a compiler."""

import pytest

STEP = "model.zero_grad()\nmodel(x).sum().backward()"


@pytest.fixture
def session_shell(shell):
    shell.ok(f"%%cabw --model model\n{STEP}")
    return shell


def test_parity_in_another_dtype_and_through_a_compiler(session_shell):
    report = session_shell.ok("%cabw parity --dtype float64").result.result
    assert report.ok
    assert report.comparison.candidate.endswith("in float64: the backward of the saved forward in that dtype")
    report = session_shell.ok(
        "%cabw parity --device cpu --backend aot_eager --exact --measures cosine,ulp"
    ).result.result
    assert report.ok
    assert "backend='aot_eager'" in report.comparison.candidate
    assert report.frame["reference_err"].notna().all()
    assert list(report.frame.columns[-2:]) == ["cosine", "ulp"]


def test_a_report_is_written(session_shell, tmp_path):
    path = tmp_path / "parity.csv"
    ran = session_shell.ok(f'%cabw parity --save "{path}"')
    assert ran.result.result is None
    assert f"wrote {path}" in ran.out
    assert path.read_text("utf-8").startswith("parameter,verdict")


@pytest.mark.parametrize("option", ["--dtype float64", "--parity --backend aot_eager", "--device cpu"])
def test_a_cell_that_says_where_asks_for_parity(shell, option):
    ran = shell.ok(f"%%cabw --model model {option}\n{STEP}")
    (report,) = [shown["text/plain"] for shown in ran.shown if "gradients agree" in str(shown.get("text/plain"))]
    assert ("backend='aot_eager'" in report) == ("aot_eager" in option)
    assert ("in float64" in report) == ("float64" in option)


def test_a_cell_without_any_of_it_does_not(session_shell):
    ran = session_shell.ok(f"%%cabw --model model\n{STEP}")
    assert not any("gradients agree" in str(shown.get("text/plain")) for shown in ran.shown)


@pytest.mark.parametrize("option", ["--device cuda:9", "--dtype int8", "--backend induktor"])
def test_a_cell_that_asks_for_what_is_not_there_does_not_run(shell, option):
    ran = shell.run(f"%%cabw --model model {option}\nmarker = 1")
    assert "Expected: " in ran.usage_error
    assert "marker" not in shell.ip.user_ns


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("%cabw parity --device cuda:9", ("there is no device 'cuda:9' here", "Expected: one of cpu")),
        ("%cabw parity --dtype int8", ("'int8' is no dtype for gradients", "float64, float32")),
        ("%cabw parity --backend induktor", ("there is no backend 'induktor' here", "inductor")),
        ("%cabw parity --measures angle", ("there is no measure 'angle'", "cosine, ulp, rms")),
        ("%cabw parity --save parity.xlsx", ("cannot be saved as '.xlsx'", ".csv")),
    ],
)
def test_what_is_not_there_is_said(session_shell, line, texts):
    error = session_shell.run(line).usage_error
    assert all(text in error for text in texts), error
