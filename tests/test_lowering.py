"""Every workload lowered to aten ops: the same bits as the user's own eager run, or a refusal with node and reason."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator

import pytest
import torch
from torch._dynamo import compiled_autograd

import cabw_viz
from cabw_viz.errors import CabwError
from cabw_viz.numerics.compare import bitwise_equal, metadata_differences
from cabw_viz.runtime.gradient_snapshots import Gradient, strides_of
from tests import corpus
from tests.captures import capture_of
from tests.corpus import load, observe
from tests.test_audit import PROGRAMS
from tests.test_corpus import ROUNDED, on_the_version_read
from tests.test_workloads import NOT_TRACED, RUN_RAISES

REFUSED = {
    "ck_compiled_piece_inside": ("CompiledFunctionBackward (#7)", "calls a compiled function"),
    "ck_selective_inplace_saved": ("SigmoidBackward0 (#2)", "writes to a tensor that is none of its inputs"),
    "cs_lora_reentrant_frozen_input": ("CheckpointFunctionBackward (#3)", "accumulates into .grad"),
    "cs_scaler_step_before_inspection": ("MulBackward0 (#1)", "was changed in place"),
    "fn_backward_writes_saved_output": ("CountsBackward (#3)", "was changed in place"),
    "fn_compiled_aot": ("CompiledFunctionBackward (#2)", "aot0_transpose_1"),
    "fn_cpp_collective": ("MulBackward0 (#2)", "is a AsyncCollectiveTensor"),
    "ho_vmap_over_grad": ("GraphRoot (#0)", "escaped from inside a function being vmapped"),
    "hook_enable_inside_backward": ("MulBackward0 (#2)", "accumulates into .grad"),
    "hook_multi_grad": ("AccumulateGrad c (#4)", "inside a backward call"),
    "hook_queue_callback": ("SinkBackward (#3)", "during backward pass"),
    "kind_sparse_mm_both_sparse": ("SparseAddmmBackward0 (#3)", "compute their outputs' shapes without values"),
    "kind_wrapper_subclass_compiled": ("GraphRoot (#0)", "is a TwoTensor"),
}
"""Captured, but no graph of aten ops can be made of it: the autograd node that the refusal names, and the reason."""

LARGE = ("cs_deep_chain", "gs_attention_large_logits", "kind_wide_convlstm", "view_loop_write_rows")
"""One step of these, with sizes that are numbers alone, takes long enough."""


ONCE = ("kind_fsdp2_one_rank",)
"""Its hooks change what they depend on."""


class Lowering:
    """Runs a workload captured, and lowers each capture before anything else has run its graph, then with symbols."""

    def __init__(self, *, symbolic=True):
        self.ways = (False, True) if symbolic else (False,)
        self.captures, self.outcomes = [], []

    @contextlib.contextmanager
    def __call__(self, params):
        with cabw_viz.capture(params) as session:
            yield
        for capture in session:
            for symbolic in self.ways:
                try:
                    lowered = capture.lower(symbolic=symbolic)
                    outcome = lowered, lowered.gradients()
                except CabwError as error:
                    outcome = error
                self.captures.append(capture)
                self.outcomes.append(outcome)


@on_the_version_read
@pytest.mark.parametrize("name", corpus.NAMES)
def test_every_workload_gives_eagers_bits_or_is_refused_in_words(name):
    seen = Lowering(symbolic=name not in LARGE + ONCE)
    workload = load(name)
    if name == "cs_deep_chain":  # a chain of any length is lowered node by node
        workload = dataclasses.replace(workload, build=functools.partial(workload.build, depth=200))
    observe(workload, steps=1 if name in LARGE else None, around=seen)
    for capture, outcome in zip(seen.captures, seen.outcomes, strict=True):
        if name in NOT_TRACED or name in RUN_RAISES:  # nothing to lower, or nothing to compare with
            assert isinstance(outcome, CabwError) or not capture._captured.state.has_reference
            continue
        if name in REFUSED:
            assert isinstance(outcome, CabwError), f"{name} can be lowered"
            assert all(part in str(outcome) for part in REFUSED[name]), outcome
            assert capture.results.lowered == ()
            continue
        assert not isinstance(outcome, CabwError), outcome
        lowered, gradients = outcome
        if name not in ROUNDED:
            assert_same_as_the_run(capture, gradients)
        assert_aten_alone(lowered)
        assert capture.results.lowered
    assert seen.outcomes or name in NOT_TRACED


def assert_same_as_the_run(capture, gradients):
    """The gradients have the bits that the user's own eager run gave, and the strides where those can differ."""
    reference = capture._captured.state.reference
    assert set(gradients) == {name for index in reference for name in capture.record.leaves[index].names}
    for index, expected in reference.items():
        leaf = capture.record.leaves[index]
        for name in leaf.names:
            strides = strides_of(gradients[name]) if leaf.output is not None else None
            assert not metadata_differences(expected, Gradient(gradients[name], strides))
            assert bitwise_equal(*(side.to_dense() for side in (expected.value, gradients[name]))), name


def assert_aten_alone(lowered):
    """Every call is an operator of the dispatcher, picks a result, or computes with sizes; none is opaque."""
    for node in lowered.graph.nodes:
        assert node.op in ("placeholder", "output", "get_attr", "call_function")
        if node.op == "call_function" and not isinstance(node.target, torch._ops.OpOverload):
            plain = node.target is operator.getitem or isinstance(node.meta["val"], torch.SymInt)
            assert plain, node.target


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_with_a_twist(program, symbolic):
    """In-place writes to views, conjugated and complex tensors, sparse gradients, autocast, random numbers, hooks."""
    torch.manual_seed(0)
    loss = program()
    capture = capture_of(None, lambda: loss)
    assert_same_as_the_run(capture, capture.lower(symbolic=symbolic).gradients())


@pytest.mark.parametrize("run", ["compiled", "user"])
def test_a_compiled_run_is_lowered_too(run):
    a = torch.randn(3, 4, requires_grad=True)
    users = compiled_autograd._enable(lambda graph: graph) if run == "user" else contextlib.nullcontext()
    with cabw_viz.capture({"a": a}, run="compiled" if run == "compiled" else "eager") as session, users:
        a.sin().square().sum().backward()
    assert session[0].record.run == run
    found = session[0].lower().gradients()
    assert torch.equal(found["a"], a.grad)


def test_a_fault_in_the_lowered_graph_would_be_seen():
    """The comparison above fails where one op is another."""
    a = torch.randn(3, requires_grad=True)
    capture = capture_of({"a": a}, lambda: a.sin().sum())
    lowered = capture.lower()
    assert_same_as_the_run(capture, lowered.gradients())
    (cosine,) = lowered.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default)
    cosine.target = torch.ops.aten.sin.default
    lowered.recompile()
    with pytest.raises(AssertionError):
        assert_same_as_the_run(capture, lowered.gradients())
