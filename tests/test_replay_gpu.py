"""Replay on a GPU, where there is one, with eager on that GPU as the other side."""

from __future__ import annotations

import pytest
import torch

from benchmarks.bench_replay import MODELS, captured_on, step_of
from cabw_viz.errors import CabwError
from tests.captures import capture_of
from tests.test_parity import faulty
from tests.test_replay_workloads import RUNS_AGAIN, reports

pytestmark = pytest.mark.gpu

WITH_TENSORS_OF_ITS_OWN = {"cs_lora_reentrant_frozen_input", "kind_dtensor_unused_output", "kind_fsdp2_one_rank"}
"""Workloads whose functions use parameters that the graph does not know, or a mesh of CPU ranks."""


@pytest.fixture
def gpu():
    return torch.device(torch.accelerator.current_accelerator(check_available=True))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_models_captured_there(gpu, name, dtype, backend):
    torch._dynamo.reset()
    report = captured_on(gpu, MODELS[name], dtype).parity(backend=backend)
    assert report.ok, report
    assert str(gpu) in report.comparison.candidate


@pytest.mark.parametrize("name", MODELS)
def test_models_captured_on_the_cpu(gpu, name, monkeypatch):
    """The graph of a CPU's forward, run there, against the CPU's eager run and against eager there."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model, _ = MODELS[name]()
    model.eval()
    capture = capture_of(model, step_of(model, torch.device("cpu"), torch.float32))
    report = capture.parity(device=gpu)
    assert report.ok, report
    found = capture.replay(device=gpu)
    model.zero_grad()
    model.to(gpu)
    step_of(model, gpu, torch.float32)().backward()
    for key, parameter in model.named_parameters():
        assert found[key].device.type == gpu.type
        scale = parameter.grad.abs().max()
        assert (found[key] - parameter.grad).abs().max() <= 1e-3 * scale, key


def test_captured_there_and_run_on_the_cpu(gpu):
    """Without dropout: what fused attention drops, its kernel alone knows."""
    capture = captured_on(gpu, MODELS["GPT-2, 2 layers"], torch.float32, training=False)
    report = capture.parity(device="cpu")
    assert report.ok, report


@pytest.mark.parametrize("name", RUNS_AGAIN)
def test_workloads(gpu, name):
    for report in reports(name, device=gpu):
        if isinstance(report, CabwError):
            assert name in WITH_TENSORS_OF_ITS_OWN, report
        else:
            assert report.ok, report


def test_a_fault_is_found_there(gpu):
    capture = captured_on(gpu, MODELS["ResNet, 8 convolutions"], torch.float32)
    with faulty("ConvolutionBackward0", lambda results: [None if r is None else r * 1.001 for r in results]):
        assert not capture.parity().ok


def test_random_numbers_there_go_on_as_before(gpu):
    capture = captured_on(torch.device("cpu"), MODELS["ResNet, 8 convolutions"], torch.float32)
    torch.rand(1, device=gpu)
    state = torch.cuda.get_rng_state(gpu)
    capture.replay(device=gpu)
    assert torch.equal(torch.cuda.get_rng_state(gpu), state)


def test_memory_is_given_back(gpu):
    """The gradient of a sum is expanded; times a saved tensor it is more than there is."""
    free, _ = torch.cuda.mem_get_info(gpu)
    model, taken = torch.nn.Linear(1024, 1024), []
    capture = capture_of(model, lambda: model(torch.randn(64, 1024)).square().sum())
    with faulty("AddmmBackward0", lambda results: taken.append(torch.empty(2 * free, device=gpu)) or results):
        before = torch.cuda.memory_allocated(gpu)
        with pytest.raises(CabwError, match=r"not enough memory on .* when AddmmBackward0"):
            capture.replay(device=gpu)
    assert torch.cuda.memory_allocated(gpu) == before
    assert capture.parity(device=gpu).ok
