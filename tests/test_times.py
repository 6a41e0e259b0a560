"""How long autograd nodes take when the graph is run again: planted slow nodes are found."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from cabw_viz.errors import CabwError, CabwWarning
from cabw_viz.record.results import NO_RESULTS
from cabw_viz.replay import timing
from cabw_viz.replay.replay import Replay
from cabw_viz.replay.timing import time_nodes
from tests.captures import capture_of

NAP = 0.05


class Slow(torch.autograd.Function):
    """Its backward sleeps, and counts how often."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        Slow.calls += 1
        time.sleep(NAP)
        return g


def slow_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    return capture_of(model, lambda: Slow.apply(model[1](model[0](torch.randn(4, 8)))).sum())


def test_a_slow_node_is_found():
    capture = slow_model()
    frame = capture.times(repeats=2)
    first = frame.iloc[0]
    assert first["name"] == "SlowBackward"
    assert NAP <= first["seconds"] < 1.5 * NAP
    assert first["share"] > 0.5
    assert frame["share"].sum() == pytest.approx(1)
    assert list(frame.columns) == ["name", "module", "line", "seconds", "share"]
    assert frame.index.name == "number"
    assert frame["seconds"].dropna().is_monotonic_decreasing


def test_a_slow_hook_counts_for_its_node():
    a = torch.randn(4, requires_grad=True)
    b = a.sin()
    b.register_hook(lambda g: time.sleep(NAP))
    capture = capture_of({"a": a}, lambda: b.cos().sum())
    assert capture.times(1).iloc[0]["name"] == "SinBackward0"
    assert capture.times(1, hooks="drop")["seconds"].max() < NAP


def test_the_results_keep_the_seconds_and_the_record_stays():
    capture = slow_model()
    assert capture.results == NO_RESULTS
    record = capture.record
    frame = capture.times(1)
    assert capture.record is record
    assert len(capture.results.node_seconds) == len(record.autograd_nodes)
    for node, seconds in zip(record.autograd_nodes, capture.results.node_seconds, strict=True):
        row = frame.loc[node.number]
        assert row["name"] == record.label(node)
        if node.kind == "accumulate_grad":  # a replay does not accumulate
            assert seconds is None
            assert row[["seconds", "share"]].isna().all()
        else:
            assert seconds == row["seconds"] >= 0


def test_the_best_of_all_runs_counts():
    Slow.calls = 0
    capture = slow_model()
    naps = iter([0.06, 0.0, 0.03])
    original = time.sleep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", lambda _: original(next(naps)))
        frame = capture.times(repeats=3)
    assert Slow.calls == 1 + 3  # the user's own run, and three
    assert frame.set_index("name").loc["SlowBackward", "seconds"] < 0.03


def test_nodes_take_no_longer_than_the_run_and_most_of_it():
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    capture = capture_of(model, lambda: model(torch.randn(512, 256)).square().sum())
    times = time_nodes(Replay(capture._captured))
    spent = sum(seconds or 0.0 for seconds in times.seconds)
    assert 0.3 * times.run < spent <= times.run
    names = [node.name for node in capture.record.autograd_nodes]
    by_name = dict(zip(names, times.seconds, strict=True))
    assert by_name["AddmmBackward0"] > 5 * by_name["TBackward0"]


def test_what_an_empty_call_takes_is_taken_off(monkeypatch):
    """A clock that jumps a second at each look: every call then takes one second, as an empty one does."""
    now = iter(range(10**9))
    capture = slow_model()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(now)))
    assert set(capture.times(1)["seconds"].dropna()) == {0.0}


def test_gradients_and_random_numbers_are_left_alone():
    capture = slow_model()
    model_gradients = [gradient.value.clone() for gradient in capture._captured.state.reference.values()]
    state = torch.get_rng_state()
    capture.times(1)
    assert torch.equal(state, torch.get_rng_state())
    assert capture.parity().ok
    kept = [gradient.value for gradient in capture._captured.state.reference.values()]
    assert all(map(torch.equal, model_gradients, kept))


@pytest.mark.parametrize("repeats", [0, -1, 1.5, "3", None, True])
def test_a_bad_number_of_runs_is_refused(repeats):
    capture = slow_model()
    with pytest.raises(CabwError, match=r"repeats=.*\nExpected: a whole number from 1"):
        capture.times(repeats)
    assert capture.results.node_seconds == ()


def test_refusals_as_in_a_replay():
    capture = slow_model()
    with pytest.raises(CabwError, match="there is no device 'cuda:99' here"):
        capture.times(device="cuda:99")
    with pytest.raises(CabwError, match="hooks='maybe'"):
        capture.times(hooks="maybe")
    capture._captured.state.release()
    with pytest.raises(CabwError, match="the session was closed"):
        capture.times()


def test_data_that_a_hook_assigns_between_two_runs_is_refused_by_name():
    """As offloading does: the second run would be one of another backward."""
    weight, calls = nn.Parameter(torch.randn(4)), []

    def assign(_):
        calls.append(None)
        if len(calls) > 1:  # not in the user's own run
            weight.data = weight.data * 1000

    def loss():
        product = weight * torch.ones(4, requires_grad=True)
        product.register_hook(assign)
        return product.sum()

    capture = capture_of({"weight": weight}, loss)
    memory, value = weight.data_ptr(), weight.detach().clone()
    with (
        pytest.raises(CabwError, match=r"weight .* has other memory"),
        pytest.warns(CabwWarning, match="has other memory: its .data was assigned"),
    ):
        capture.times(2)
    assert weight.data_ptr() == memory
    assert torch.equal(weight, value)


def pretend_accelerator(monkeypatch, synchronize):
    """The CPU as an accelerator."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)


def test_an_accelerator_is_waited_for_before_and_after_each_call(monkeypatch):
    waited = []
    capture = slow_model()
    pretend_accelerator(monkeypatch, waited.append)
    original = Slow.backward
    seen = []
    monkeypatch.setattr(Slow, "backward", staticmethod(lambda ctx, g: seen.append(len(waited)) or original(ctx, g)))
    capture.times(1)
    (before,) = seen
    assert set(waited) == {torch.device("cpu")}
    calls = 2 * timing.EMPTY_CALLS + 1
    assert (before - calls) % 2 == 1  # an odd one: the wait that begins this call
    assert len(waited) > before


def test_what_cannot_be_waited_for_is_timed_as_it_is(monkeypatch):
    def synchronize(device):
        raise RuntimeError("Backend doesn't support synchronizing all streams on device.")

    capture = slow_model()
    pretend_accelerator(monkeypatch, synchronize)
    assert capture.times(1).iloc[0]["name"] == "SlowBackward"


@pytest.mark.gpu
def test_on_an_accelerator_each_node_is_waited_for():
    device = torch.accelerator.current_accelerator()
    model = nn.Sequential(nn.Linear(2048, 2048), nn.Linear(2048, 2048)).to(device)
    capture = capture_of(model, lambda: model(torch.randn(4096, 2048, device=device)).square().sum())
    times = time_nodes(Replay(capture._captured))
    spent = sum(seconds or 0.0 for seconds in times.seconds)
    assert spent > 0.5 * times.run  # without waiting, all of it would be at the end
