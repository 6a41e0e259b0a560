"""Every workload as a whole step: compiled autograd against eager, and the compiled step against the uncompiled."""

from __future__ import annotations

import pytest
import torch

import cabw_viz
from tests import corpus
from tests.corpus import load
from tests.test_corpus import ROUNDED, on_the_version_read

OWN_COMPILED_PART_DIFFERS = {"aot_hook_added_late": {"x": "mismatch"}}
"""Differs from the uncompiled step already in the eager engine: the compiled forward knows nothing of a later hook."""

LOST = {
    "cs_two_threads_inside_together": {"w": "mismatch"},
    "hook_queue_callback": {f"(result) results.callback[0][{i}][{j}]": "missing" for i in (0, 1) for j in (0, 1)},
    "kind_fsdp2_one_rank": {f"{layer}.{name}": "missing" for layer in (0, 2) for name in ("weight", "bias")},
    "kind_sparse_mm_both_sparse": {},  # the values are the same; whether they are marked as coalesced is not compared
}
"""Those that silently differ under compiled autograd, and all of what differs."""

EVERY = (0, 1, 2)
WRONG = {
    ("gs_recompute_reads_mutated", "aot_eager"): {"x": ("mismatch", EVERY)},
    ("gs_recompute_reads_mutated", "inductor"): {"x": ("mismatch", EVERY)},
    ("gs_detached_sibling_output", "inductor"): {"x": ("missing", EVERY)},
    **{
        ("gs_complex_pinv", backend): {"a": ("mismatch", (0,)), "(loss)": ("mismatch", (0,))}
        for backend in ("aot_eager", "aot_eager_decomp_partition", "inductor")
    },
    **{
        ("gs_eval_dropout_alias_inplace", backend): {"x": ("mismatch", EVERY), "(loss)": ("mismatch", EVERY)}
        for backend in ("aot_eager", "aot_eager_decomp_partition", "inductor")
    },
    # Eager is wrong here, and the compiled step right.
    **{
        ("ck_selective_inplace_saved", backend): {"w": ("mismatch", EVERY), "x": ("mismatch", EVERY)}
        for backend in ("aot_eager", "aot_eager_decomp_partition", "inductor")
    },
}
"""Silently wrong under torch.compile: what, how, and in which calls. All else agrees."""

RAISES = {
    ("gs_recompute_reads_mutated", "aot_eager_decomp_partition"): "modified by an inplace operation",
    ("gs_scan_closed_over_weight", "inductor"): "InductorError",
    **{
        (name, backend): text
        for name, text in {
            "cs_unbind_backward_each": "backward through the graph a second time",
            "fn_backward_writes_saved_output": "Node add was invalid, but is output",
            "kind_nested_layer_norm": "list index out of range",
        }.items()
        for backend in ("aot_eager", "aot_eager_decomp_partition", "inductor")
    },
}

COMPILED = [name for name in corpus.NAMES if load(name).compiled is not None]


def built(name, backend=None, **options):
    """A function that loads and builds a workload anew, and makes its backward part of its step."""

    def build():
        workload = load(name)
        params, step = workload.build(**options)
        return whole_step(workload, params, step if backend is None else workload.compiled(step, backend=backend))

    return build


def otherwise(name):
    """The same for the step that computes the same in another way."""

    def build():
        workload = load(name)
        return whole_step(workload, *workload.otherwise())

    return build


def whole_step(workload, params, forward):
    def whole():
        returned = forward()
        results = workload.backward(returned, params)
        loss = returned[0] if isinstance(returned, tuple) else returned
        return {"loss": loss.detach() if isinstance(loss, torch.Tensor) else loss, "results": results}

    return whole, params


def differences(matrix, run):
    """What differs in a run, and in which calls."""
    rows = matrix.details.query("run == @run and verdict not in ('bitwise', 'within_tolerance', 'within_noise')")
    found = {}
    for row in rows.itertuples():
        name = row.parameter if row.kind == "gradient" else f"({row.kind}) {row.parameter}".rstrip()
        verdict, calls = found.get(name, (row.verdict, ()))
        assert verdict == row.verdict
        found[name] = verdict, (*calls, row.call)
    return found


@on_the_version_read
@pytest.mark.parametrize("name", corpus.NAMES)
def test_compiled_autograd_against_eager(name):
    workload = load(name)
    with corpus.isolated():
        backends = ["eager", "compiled_autograd"]
        matrix = cabw_viz.compare(built(name), backends=backends, repeats=workload.steps)
    if workload.expect == "parity" or name in ROUNDED:
        assert matrix.report("compiled_autograd").ok, matrix
        assert name in ROUNDED or set(matrix.frame["compiled_autograd"]) == {"bitwise"}
    elif workload.expect.startswith("raises: "):
        assert workload.expect.removeprefix("raises: ") in matrix.raised["compiled_autograd"]
        assert "compiled_autograd raises" in repr(matrix)
    else:
        found = differences(matrix, "compiled_autograd")
        assert {what: verdict for what, (verdict, _) in found.items()} == LOST[name]
        assert matrix.ok is not bool(LOST[name])
    if "eager" not in matrix.raised:
        assert matrix.report("eager").ok
    if "as_is" in matrix.runs and "as_is" not in matrix.raised:
        found = {what: verdict for what, (verdict, _) in differences(matrix, "as_is").items()}
        assert found == OWN_COMPILED_PART_DIFFERS.get(name, {})


def check_compiled(name, backend):
    with corpus.isolated():
        matrix = cabw_viz.compare(built(name), backends=[], against={"mine": built(name, backend)})
    raises = RAISES.get((name, backend))
    if raises is not None:
        assert raises in matrix.raised["mine"]
    else:
        assert differences(matrix, "mine") == WRONG.get((name, backend), {}), matrix
        assert matrix.raised == {}
    assert matrix.ok is (raises is None and (name, backend) not in WRONG)


@on_the_version_read
@pytest.mark.parametrize("name", COMPILED)
def test_the_compiled_step_against_eager(name):
    check_compiled(name, "aot_eager")


@on_the_version_read
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", pytest.param("aot_eager_decomp_partition", marks=pytest.mark.models)])
@pytest.mark.parametrize("name", COMPILED)
def test_the_compiled_step_against_eager_with_other_backends(name, backend):
    check_compiled(name, backend)


@on_the_version_read
def test_a_gradient_that_inductor_loses_is_missing():
    check_compiled("gs_detached_sibling_output", "inductor")


@on_the_version_read
def test_a_scan_agrees_with_the_loop_that_it_stands_for():
    name = "gs_associative_scan_two_leaves"
    matrix = cabw_viz.compare(built(name), backends=[], against={"loop": otherwise(name)}, repeats=1)
    assert matrix.ok, matrix


@on_the_version_read
def test_a_gradient_that_eager_itself_gets_wrong_shows_beside_a_step_that_computes_the_same():
    """The index reads only the first row of the source, so the others have no gradient."""
    name = "gs_scatter_reduce_short_index"
    matrix = cabw_viz.compare(built(name), backends=[], against={"sliced": otherwise(name)}, repeats=1)
    assert differences(matrix, "sliced") == {"src": ("mismatch", (0,))}
    params, step = load(name).otherwise()
    step().backward()
    assert not params["src"].grad[1:].any()


@on_the_version_read
@pytest.mark.parametrize("name", corpus.GARBAGE)
def test_gradients_of_uninitialised_memory_are_not_reproducible_and_without_the_fault_all_agree(name):
    with corpus.isolated():
        matrix = cabw_viz.compare(built(name), against={"compiled": built(name, "aot_eager")}, repeats=1)
        right = cabw_viz.compare(built(name, early_stop=False), against={"plain": built(name, use=False)}, repeats=1)
    assert not matrix.ok
    for run in matrix.runs:
        assert {matrix.frame[run][name] for name in ("0.weight", "0.bias", "x")} == {"not_reproducible"}, matrix
    assert right.ok, right
