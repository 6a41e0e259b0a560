"""What was computed of a capture stands beside its record, and a capture is shown without anything that could run."""

import warnings
from dataclasses import fields

import pytest
import torch
from torch import nn

from cabw_viz.errors import CabwError
from cabw_viz.record.results import NO_RESULTS, Results
from cabw_viz.surfaces.capture import Capture
from cabw_viz.surfaces.inspector import TASKS
from tests.captures import capture_of
from tests.inspector.packed import unpack

SHOWN = {
    "outline": lambda capture: capture.outline(full=True),
    "text": repr,
    "nodes": lambda capture: capture.nodes.to_csv(),
    "memory": lambda capture: capture.memory().to_csv(),
    "touches": lambda capture: capture.touches().to_csv(),
    "html": lambda capture: capture.html(),
    "drawings": lambda capture: [capture.graph(level).source for level in ("module", "autograd", "fx", "aten")],
    "parity": lambda capture: capture.graph(color_by="parity").source,
    "touched": lambda capture: capture.graph(color_by="touches").source,
    "time": lambda capture: capture.graph(color_by="time").source,
    "last results": lambda capture: (capture.last_parity, capture.last_divergence, capture.error),
}

RUN = {
    "replay": lambda capture: capture.replay(),
    "parity": lambda capture: capture.parity(),
    "divergence": lambda capture: capture.divergence(),
    "audit": lambda capture: capture.audit(),
    "lower": lambda capture: capture.lower(),
    "times": lambda capture: capture.times(1),
}


@pytest.fixture
def capture():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    return capture_of(model, lambda: model(torch.randn(32, 8)).square().mean())


@pytest.fixture
def computed(capture):
    """A capture of which everything was computed."""
    for verb in RUN.values():
        verb(capture)
    return capture


@pytest.fixture
def alone(computed):
    """The same without its graph and tensors."""
    return Capture(computed.record, computed.results)


def test_each_verb_keeps_its_result_and_leaves_the_record_alone(capture):
    record = capture.record
    assert capture.results == NO_RESULTS
    for verb in RUN.values():
        verb(capture)
    capture.gradients(), capture.missing(), capture.nonfinite()
    assert capture.record is record
    assert {touch.phase for touch in record.touches} <= {"initial_trace", "graph_pass"}
    assert all(getattr(capture.results, field.name) for field in fields(Results))
    assert capture.results.comparison is capture.last_parity
    assert capture.results.divergence is capture.last_divergence


def test_a_result_is_replaced_by_the_next_and_the_others_stay(computed):
    before = computed.results
    computed.audit()
    assert computed.results.execution is not before.execution
    assert computed.results.execution == before.execution  # replaced, not added up
    assert computed.results.lowered is before.lowered


@pytest.mark.parametrize("view", SHOWN)
def test_a_capture_without_a_state_is_shown_as_with_one(computed, alone, view):
    assert not alone.has_state
    assert SHOWN[view](alone) == SHOWN[view](computed)


def test_its_page_is_the_same(computed, alone, tmp_path):
    pages = [capture.to_html(tmp_path / "page.html").read_text("utf-8") for capture in (computed, alone)]
    assert pages[0] == pages[1]


def test_its_inspector_shows_all_parts_and_offers_no_task(computed, alone):
    shown, with_state = alone.inspect(), computed.inspect()
    parts = ("session", "data", "touches", "parity", "divergence", "times", "code", "aten")
    for inspector in (shown, with_state):
        for what in ("code", "aten"):
            inspector._handle_custom_msg({"type": what}, [])
    assert [getattr(shown, part) for part in parts] == [getattr(with_state, part) for part in parts]
    assert all(getattr(shown, part) for part in parts)
    assert shown.choices == {}
    assert set(with_state.choices) == set(TASKS)


@pytest.mark.parametrize("verb", RUN)
def test_what_runs_the_graph_says_that_there_is_none(alone, verb):
    with pytest.raises(CabwError, match="this capture is a record alone"):
        RUN[verb](alone)


@pytest.mark.parametrize("what", TASKS)
def test_a_task_that_a_page_asks_for_says_so_too(alone, what):
    inspector = alone.inspect()
    inspector._handle_custom_msg({"type": "run", "what": what, "options": {"hooks": "drop"}}, [])
    assert inspector.task["state"] == "failed"
    assert "this capture is a record alone" in inspector.task["error"]


def test_a_lowered_graph_takes_no_capture_without_a_state(computed, alone):
    lowered = computed.lower()
    with pytest.raises(CabwError, match="this capture is a record alone"):
        lowered.gradients(alone)


@pytest.mark.parametrize(
    ("what", "part"),
    [("parity", "parity"), ("divergence", "divergence"), ("audit", "touches"), ("lower", "aten"), ("times", "times")],
)
def test_every_task_sends_its_part(capture, what, part):
    inspector = capture.inspect()
    before = getattr(inspector, part)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inspector._handle_custom_msg({"type": "run", "what": what, "options": {}}, [])
    assert inspector.task["state"] == "done"
    assert getattr(inspector, part) != before
    assert unpack(getattr(inspector, part)).facts["capture"] == 0
    others = {name for name in ("parity", "divergence", "aten", "times") if getattr(inspector, name)}
    assert others <= {part}
