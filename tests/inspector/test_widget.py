"""The widget from Python's side: traits, what is selected, and what the panels ask for."""

import gc
import html
import re
import sys
import weakref

import pytest
import torch
import traitlets
from torch import nn

import cabw_viz
from cabw_viz.errors import CabwError
from tests.inspector.packed import unpack


@pytest.fixture
def session():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    with cabw_viz.capture(model) as session:
        for rows in (32, 32):
            model(torch.randn(rows, 8)).square().mean().backward()
    assert len(session) == 2  # .grad was None, then it was there
    return session


def ask(inspector, **content):
    """What the browser sends."""
    inspector._handle_custom_msg(content, [])


def test_it_begins_with_the_first_capture(session):
    inspector = session.inspect()
    assert unpack(inspector.data).facts["capture"] == 0
    assert len(unpack(inspector.data).columns["id"]) == len(session[0].record.autograd_nodes)
    assert unpack(inspector.session).facts["captures"][1]["title"].startswith("backward at test_widget.py")
    assert inspector.parity == inspector.code == inspector.aten == inspector.times == inspector.divergence == b""
    assert repr(inspector) == "Inspector(capture=0, level='module', selection='')"


def test_another_capture_is_shown(session):
    inspector = session.inspect(selection="n2", expanded=["0"])
    inspector.capture = 1
    assert unpack(inspector.data).facts["capture"] == unpack(inspector.touches).facts["capture"] == 1
    assert inspector.selection == ""
    assert inspector.expanded == []
    with pytest.raises(traitlets.TraitError, match="there is no capture 2; this session has 2"):
        inspector.capture = 2


def test_a_capture_shows_itself_alone(session):
    inspector = session[1].inspect(color_by="touches")
    assert inspector.color_by == "touches"
    assert inspector.record == session[1].record


@pytest.mark.parametrize("level", ["module", "autograd", "fx", "aten", ""])
def test_the_levels(session, level):
    assert session.inspect(level=level).level == level


@pytest.mark.parametrize(
    ("trait", "value"),
    [("level", "nodes"), ("color_by", "taste"), ("capture", "x"), ("capture", 9), ("colour", "kind")],
)
def test_what_a_trait_cannot_be_is_refused(session, trait, value):
    for shown in (session, session[0]):
        with pytest.raises(CabwError, match=trait) as error:
            shown.inspect(**{trait: value})
        assert "selection, expanded, level" in error.value.expected
        assert "session.inspect(" in error.value.try_


def test_what_is_selected(session):
    record = session[0].record
    inspector = session[0].inspect()
    assert inspector.selected is None
    inspector.selection = "n3"
    assert inspector.selected == record.by_number[3]
    inspector.selection = "n999"
    assert inspector.selected is None
    inspector.selection = "g:0"
    group = inspector.selected
    assert {"AddmmBackward0", "AccumulateGrad"} <= {node.name for node in group}
    assert {node.module for node in group} == {"0"}
    inspector.selection = "g:0@2"  # this module has one part
    assert inspector.selected == ()
    inspector.selection = "nonsense"
    assert inspector.selected is None


def test_a_part_of_a_module_is_selected_as_focus_draws_it():
    model = torch.nn.ModuleDict({name: torch.nn.Linear(4, 4) for name in "ab"})
    with cabw_viz.capture(model) as session:
        x = torch.randn(2, 4)
        for name in "abab":
            x = model[name](x)
        x.sum().backward()
    inspector = session[0].inspect()
    for name in ("b", "b@2", "a", "a@2"):
        inspector.selection = f"g:{name}"
        boxes = session[0].graph(focus=name).drawing.boxes
        assert {node.number for node in inspector.selected} == {number for box in boxes for number in box.nodes}


def test_it_can_be_observed(session):
    inspector, seen = session.inspect(), []
    inspector.observe(lambda change: seen.append(change["new"]), "selection")
    inspector.selection = "n3"
    assert seen == ["n3"]


def test_code_is_sent_when_it_is_asked_for_and_once(session):
    inspector, sent = session.inspect(), []
    inspector.observe(lambda change: sent.append(change["new"]), "code")
    ask(inspector, type="code")
    ask(inspector, type="code")
    assert len(sent) == 1
    assert b"ops.AddmmBackward0" in sent[0]


def test_parity_is_computed_when_it_is_asked_for(session):
    inspector, states = session.inspect(), []
    inspector.observe(lambda change: states.append(change["new"]), "task")
    ask(inspector, type="run", what="parity", options={"hooks": "drop"})
    assert [state["state"] for state in states] == ["running", "done"]
    assert states[1]["seconds"] > 0
    part = unpack(inspector.parity)
    assert part.facts["ok"] is True
    assert len(part.columns["row_name"]) == 4
    inspector.capture = 1
    assert inspector.parity == b""
    inspector.capture = 0
    assert unpack(inspector.parity).facts["ok"] is True
    assert unpack(session.inspect().parity).facts["ok"] is True


def test_an_audit_is_made_when_it_is_asked_for(session):
    inspector = session.inspect()
    assert "execution" not in unpack(inspector.touches).facts["watched"]
    ask(inspector, type="run", what="audit")
    assert inspector.task["state"] == "done"
    assert "execution" in unpack(inspector.touches).facts["watched"]
    assert inspector.results.execution
    assert inspector.results == session[0].results


def test_the_first_divergence_is_looked_for_when_it_is_asked_for(session):
    inspector = session.inspect()
    assert inspector.divergence == b""
    ask(inspector, type="run", what="divergence", options={})
    assert inspector.task["state"] == "done", inspector.task
    part = unpack(inspector.divergence)
    assert part.facts["ok"] is True
    assert part.facts["first"] is None
    assert set(part.texts("node_verdict", "verdicts")) <= {None, "bitwise"}
    inspector.capture = 1
    assert inspector.divergence == b""
    inspector.capture = 0
    assert unpack(inspector.divergence).facts["ok"] is True
    assert unpack(session.inspect().divergence).facts["ok"] is True


def test_a_fault_is_charged_to_its_node():
    class Scaled(torch.autograd.Function):
        factor = 1.0

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2 * Scaled.factor

    weight = torch.randn(3, 3, requires_grad=True)
    with cabw_viz.capture({"weight": weight}) as session:
        (Scaled.apply(weight @ torch.ones(3, 3)) ** 2).sum().backward()
    Scaled.factor = 1.01
    inspector = session.inspect()
    ask(inspector, type="run", what="divergence")
    facts = unpack(inspector.divergence).facts
    assert inspector.record.by_number[facts["first"]].name == "ScaledBackward"
    assert facts["ok"] is False


def test_the_graph_is_lowered_and_timed_when_it_is_asked_for(session):
    inspector, sent = session.inspect(), []
    inspector.observe(lambda change: sent.append(change["name"]), ["aten", "times", "data", "code"])
    ask(inspector, type="aten")
    assert inspector.aten == b""
    ask(inspector, type="run", what="lower")
    assert inspector.task["state"] == "done", inspector.task
    assert b"aten.mm" in inspector.aten
    assert inspector.results.lowered == session[0].results.lowered
    ask(inspector, type="aten")
    ask(inspector, type="run", what="times")
    assert inspector.task["state"] == "done", inspector.task
    assert sum(unpack(inspector.times).columns["seconds"][1:3]) > 0
    assert sent == ["aten", "times"]  # and nothing twice


def test_what_was_computed_by_hand_is_taken_over(session):
    inspector, sent = session.inspect(), []
    inspector.observe(lambda change: sent.append(change["name"]), ["aten", "data", "touches", "parity", "divergence"])
    inspector.refresh()
    assert sent == []  # nothing has changed, nothing is sent
    session[0].parity()
    session[0].divergence()
    inspector.refresh()
    assert sorted(sent) == ["divergence", "parity"]
    assert unpack(inspector.parity).facts["ok"] is True
    assert unpack(inspector.divergence).facts["ok"] is True
    session[0].lower()
    ask(inspector, type="aten")  # the browser asks whenever the level is chosen
    assert b"aten.mm" in inspector.aten
    assert inspector.results.lowered


def test_a_graph_node_is_selected(session):
    inspector = session.inspect()
    inspector.selection = "f12"
    assert inspector.selected == session[0].record.graph_nodes[12]
    inspector.selection = "a3"
    assert inspector.selected is None
    session[0].lower()
    inspector = session.inspect(level="aten", selection="a3")
    assert inspector.selected == session[0].results.lowered[3]


def test_parity_runs_in_another_dtype_with_another_backend(session):
    inspector = session.inspect()
    choices = inspector.choices["parity"]
    assert choices["backend"][:2] == ["eager", "aot_eager"]
    assert choices["dtype"][0] == "as captured"
    assert "cpu" in choices["device"]
    ask(inspector, type="run", what="parity", options={"dtype": "float64", "backend": "eager", "device": "cpu"})
    assert inspector.task["state"] == "done", inspector.task
    assert "float64" in unpack(inspector.parity).facts["candidate"]


def test_progress_is_told_to_the_panel(session, monkeypatch):
    from cabw_viz.replay import progress

    monkeypatch.setattr(progress, "REPORT_INTERVAL", -1.0)
    monkeypatch.setattr(progress, "STEPS_PER_CHECK", 1)
    inspector, shares = session.inspect(), []
    inspector.observe(lambda change: shares.append(change["new"].get("share")), "task")
    ask(inspector, type="run", what="parity")
    assert shares[0] is shares[-1] is None  # running, done
    between = shares[1:-1]
    assert len(between) > 20
    assert between == sorted(between)
    assert between[-1] == 1.0
    shares.clear()
    session[0].parity()  # called by hand: a bar where there is one, and nothing in the panel
    assert shares == []


def test_an_error_stands_in_the_panel(session):
    inspector = session.inspect()
    session.close()
    ask(inspector, type="run", what="parity", options={})
    assert inspector.task["state"] == "failed"
    assert "closed" in inspector.task["error"]
    assert "Traceback" not in inspector.task["error"]


def test_an_interrupt_is_no_error(session):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    inspector = session.inspect()
    session[0].parity = interrupted
    ask(inspector, type="run", what="parity")
    assert inspector.task == {"what": "parity", "state": "interrupted"}


@pytest.mark.parametrize(
    "content", [{}, {"type": "run"}, {"type": "run", "what": "_live"}, {"type": "other", "what": 3}]
)
def test_other_messages_do_nothing(session, content):
    inspector = session.inspect()
    ask(inspector, **content)
    assert inspector.task == {}


def test_options_that_are_no_choice_are_dropped(session):
    inspector = session.inspect()
    ask(inspector, type="run", what="parity", options={"hooks": "explode", "rtol": 1e9})
    assert inspector.task["state"] == "done"
    assert inspector.choices["parity"]["hooks"] == ["run", "drop", "refuse"]


def test_it_does_not_keep_its_session_alive():
    """ipywidgets keeps every widget in a table of its own."""
    model = nn.Linear(4, 4)
    with cabw_viz.capture(model) as session:
        model(torch.ones(2, 4)).sum().backward()
    inspector, gone = session.inspect(), weakref.ref(session[0])
    del session
    gc.collect()
    assert gone() is None
    assert inspector.record.autograd_nodes
    ask(inspector, type="run", what="parity")
    assert "the session of this capture is gone" in inspector.task["error"]


def test_a_session_without_captures_says_so():
    with cabw_viz.capture() as session:
        pass
    inspector = session.inspect()
    assert unpack(inspector.data).columns["id"] == []
    assert unpack(inspector.session).facts["captures"] == []
    assert inspector.selected is None
    ask(inspector, type="run", what="parity")
    assert inspector.task["state"] == "failed"
    ask(inspector, type="code")
    assert unpack(inspector.code).facts["lines"] == 0


def test_outside_of_a_kernel_a_cell_gets_the_static_view(session):
    assert session._repr_mimebundle_() == {}
    assert "<svg" in session._repr_html_() or "cabw" in session._repr_html_()


def test_colab_gets_what_it_finds_widgets_by(session, monkeypatch):
    from types import SimpleNamespace

    from anywidget import _util

    from cabw_viz.surfaces.inspector import MIME

    enabled = []
    colab = SimpleNamespace(
        enable_custom_widget_manager=lambda: enabled.append(True),
        _widgets=SimpleNamespace(_installed_url="https://here"),
    )
    monkeypatch.setitem(sys.modules, "google.colab.output", colab)
    shell = SimpleNamespace(kernel=object(), compile=SimpleNamespace(format_code_name=lambda file: None))
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)
    _util.enable_custom_widget_manager_once.cache_clear()
    data, metadata = session._repr_mimebundle_()
    assert list(data) == [MIME]
    assert metadata == {MIME: {"colab": {"custom_widget_manager": {"url": "https://here"}}}}
    assert enabled == [True]


def test_a_page_is_written(session, tmp_path):
    session[0].parity()
    path = session.to_html(tmp_path / "run.html")
    text = path.read_text("utf-8")
    assert path == tmp_path / "run.html"
    assert set(re.findall(r'<script id="(cabw-[\w-]+)"', text)) >= {"cabw-session", "cabw-0-data", "cabw-1-code"}
    assert not re.search(r'(src|href)="(?!data:,)', text.split("<script")[0])
    assert session.to_html(path).read_text("utf-8") == text
    assert html.escape("cabw_viz: capture") in session[1].to_html(tmp_path / "one.html").read_text("utf-8")


def test_a_page_that_cannot_be_written_is_a_clear_error(session, tmp_path):
    with pytest.raises(CabwError, match="cannot be written to"):
        session.to_html(tmp_path / "nowhere" / "run.html")
