import subprocess
import sys

import pandas as pd
import pytest
import torch

from cabw_viz.errors import CabwError
from cabw_viz.surfaces import cli
from tests.test_html import Page

pytest.importorskip("transformers", reason="needs transformers; try: pip install 'cabw_viz[examples]'")

from cabw_viz.surfaces import demo

ALWAYS = {
    "autograd.dot",
    "fx.dot",
    "inspector.html",
    "module.dot",
    "nodes.csv",
    "outline.txt",
    "parity.csv",
    "parity.html",
    "session.html",
}
WITH_DOT = {"autograd.svg", "autograd.png", "fx.svg", "module.svg", "module.png"}


@pytest.fixture
def plain():
    """The demo's model after a backward without a capture."""
    with torch.random.fork_rng():
        torch.manual_seed(demo.SEED)
        model = demo.build(1)
        demo.loss(model, demo.text()).backward()
    return model


def named(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters(remove_duplicate=False)}


def test_the_demos_gradients_are_the_models_own(plain):
    model, session = demo.capture_backward(1)
    expected = named(plain)
    seen, again = named(model), session[0].replay()
    assert set(seen) == set(again) == set(expected)
    for name, gradient in expected.items():
        assert torch.equal(seen[name], gradient), name
        assert torch.equal(again[name], gradient), name


def test_the_random_numbers_of_others_are_left_alone():
    before = torch.get_rng_state()
    demo.capture_backward(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_is_on_and_the_text_is_real():
    model = demo.build(1)
    assert model.training
    assert model.config.resid_pdrop > 0
    assert b"JSON" in bytes(demo.text().flatten().tolist())


@pytest.mark.dot
def test_demo(tmp_path, capsys, plain):
    folder = tmp_path / "new" / "folder"
    assert cli.main(["demo", "--layers", "1", "--output", str(folder)]) == 0
    out = capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == ALWAYS | WITH_DOT
    table = pd.read_csv(folder / "parity.csv")
    names = {name for label in table.parameter for name in label.split(" = ")}
    assert names == set(named(plain))
    assert set(table.verdict) == {"bitwise"}
    assert str(folder) in out
    assert f"All {len(table)} gradients agree: {len(table)} bitwise." in out
    assert "backward at demo.py:" in out
    assert " s, " in out.splitlines()[-1]
    nodes = [line for line in (folder / "outline.txt").read_text("utf-8").splitlines() if line.lstrip().startswith("#")]
    assert len(pd.read_csv(folder / "nodes.csv")) == len(nodes)
    assert (folder / "autograd.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "fx.svg").read_text("utf-8").rstrip().endswith("</svg>")
    for name in ("session.html", "parity.html"):
        page = Page((folder / name).read_text("utf-8"))
        assert f"All {len(table)} gradients agree" in page.text


def test_demo_without_dot(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["demo", "--layers", "1", "--output", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == ALWAYS
    out = capsys.readouterr().out
    assert out.count("apt-get install graphviz") == 1
    assert "gradients agree" in out


def test_demo_without_transformers(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert cli.main(["demo", "--output", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert "pip install 'cabw_viz[examples]'" in captured.err
    assert "Traceback" not in captured.err + captured.out


def test_a_folder_that_cannot_be(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["demo", "--output", str(tmp_path / "file")]) == 2
    assert f"{tmp_path / 'file'} cannot be written to: File exists" in capsys.readouterr().err


def test_too_few_layers(tmp_path, capsys):
    assert cli.main(["demo", "--layers", "0", "--output", str(tmp_path)]) == 2
    assert "Expected: 1 or more." in capsys.readouterr().err


def test_an_interrupt_is_no_traceback(tmp_path, capsys, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupted)
    assert cli.main(["demo", "--output", str(tmp_path)]) == 130


def test_errors_of_others_are_not_hidden(tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(demo, "run", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["demo", "--output", str(tmp_path)])


def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cabw_viz", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_python_m():
    assert run_module("--version").stdout.startswith("cabw-viz")
    text = run_module("--help").stdout
    assert "demo" in text
    assert run_module().returncode == 2
    assert "invalid choice: 'dmo'" in run_module("dmo").stderr


def test_the_version_is_the_packages(capsys):
    from cabw_viz import __version__

    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out in {
        f"cabw-viz {__version__}\n",
        "cabw-viz, run from a source tree that is not installed\n",
    }


def test_a_missing_package_is_a_cabw_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CabwError):
        demo.build(1)
