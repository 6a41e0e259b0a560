"""Every workload that PyTorch can run again: in float64, and through a compiler."""

from __future__ import annotations

import contextlib

import pytest

import cabw_viz
from cabw_viz.errors import CabwError
from tests import corpus
from tests.test_corpus import on_the_version_read
from tests.test_workloads import NO_SECOND_RUN, NOT_TRACED, RUN_RAISES

RUNS_AGAIN = [name for name in corpus.NAMES if name not in {*NO_SECOND_RUN, *NOT_TRACED, *RUN_RAISES}]

NOT_IN_FLOAT64 = {
    # Its backward runs the forward again, with parameters that are the module's and not the graph's.
    "cs_lora_reentrant_frozen_input": "cannot be run in torch.float64: CheckpointFunctionBackward",
}
"""What the refusal says."""

COMPILED = (
    "aot_forward_plain",
    "aot_graph_breaks_reuse",
    "aot_hook_added_late",
    "cs_unbind_backward_each",
    "fn_grad_inside_backward",
    "fn_library_custom_op",
    "fn_shared_saved_tensor",
    "gs_complex_pinv",
    "gs_diagonal_scatter",
    "gs_resize_conv_pool_where",
    "gs_saved_tensor_hooks_outside",
    "ho_backward_create_graph",
    "hook_intermediate_scale",
    "kind_sparse_embedding",
    "kind_zerotensor_sgn",
)
"""Some of each sort, chosen for speed: `python benchmarks/bench_replay.py --workloads` compiles nearly all of them."""


def reports(name, **options):
    """What parity says of each backward of a workload's first step, or why it cannot."""
    found = []

    @contextlib.contextmanager
    def around(params):
        with cabw_viz.capture(params) as session:
            yield
        found.extend(report_of(capture, options) for capture in session)

    corpus.observe(name, steps=1, around=around)
    assert found
    return found


def report_of(capture, options):
    try:
        return capture.parity(**options)
    except CabwError as error:
        return error


@on_the_version_read
@pytest.mark.parametrize("name", RUNS_AGAIN)
def test_in_float64(name):
    """Eager's own rounding is all that sets it apart."""
    for report in reports(name, dtype="float64"):
        if name in NOT_IN_FLOAT64:
            assert NOT_IN_FLOAT64[name] in str(report)
            continue
        assert not isinstance(report, CabwError), report
        assert report.ok, report
        assert "in float64" in report.comparison.candidate or "complex128" in report.comparison.candidate


@on_the_version_read
@pytest.mark.parametrize("name", COMPILED)
def test_through_aot_eager(name):
    """The same kernels, ordered by a compiler: the same bits."""
    for report in reports(name, backend="aot_eager"):
        assert not isinstance(report, CabwError), report
        assert set(report.frame["verdict"]) == {"bitwise"}, report
