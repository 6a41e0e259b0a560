"""The marks of touched nodes: in summaries, outline, drawings and tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import cabw_viz
from cabw_viz.analysis.touches import Mark, marks, summary
from cabw_viz.record.model import Touch
from cabw_viz.views.palette import ALARM
from tests.captures import capture_of, data, model


def capture_of_program(*, hook, **options):
    net = model()

    def loss():
        out = net(data())
        if hook:
            out.register_hook(lambda grad: grad * 1.0)
        return (out.sin() * out).sum()

    return capture_of(net, loss, **options)


def test_a_clean_trace_is_said_as_plainly_as_a_dirty_one():
    clean = capture_of_program(hook=False)
    assert [tuple(finding) for finding in summary(clean.record)] == [("initial trace: 13 nodes, 0 touches", False)]
    assert "\ninitial trace: 13 nodes, 0 touches\n" in repr(clean)
    assert "! touched" not in repr(clean)
    assert "initial trace: 13 nodes, 0 touches" in clean.graph().source
    assert "metadata touched" not in clean.graph().source  # no legend for what does not occur
    assert clean.touches().empty


def test_a_hooked_trace_names_node_reads_and_cause():
    dirty = capture_of_program(hook=True)
    ((number, mark),) = marks(dirty.record).items()
    assert dirty.record.by_number[number].name == "AddmmBackward0"
    assert mark.attributes == ("size", "stride", "storage_offset", "aten.as_strided", "aten.clone")
    assert mark.by == ("tracer", "tensor hook")
    (finding,) = summary(dirty.record)
    assert finding.alarming
    assert finding.text.startswith("initial trace: 1 of 13 nodes touched, 9 touches: AddmmBackward0 #4 (size, stride,")
    assert finding.text.endswith("; tracer, tensor hook)")
    assert f"      ! touched: {mark}\n" in repr(dirty)


@pytest.mark.parametrize("level", ["autograd", "fx"])
def test_exactly_the_touched_boxes_are_marked(level):
    dirty, clean = capture_of_program(hook=True), capture_of_program(hook=False)
    drawing = dirty.graph(level).drawing
    (box,) = [box for box in drawing.boxes if box.touched]
    if level == "autograd":
        assert (box.title, box.number) == ("AddmmBackward0", 4)
    else:
        assert box.kind == "gradient_sum"  # its output is what the hook is handed, and what the tracer clones
    lines = dirty.graph(level).source.splitlines()
    (marked,) = [line for line in lines if "<B>!</B></FONT>" in line and line.lstrip().startswith(box.id)]
    assert ALARM in marked
    assert "touched: size, stride" in marked
    assert any("metadata touched" in line for line in lines)
    assert not [box for box in clean.graph(level).drawing.boxes if box.touched]


def test_without_the_tripwire_nothing_is_claimed():
    blind = capture_of_program(hook=True, tripwire=False)
    assert blind.record.touches == blind.record.watched == ()
    assert summary(blind.record) == ()
    assert "initial trace" not in repr(blind)
    assert "! touched" not in repr(blind)


def test_a_touch_that_belongs_to_no_known_node_is_counted_but_not_named():
    record = capture_of_program(hook=False).record
    lost = replace(record, touches=(Touch("initial_trace", "size", None, None, "tracer", "x.py:1", 2),))
    (finding,) = summary(lost)
    assert finding.text == "initial trace: 0 of 13 nodes touched, 2 touches"
    assert finding.alarming


def test_many_touched_nodes_are_counted_after_the_first():
    record = capture_of_program(hook=False).record
    touches = tuple(Touch("initial_trace", "dim", n, None, "user", "x.py:1") for n in range(1, 8))
    (finding,) = summary(replace(record, touches=touches))
    assert finding.text.endswith("; and 4 more")
    assert finding.text.count("(dim; user)") == 3


def test_an_execution_read_is_no_alarm_and_no_mark():
    capture = capture_of_program(hook=False)
    capture.audit()
    trace, execution = summary(capture.record, capture.results)
    assert trace.text == "initial trace: 13 nodes, 0 touches"
    assert execution.text.startswith("execution: ")
    assert not execution.alarming
    assert marks(capture.record) == {}
    assert not [box for box in capture.graph().drawing.boxes if box.touched]
    assert set(capture.touches()["phase"]) == {"execution"}


def test_a_graph_pass_that_looks_for_deleted_metadata_is_marked():
    def compiler(gm):
        for node in gm.graph.nodes:
            if node.op == "call_function" and "TanhBackward0" in str(node.target):
                node.meta.get("val")
        return gm

    net = model()
    with cabw_viz.capture(net) as session, torch._dynamo.compiled_autograd._enable(compiler):
        net(data()).sum().backward()
    record = session[0].record
    assert record.watched == ("initial_trace", "graph_pass")
    ((number, mark),) = marks(record).items()
    assert record.by_number[number].name == "TanhBackward0"
    assert mark == Mark(number, ("val",), ("pass",))
    trace, passes = summary(record)
    assert (trace.alarming, passes.alarming) == (False, True)
    assert passes.text.startswith("graph passes: 1 of ")


def test_lifted_and_baked_metadata_stand_in_the_tooltips():
    net = model()
    capture = capture_of(net, lambda: net(data()).pow(3).sum())
    lines = capture.graph("autograd").source.splitlines()
    (line,) = [line for line in lines if line.strip().startswith("n2 [")]
    assert "PowBackward0 #2" in line
    assert "lifted: gradient 0 = [3, 2] (sizes[" in line
    assert "exponent = 3" in line
    assert "cpu, torch.float32, torch.strided" in line
