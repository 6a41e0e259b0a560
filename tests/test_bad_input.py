"""What bad input gets: a CabwError that says what was seen, what was expected, what to try."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

import cabw_viz
from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from tests.captures import data, model


def parts(error):
    """The three sentences of an error."""
    return error.value.seen, error.value.expected, error.value.try_


@pytest.mark.parametrize("subject", [3, "model", [torch.ones(1)], {"w": 1}, {1: torch.ones(1)}, torch.ones(1)])
def test_a_subject_that_names_nothing(subject):
    with pytest.raises(CabwError, match="subject") as error:
        cabw_viz.capture(subject)
    seen, expected, try_ = parts(error)
    assert type(subject).__name__ in seen or "mapping" in seen
    assert "nn.Module" in expected
    assert "cabw_viz.capture(model)" in try_


@pytest.mark.parametrize("options", [{"run": "fast"}, {"gradients": "some"}, {"snapshot": "no"}, {"tripwire": 2}])
def test_words_that_are_none_of_ours(options):
    ((name, value),) = options.items()
    with pytest.raises(CabwError, match=f"{name}={value!r}") as error:
        cabw_viz.capture(**options)
    assert "one of" in error.value.expected
    assert f"{name}=" in error.value.try_


@pytest.mark.parametrize("only", [-1, True, 1.5, "0", slice(-1, None), slice(0, 4, 0), slice(0, 4, -1), [0]])
def test_an_only_that_picks_nothing(only):
    with pytest.raises(CabwError, match="only="):
        cabw_viz.capture(only=only)


def test_a_block_in_which_no_backward_ran():
    with cabw_viz.capture(model()) as session:
        pass
    assert len(session) == 0
    assert len(session.events) == 0
    assert "no backward" in repr(session)
    with pytest.raises(CabwError, match="no backward ran in the block") as error:
        session[0]
    assert ".backward()" in error.value.try_
    assert list(session) == []


def test_a_session_never_entered():
    with pytest.raises(CabwError, match="has not been entered"):
        cabw_viz.capture(model())[0]


def test_a_session_whose_calls_were_all_left_out():
    net = model()
    with cabw_viz.capture(net, only=5) as session:
        net(data()).sum().backward()
    with pytest.raises(CabwError, match=r"none of the block's 1 backward calls.*not selected by only="):
        session[0]


def test_a_capture_that_is_not_there():
    net = model()
    with cabw_viz.capture(net) as session:
        net(data()).sum().backward()
    with pytest.raises(CabwError, match="no capture 3"):
        session[3]
    with pytest.raises(IndexError):
        session[-2]


def test_a_level_that_is_none():
    net = model()
    with cabw_viz.capture(net) as session:
        net(data()).sum().backward()
    with pytest.raises(CabwError, match="nonsense") as error:
        session[0].graph(level="nonsense")
    assert "'autograd'" in error.value.expected


@pytest.fixture(scope="module")
def capture():
    net = model()
    with cabw_viz.capture(net) as session:
        net(data()).sum().backward()
    yield session[0]
    session.close()


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda cap: cap.parity(rtol="much", atol=0.0), "rtol='much', atol=0.0"),
        (lambda cap: cap.divergence(rtol=0.0, atol=[1]), r"atol=\[1\]"),
        (lambda cap: cap.parity(measures=3), "measures=3"),
        (lambda cap: cap.parity(measures=("angle",)), "no measure 'angle'"),
        (lambda cap: cap.replay(device=1.5), "named by a text, not by a float"),
        (lambda cap: cap.replay(device="nonsense"), "torch knows none of this name"),
        (lambda cap: cap.replay(dtype="int8"), "no dtype for gradients"),
        (lambda cap: cap.replay(backend="induktor"), "no backend 'induktor'"),
        (lambda cap: cap.memory("2"), "depth='2' is no depth"),
        (lambda cap: cap.memory(0), "depth=0 is no depth"),
        (lambda cap: cap.graph(depth=0), "depth=0 is no depth"),
        (lambda cap: cap.graph(expand=3), "expand=3 is no list"),
    ],
)
def test_what_a_capture_cannot_be_asked(capture, ask, said):
    with pytest.raises(CabwError, match=said) as error:
        ask(capture)
    assert all(parts(error))


def test_one_measure_need_not_stand_in_a_list(capture):
    frame = capture.parity(measures="cosine").frame
    assert "cosine" in frame
    assert "ulp" not in frame


@pytest.mark.parametrize("path", [3, None, b"x.svg", "absent/x{}", "", "null\0{}"])
@pytest.mark.parametrize(
    ("save", "suffix"),
    [
        (lambda cap, path: cap.graph().save(path), ".dot"),
        (lambda cap, path: cap.parity().save(path), ".csv"),
        (lambda cap, path: cap.parity().picture().save(path), ".svg"),
        (lambda cap, path: cap.to_html(path), ".html"),
    ],
)
def test_a_path_that_cannot_be_written_to(capture, tmp_path, monkeypatch, path, save, suffix):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CabwError) as error:
        save(capture, path.format(suffix) if isinstance(path, str) else path)
    assert all(parts(error))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", ["2.7.1", "1.13.0", "2.7.0a0+git1234"])
def test_a_torch_that_is_too_old(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(CabwError, match=re.escape(f"torch {version}")) as error:
        torch_adapter.check.__wrapped__()
    assert "2.8 or newer" in error.value.expected
    assert "pip install" in error.value.try_


@pytest.mark.parametrize("version", ["2.8.0", "2.13.0+cpu", "2.15.0.dev20261101", "3.0"])
def test_a_torch_that_is_new_enough(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    torch_adapter.check.__wrapped__()


def test_a_signature_that_is_not_the_expected_one(monkeypatch):
    def end_capture(self, outputs, more):
        raise AssertionError

    monkeypatch.setattr(torch_adapter.TracerBase, "end_capture", end_capture)
    with pytest.raises(CabwError, match=r"end_capture takes .*'more'") as error:
        torch_adapter.check.__wrapped__()
    assert "('outputs',)" in error.value.expected
    assert torch.__version__ in error.value.seen


def test_an_engine_entry_that_is_gone(monkeypatch):
    monkeypatch.delattr(torch.autograd, "_engine_run_backward")
    with pytest.raises(CabwError, match="_engine_run_backward"):
        torch_adapter.check.__wrapped__()


def test_importing_imports_no_torch_and_an_unknown_name_is_an_attribute_error():
    code = "import cabw_viz, sys; assert 'torch' not in sys.modules; assert 'pandas' not in sys.modules; dir(cabw_viz)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = cabw_viz.nonsense


HEAVY = {"torch", "pandas", "numpy", "graphviz", "anywidget", "ipywidgets", "jinja2", "tqdm"}
EARLY = {
    "names": "import cabw_viz; dir(cabw_viz)",
    "load_ext": "import IPython.core.interactiveshell as shells, cabw_viz\n"
    "cabw_viz.load_ipython_extension(shells.InteractiveShell.instance())",
    "help": "import contextlib, cabw_viz.surfaces.cli as cli\n"
    "with contextlib.suppress(SystemExit): cli.main(['--help'])",
}


@pytest.mark.parametrize("what", EARLY)
def test_nothing_heavy_is_loaded_before_it_is_needed(what):
    code = f"{EARLY[what]}\nimport sys; loaded = {HEAVY!r} & set(sys.modules); assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_importing_where_torch_is_loaded_adds_modules_of_the_package_alone():
    code = (
        "import sys, torch; before = set(sys.modules); import cabw_viz\n"
        "assert {name.partition('.')[0] for name in set(sys.modules) - before} <= {'cabw_viz'}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_records_are_made_without_torch():
    code = (
        "import sys; import cabw_viz.record.model, cabw_viz.record.comparison, cabw_viz.analysis.parity\n"
        "assert not {'torch', 'pandas', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("ask", [lambda cap: cap.parity(), lambda cap: cap.divergence(), lambda cap: cap.lower()])
def test_a_parameter_with_other_memory(ask):
    """Its version stays the same when `.data` is assigned, and what the graph computes does not."""
    for snapshot in (False, True):
        net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.LayerNorm(6))
        with cabw_viz.capture(net, snapshot=snapshot) as session:
            net(torch.randn(3, 4)).square().sum().backward()
        versions = [parameter._version for parameter in net.parameters()]
        net.double()
        assert [parameter._version for parameter in net.parameters()] == versions
        if snapshot:
            ask(session[0])
            continue
        with pytest.raises(CabwError, match=r"1\.(weight|bias) .* has other memory") as error:
            ask(session[0])
        assert all(parts(error))
