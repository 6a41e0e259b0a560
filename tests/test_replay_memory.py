"""What a replay does when memory runs out, and how it shows its progress."""

from __future__ import annotations

import io
import sys
import weakref

import pytest
import torch
from torch import nn

from cabw_viz.errors import CabwError
from cabw_viz.replay import progress
from cabw_viz.replay.placement.device_dtype_map import DeviceDtypeMap
from tests.captures import capture_of
from tests.test_parity import faulty

OUT = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total capacity of"),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:128] DefaultCPUAllocator: can't allocate memory: you tried to"),
}


def capture_of_mlp():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    return capture_of(model, lambda: model(torch.randn(2, 4)).sum())


@pytest.mark.parametrize("kind", OUT)
@pytest.mark.parametrize("backend", ["eager", lambda graph: graph], ids=["interpreted", "compiled"])
def test_out_of_memory_names_the_node_and_nothing_stays_alive(kind, backend):
    capture, alive = capture_of_mlp(), []

    def fails(results):
        large = torch.zeros(1000)
        alive.append(weakref.ref(large))
        raise type(OUT[kind])(*OUT[kind].args)

    with faulty("TanhBackward0", fails), pytest.raises(CabwError, match="not enough memory") as error:
        capture.replay(backend=backend)
    text = str(error.value)
    assert OUT[kind].args[0].partition("\n")[0] in text
    assert ("TanhBackward0 (#" in text) == (backend == "eager")
    assert alive
    assert alive[0]() is None  # though the error is still held
    assert error.value.__suppress_context__
    assert capture.parity().ok


def test_out_of_memory_while_moving_names_the_tensor(monkeypatch):
    capture = capture_of_mlp()

    def copied(self, tensor):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(DeviceDtypeMap, "_copy_of", copied)
    with pytest.raises(CabwError, match=r"when inputs\[0\] \(\), given to GraphRoot .* was being moved: CUDA out"):
        capture.replay(dtype="float64")
    monkeypatch.undo()
    assert capture.replay(dtype="float64")["0.weight"].dtype is torch.float64


# ----------------------------------------------------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 0.5
        return self.now


def replayed(monkeypatch, stream, clock):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress, "STEPS_PER_CHECK", 1)
    capture_of_mlp().replay()
    monkeypatch.undo()
    return stream.getvalue()


def test_a_long_replay_shows_a_bar(monkeypatch):
    text = replayed(monkeypatch, Terminal(), Clock())
    assert "replay" in text
    assert "nodes" in text


def test_a_short_replay_shows_none(monkeypatch):
    clock = Clock()
    clock.perf_counter = lambda: 0.0
    assert replayed(monkeypatch, Terminal(), clock) == ""


def test_nobody_is_shown_a_bar_in_a_file(monkeypatch):
    assert replayed(monkeypatch, io.StringIO(), Clock()) == ""


def test_a_bar_is_no_reason_to_fail(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert replayed(monkeypatch, Terminal(), Clock()) == ""
