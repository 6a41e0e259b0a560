"""Replay on a device that the backward was not captured on: a fake one, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.versions import read_on

pytestmark = read_on("2.10")  # the first with a Python-only device
ROOT = Path(__file__).parents[1]

ROUNDING = 1e-6
"""Other kernels of single precision are off by less than this of the largest element."""

BITWISE = ("mlp", "convolutions", "custom_function", "copy_slices", "summed", "dropout")
"""The fake device computes on the CPU: where the kernels are the same, so are the bits."""


@pytest.fixture(scope="module")
def results():
    command = [sys.executable, "-m", "tests.fake_device_cases"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [*BITWISE, "attention"])
def test_captured_on_the_cpu_and_run_there(results, name):
    result = results[f"there_{name}"]
    assert isinstance(result, dict), result
    assert result["names"]
    assert result["devices"] == ["cabw"]
    assert result["ok"]
    assert result["apart"] <= (0.0 if name in BITWISE else ROUNDING)
    assert result["candidate"].endswith("on cabw:0 in float32")
    assert result["reference"] == "your own eager run, on cpu in float32"


@pytest.mark.parametrize("name", [name for name in (*BITWISE, "attention") if name != "copy_slices"])
def test_captured_there_and_run_on_the_cpu(results, name):
    result = results[f"back_{name}"]
    assert isinstance(result, dict), result
    assert result["names"]
    assert result["devices"] == ["cpu"]
    assert result["ok"]
    assert result["apart"] == 0.0
    assert result["candidate"].endswith("on cpu in float32")
    assert "moved to cabw:0 and float32" in " ".join(result["notes"])


@pytest.mark.parametrize("name", ["mlp", "custom_function", "summed"])
@pytest.mark.parametrize("way", ["there", "back"])
def test_the_first_divergence_is_found_on_the_other_device(results, way, name):
    result = results[f"searched_{way}_{name}"]
    assert result["ok"] is True, result
    assert result["first"] == result["planted"]


def test_an_in_place_write_to_a_view_cannot_be_captured_on_a_tensor_subclass(results):
    """PyTorch's: such a view keeps a function instead of strides."""
    reason = results["back_copy_slices"]["not captured"]
    assert reason.startswith("RuntimeError at CopySlices (#")
    assert "compiled autograd cannot trace an in-place write to a view" in reason


def test_a_kernel_that_is_not_there_is_replaced_by_its_formula(results):
    note = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default was computed by its formula"
    assert any(text.startswith(note) for text in results["there_attention"]["notes"])
    assert results["there_mlp"]["notes"] == ["the graph's gradients were moved to cpu and float32 to be compared"]


def test_the_backward_ran_on_the_device(results):
    assert {"aten::mm", "aten::gelu_backward", "aten::native_layer_norm_backward"} <= set(
        results["the_kernels_ran_there"]
    )


def test_another_device_and_another_dtype_together(results):
    result = results["devices_and_dtypes_together"]
    assert result["dtypes"] == ["torch.float64"]
    assert result["devices"] == ["cabw"]
    assert 0 < result["apart"] < 1e-6  # eager's rounding


def test_auto_is_the_current_accelerator(results):
    assert results["auto_is_the_accelerator"] == ["cabw:0"]


def test_hooks_see_gradients_of_the_device(results):
    assert results["hooks_run_there"] == {"apart": 0.0, "seen": ["cpu", "cabw"]}


def test_what_hooks_have_packed_is_unpacked_at_home_and_then_moved(results):
    assert results["packed_tensors_are_moved"] == 0.0
    assert results["checkpoints_are_moved"] == 0.0


def test_tied_parameters(results):
    assert results["a_tied_weight_is_moved_once"]["names"] == ["embed.weight", "inner.bias", "inner.weight"]


def test_lengths_of_sequences_stay_on_the_cpu(results):
    assert results["lengths_stay_on_the_host"] == 0.0


def test_a_compiler_gets_the_operators_as_they_are_called_there(results):
    result = results["a_compiler_gets_the_operators_as_they_are_called_there"]
    assert isinstance(result, dict), result
    assert result["fused"] == []
    assert result["operators"] > 10
    assert result["apart"] < ROUNDING


def test_whole_steps_on_both_devices(results):
    result = results["whole_steps"]
    assert result["ok"], result["text"]
    assert result["runs"] == ["eager", "compiled_autograd", "cabw/eager", "cabw/compiled_autograd"]


def test_a_tensor_on_a_ctx_is_refused_by_node_and_attribute(results):
    result = results["a_tensor_on_a_ctx"]
    assert result["here"] == [2.0, 2.0, 2.0]
    assert "KeepsBackward (#2) cannot be run on cabw:0: its ctx.mask is a tensor (3,) on cpu" in result["there"]
    assert "ctx.save_for_backward" in result["there"]


def test_a_tensor_in_a_hook_is_refused_by_node_and_name(results):
    result = results["a_tensor_in_a_hook"]
    assert "MulBackward0 (#2) cannot be run on cabw:0" in result["there"]
    assert "holds mask, which is a tensor (3,) on cpu" in result["there"]
    assert result["dropped"] == [2.0, 2.0, 2.0]
    assert "holds SCALES, which is a tensor (3,) on cpu" in results["a_global_tensor_in_a_hook"]


def test_what_a_function_makes_elsewhere_names_the_node(results):
    text = results["a_function_that_makes_its_tensors_on_the_cpu"]
    assert "cannot be run on cabw:0: MakesBackward (#2)" in text
    assert "two devices" in text


def test_an_absent_device_lists_those_that_are_there(results):
    for name, text in results["an_absent_device"].items():
        assert f"there is no device {name!r} here" in text
        assert "\nExpected: one of cpu, cabw:0.\n" in text
