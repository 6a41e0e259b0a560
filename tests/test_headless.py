"""A training node has torch and pandas, and perhaps nothing else of what a notebook needs."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

ABSENT = ("graphviz", "ipywidgets", "anywidget", "IPython", "jinja2", "traitlets", "matplotlib")

SETUP = f"""
import sys
for name in {ABSENT!r}:
    sys.modules[name] = None  # an import of it fails as if it were not installed
import torch, cabw_viz
model = torch.nn.Linear(2, 2)
"""


def run(code, setup=SETUP):
    done = subprocess.run(
        [sys.executable, "-c", setup + textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_capture_replay_analyses_and_tables_work():
    out = run("""
        with cabw_viz.capture(model) as session:
            model(torch.ones(1, 2)).sum().backward()
        capture = session[0]
        assert capture.parity().ok and "bitwise" in repr(capture.parity())
        assert torch.equal(capture.replay()["bias"], model.bias.grad)
        assert len(capture.nodes) == 6 and len(capture.audit()) > 0
        print(session, capture, session.events, capture.parity().frame, capture.graph())
    """)
    assert "AccumulateGrad weight" in out


def test_what_needs_more_says_what():
    out = run("""
        with cabw_viz.capture(model) as session:
            model(torch.ones(1, 2)).sum().backward()
        try:
            session[0].graph().source
        except cabw_viz.CabwError as error:
            print(error)
    """)
    assert "pip install graphviz" in out


@pytest.mark.parametrize(
    "damage",
    [
        "from torch._dynamo import compiled_autograd; del compiled_autograd.copy_slices_prologue",
        "from torch._dynamo import external_utils; del external_utils.unwrap_maybe_dynamic_int",
    ],
)
def test_a_torch_without_a_name_that_is_read_is_said(damage):
    out = run(
        """
        try:
            cabw_viz.capture
        except cabw_viz.CabwError as error:
            print(error)
        """,
        setup=f"import torch, torch._dynamo, cabw_viz\n{damage}\n",
    )
    assert "torch" in out
    assert "2.8" in out
    assert "pip install" in out
