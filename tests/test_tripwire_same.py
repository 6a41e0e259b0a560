"""A program is the same with the tripwire and without: same graphs, same errors, same outcome."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace

import pytest
import torch
from torch._dynamo import compiled_autograd

import cabw_viz
from tests import corpus
from tests.corpus import assert_same, observe
from tests.planted import PROGRAMS, planted, tanh_twice, without_cpp
from tests.test_corpus import identity, on_the_version_read

RUNS = ("eager", "compiled")
RACES = {"cs_two_threads_backward_at_once", "cs_two_threads_inside_together"}
"""Where another thread's backward meets the user's compiled one: no two runs need be alike."""


def without_touches(records):
    return [replace(record, touches=(), watched=(), failure=cut(record.failure)) for record in records]


def cut(failure):
    """A failure without the frames of C++ in its texts."""
    return failure and replace(failure, message=without_cpp(failure.message), details=without_cpp(failure.details))


def outcomes(session):
    events = session._log.events
    return [(event.outcome, re.sub("0x[0-9a-f]+", "0x…", without_cpp(event.reason))) for event in events]


class Watched:
    """Runs a workload captured, and keeps the session."""

    def __init__(self, run, *, tripwire):
        self.run, self.tripwire, self.session = run, tripwire, None

    @contextlib.contextmanager
    def __call__(self, params):
        theirs = compiled_autograd._enable(identity) if self.run == "user" else contextlib.nullcontext()
        run = "eager" if self.run == "user" else self.run
        with theirs, cabw_viz.capture(params, run=run, tripwire=self.tripwire) as self.session:
            yield

    @property
    def records(self):
        return without_touches(capture.record for capture in self.session)


@pytest.mark.parametrize("run", [*RUNS, "user"])
@pytest.mark.parametrize("name", corpus.NAMES)
def test_a_workload_is_the_same_with_it_and_without(name, run):
    if run == "user" and name in RACES:
        pytest.skip("two threads under the user's compiled autograd: no two runs need be alike")
    off, on = Watched(run, tripwire=False), Watched(run, tripwire=True)
    steps = 2 if run == "eager" else 1
    assert_same(observe(name, steps, around=off), observe(name, steps, around=on))
    assert outcomes(on.session) == outcomes(off.session)
    assert on.records == off.records


@on_the_version_read
def test_the_workloads_that_are_touched_are_those_with_hooks():
    """All, traced once: whatever else would read metadata would be news."""
    touched = set()
    for name in set(corpus.NAMES) - RACES:
        watched = Watched("eager", tripwire=True)
        observe(name, steps=1, around=watched)
        for capture in watched.session:
            touched |= {name for touch in capture.record.touches}
            by_hook = {n.autograd_node for n in capture.record.graph_nodes if n.kind == "hook"}
            assert {touch.autograd_node for touch in capture.record.touches} <= by_hook
            assert {touch.by for touch in capture.record.touches} <= {"tracer"}
    assert touched == {
        "hook_enable_inside_backward",
        "hook_fresh_closure_each_step",
        "hook_intermediate_scale",
        "hook_multi_grad",
        "hook_post_acc_scalar_param",
        "hook_retain_grad",
        "kind_ddp_python_reducer",
        "kind_fsdp2_one_rank",
    }


def tried(action, tensor, run="eager", *, tripwire, proxies=True):
    """All that can be seen of a run of a planted program."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    raised = None
    with planted(action, tensor, proxies=proxies) as outcome, cabw_viz.capture(run=run, tripwire=tripwire) as session:
        try:
            tanh_twice()
        except Exception as error:  # noqa: BLE001 (what is raised is part of what is seen)
            raised = f"{type(error).__name__}: {without_cpp(error)}"
    seen = re.sub("0x[0-9a-f]+", "0x…", repr((outcome, raised)))
    graphs = [capture._captured.state.graph for capture in session]
    codes = [graph.code if graph is not None else None for graph in graphs]
    return seen, codes, without_touches(capture.record for capture in session), outcomes(session)


PLACES = {
    "dummy": ("dummy", {}),
    "dummy, compiled": ("dummy", {"run": "compiled"}),
    "dummy, no proxies": ("dummy", {"proxies": False}),
    "function": ("function", {}),
    "leaf": ("leaf", {}),
    "leaf, no proxies": ("leaf", {"proxies": False}),
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_planted_program_is_the_same_with_it_and_without(name, where):
    tensor, options = PLACES[where]
    off, on = (tried(PROGRAMS[name], tensor, tripwire=tripwire, **options) for tripwire in (False, True))
    assert on == off


@on_the_version_read
def test_the_exception_that_the_documentation_names():
    """Dynamo knows FakeTensor by its exact type: an op that insists on compiling its arguments refuses a dummy."""

    def cond(d):
        return torch.cond(torch.tensor(True), lambda x: x.sin(), lambda x: x.cos(), (d,))

    off, on = (tried(cond, "dummy", tripwire=tripwire, proxies=False) for tripwire in (False, True))
    assert "FakeTensor (0, 123456789)" in off[0]
    assert "UncapturedHigherOrderOpError" in on[0]
