"""Every workload under `cabw_viz.capture`: what its user sees, and what the capture says of it."""

from __future__ import annotations

import contextlib

import pytest
import torch

import cabw_viz
from cabw_viz.errors import CabwError
from tests import corpus
from tests.corpus import assert_same, first_difference, load, observe
from tests.test_corpus import DIFFERS, ROUNDED, assert_rounding, on_the_version_read
from tests.test_leaf_layouts import assert_plain

NOT_TRACED = {
    "cs_backward_in_second_thread": "made in another thread",
    "cs_two_threads_backward_at_once": "made in another thread",
    "cs_two_threads_inside_together": "made in another thread",
    "ho_gradient_penalty_compiled": "supports no second derivative",
    "ho_grads_batched": "is_grads_batched=True",
    "kind_ddp_one_rank": "the C++ reducer of DistributedDataParallel",
    "kind_flex_attention": None,  # the forward raises already
    "kind_nested_layer_norm": "is a nested tensor",
    "view_input_reused_buffer": "modified by an inplace operation",
    "view_saved_then_modified": "modified by an inplace operation",
}
"""Without a complete graph, and what `session.events` says of the reason."""

NO_SECOND_RUN = {
    "cs_scaler_step_before_inspection": "MulBackward0",  # unscale_ and step() change inputs in place
    "fn_backward_writes_saved_output": "CountsBackward",  # which changes an input in place
    "fn_compiled_aot": "CompiledFunctionBackward",
    "ho_vmap_over_grad": "PowBackward0",
    "hook_multi_grad": "AccumulateGrad",
    "hook_queue_callback": "SinkBackward",
}
"""Captured, but PyTorch cannot run the graph outside of the engine; the node that the error names."""

RUN_RAISES = {"fn_library_op_without_autograd", "kind_anomaly_nan", "kind_dtensor_unused_output"}
"""Captured, and the user's own eager run raises."""

RAISES_ELSEWHERE = {"cs_two_threads_backward_at_once", "cs_two_threads_inside_together"}
"""Go wrong under compiled autograd only with another thread's backward, which a capture leaves alone."""


class Captured:
    """Runs a workload captured, and keeps session and reports while the process is as the workload needs it."""

    def __init__(self, run="eager"):
        self.run, self.session, self.reports = run, None, []

    @contextlib.contextmanager
    def __call__(self, params):
        with cabw_viz.capture(params, run=self.run) as self.session:
            yield
        self.reports = [self.report(capture) for capture in self.session]

    @staticmethod
    def report(capture):
        try:
            return capture.parity()
        except CabwError as error:
            return error


@pytest.mark.parametrize("name", corpus.NAMES)
def test_the_user_sees_no_difference_and_whatever_happened_can_be_shown(name, tmp_path):
    captured = Captured()
    assert_same(observe(name), observe(name, around=captured))
    for capture in captured.session:
        assert_plain(capture.record)
    assert captured.session.to_html(tmp_path / "session.html").stat().st_size
    assert repr(captured.session)
    assert captured.session.html()


@on_the_version_read
@pytest.mark.parametrize("name", corpus.NAMES)
def test_parity_or_the_reason_why_not(name):
    captured = Captured()
    observe(name, around=captured)
    assert len(captured.session) or name in NOT_TRACED
    for capture, report in zip(captured.session, captured.reports, strict=True):
        if name in NOT_TRACED:
            assert capture.error is not None
        elif name in RUN_RAISES:
            assert isinstance(report, CabwError)
            assert capture.error.type in str(report)
        elif name in NO_SECOND_RUN:
            assert isinstance(report, CabwError)
            assert NO_SECOND_RUN[name] in str(report)
        else:
            assert report.ok, report
            rounded = {"within_tolerance", "within_noise"} if name in ROUNDED else set()
            assert set(report.frame["verdict"]) <= {"bitwise", *rounded}, report


@on_the_version_read
@pytest.mark.parametrize("name", NOT_TRACED)
def test_what_is_not_traced_says_why(name):
    captured = Captured()
    observe(name, around=captured)
    reasons = captured.session.events.query("outcome in ('failed', 'bypassed')")["reason"]
    expected = NOT_TRACED[name]
    assert expected is None or any(expected in reason for reason in reasons)


@on_the_version_read
@pytest.mark.parametrize("name", corpus.NAMES)
def test_run_compiled_does_what_pytorch_does(name):
    expect = load(name).expect
    eager, ours = observe(name), observe(name, around=Captured("compiled"))
    if expect == "parity" or name in RAISES_ELSEWHERE:
        assert_same(eager, ours)
    elif expect.startswith("raises: "):
        assert ours.raised is not None
        assert expect.removeprefix("raises: ") in ours.raised
    elif name in ROUNDED:
        assert_rounding(eager, ours, ROUNDED[name])
    else:
        assert first_difference(eager, ours).startswith(DIFFERS[name])


@on_the_version_read
def test_a_compiled_run_of_fsdp_is_refused_by_the_memory_that_it_freed():
    """FSDP2 under an identity compiler (pytorch/torchtitan#1708): nothing copies what it gathers in such a run."""
    captured = Captured("compiled")
    observe("kind_fsdp2_one_rank", around=captured, steps=1)
    (report,) = captured.reports
    assert isinstance(report, CabwError)
    assert "was freed after the backward, by FSDP" in report.seen


@on_the_version_read
def test_a_report_says_what_fsdp_makes_of_the_gradients():
    captured = Captured()
    observe("kind_fsdp2_one_rank", around=captured, steps=1)
    (report,) = captured.reports
    assert "FSDP reduces these gradients to the .grad of 0.weight" in str(report)
    assert "set in .grad by a hook" not in str(report)


@pytest.mark.parametrize("name", corpus.NAMES)
def test_autograd_nodes_agree_with_an_independent_walk(name, monkeypatch):
    seen = []
    engine = torch.autograd._engine_run_backward

    def spy(roots, grads, keep_graph, create_graph, inputs=(), *rest, **options):
        if torch._C._current_graph_task_id() == -1 and not torch._guards.TracingContext.try_get():
            seen.append((roots, walked(roots, inputs)))
        return engine(roots, grads, keep_graph, create_graph, inputs, *rest, **options)

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", spy)
    captured = Captured()
    observe(name, around=captured, steps=1)
    monkeypatch.undo()
    # The engine runs twice for each captured call, for the trace and for the user; the first run is compared.
    expected = {id(roots): nodes for roots, nodes in reversed(seen)}
    for capture in captured.session:
        record = capture.record
        ours = (len(record.autograd_nodes) - 1, sorted(node.name for node in record.autograd_nodes if node.number))
        assert ours in [(len(nodes), nodes) for nodes in expected.values()]
        numbers = {row.autograd_node for row in record.graph_nodes if row.autograd_node is not None}
        if record.failure is None:
            assert numbers <= {node.number for node in record.autograd_nodes}


def walked(roots, inputs):
    """Names of the autograd nodes that a call runs: all below the roots, or those above an input."""
    edge = torch.autograd.graph.get_gradient_edge
    nodes = [root.node if not isinstance(root, torch.Tensor) else edge(root).node for root in roots if can_start(root)]
    parents, todo = {}, list(nodes)
    everything = set(nodes)
    while todo:
        node = todo.pop()
        for child, _ in node.next_functions:
            if child is not None:
                parents.setdefault(child, set()).add(node)
                if child not in everything:
                    everything.add(child)
                    todo.append(child)
    if inputs:
        todo = [i.node if not isinstance(i, torch.Tensor) else edge(i).node for i in inputs]
        everything, reached = set(), set(todo)
        while todo:
            node = todo.pop()
            everything.add(node)
            new = parents.get(node, set()) - reached
            reached |= new
            todo += new
    return sorted(node.name().rpartition("::")[2] if "<" not in node.name() else node.name() for node in everything)


def can_start(root):
    return not isinstance(root, torch.Tensor) or root.requires_grad
