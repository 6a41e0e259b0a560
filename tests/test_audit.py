"""What an audit says of a graph's nodes, against what their C++ formulas read; and that it changes nothing."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
from collections import Counter
from dataclasses import replace

import pytest
import torch

import cabw_viz
from cabw_viz.errors import CabwError
from cabw_viz.numerics.compare import bitwise_equal
from cabw_viz.replay.audit import audit
from cabw_viz.replay.replay import Replay
from tests import corpus
from tests.captures import capture_of, capture_of_run, leaf
from tests.corpus import observe
from tests.test_corpus import on_the_version_read
from tests.test_workloads import NO_SECOND_RUN, NOT_TRACED, RUN_RAISES
from tests.versions import read_on

CANNOT_BE_WATCHED = {
    "fn_cpp_collective": "inputs[1] (4, 3), saved by MulBackward0 (#2): a tensor of class AsyncCollectiveTensor",
    "kind_dtensor_unused_output": "a tensor of class DTensor cannot be watched",
    "kind_wrapper_subclass_compiled": "a tensor of class TwoTensor cannot be watched",
}
"""Workloads with tensors of a subclass, and what the refusal says."""


def backward_of(result):
    return capture_of(None, lambda: result.sum())


def reads(capture, target, node=0):
    """Attributes of what the graph nodes with a target read, with counts; of one node of the graph."""
    frame = capture.audit().query("phase == 'execution'")
    names = [row.name for row in capture.record.graph_nodes if row.target == target]
    found = frame[frame.node == names[node]]
    return dict(zip(found.attribute, found["count"], strict=True))


# -- the formulas --------------------------------------------------------------------------------------------
# The formulas stand in tools/autograd/derivatives.yaml (in the wheel: torchgen/packaged/autograd). Each view op also
# reads the device once: the layer that tracks views asks whether as_strided will do (`TensorImpl::support_as_strided`
# in c10/core/TensorImpl.h, called by the generated ADInplaceOrViewType.cpp).


def test_sum():
    """`grad.expand_symint(self.sym_sizes())`: nothing but the view."""
    assert reads(backward_of(leaf(4, 3)), "ops.SumBackward0") == {"aten.expand.default": 1, "device": 1}


@read_on("2.13")
def test_view_of_a_contiguous_gradient():
    """`grad.reshape_symint(...)`, in aten/src/ATen/native/TensorShape.cpp: `is_contiguous_or_false`, then `view`."""
    a, w = leaf(4, 6), torch.randn(24)  # the product's gradient is contiguous, the sum's would be expanded
    found = reads(backward_of(a.view(24) * w), "ops.ViewBackward0")
    assert found == {"contiguity": 1, "aten.view.default": 1, "device": 1}


@read_on("2.13")
def test_view_of_a_gradient_that_is_not_contiguous():
    """There, beyond: sym_numel, sym_sizes and sym_strides for `computeStride`; the copy where no view will do."""
    a, w = leaf(4, 6), torch.randn(4, 6)
    found = reads(backward_of(a.view(6, 4).t() * w), "ops.ViewBackward0")
    expected = {"contiguity": 1, "numel": 1, "size": 1, "stride": 1}
    expected |= {"aten.clone.default": 1, "aten._unsafe_view.default": 1}
    assert found == expected


def test_expand():
    """`at::sum_to(grad, self.sym_sizes())`, `_sum_to` in ATen/ExpandUtils.h: sizes, a sum, and a view to fewer dims."""
    found = reads(backward_of(leaf(3).expand(5, 3) * torch.randn(5, 3)), "ops.ExpandBackward0")
    assert found == {"size": 1, "aten.sum.dim_IntList": 1, "aten.view.default": 1, "device": 1}


def test_addmm():
    """`mm_mat2_backward` in torch/csrc/autograd/FunctionsManual.cpp: layouts of grad and mat1; for a weight that is a
    transposed view, `grad.t().mm(mat1.conj()).t()`. The bias goes through `maybe_multiply`, which reads a scalar."""
    model = torch.nn.Linear(4, 8)
    found = reads(backward_of(model(torch.randn(3, 4)) * torch.randn(3, 8)), "ops.AddmmBackward0")
    assert found == {"layout": 2, "aten.t.default": 2, "aten.mm.default": 1, "device": 2}


def test_softmax():
    """`_softmax_backward_data(grad, result, dim, self.scalar_type())`: one op, no metadata."""
    found = reads(backward_of(leaf(3, 4).softmax(-1) * torch.randn(3, 4)), "ops.SoftmaxBackward0")
    assert found == {"aten._softmax_backward_data.default": 1}


def test_validate_outputs():
    """`validate_outputs_impl` in torch/csrc/autograd/engine.cpp: `maybe_reduce` compares sizes
    (`InputMetadata::is_same_shape`), then dtype, layout and device; C++ reads the dtype without a call."""
    assert reads(backward_of(leaf(4, 3)), "ops.validate_outputs", node=1) == {"size": 1, "layout": 1, "device": 1}


def test_validate_outputs_sums_what_was_broadcast():
    """`maybe_reduce` in torch/csrc/autograd/input_metadata.cpp: `is_expandable_to_shape`, then `at::sum_to`."""
    capture = backward_of(torch.nn.Linear(4, 8)(torch.randn(3, 4)))
    found = reads(capture, "ops.validate_outputs", node=2)  # of root, sum, addmm
    assert found["aten.sum.dim_IntList"] == found["aten.view.default"] == 1  # the bias's gradient, (3, 8) to (8,)
    assert found["size"] == 3
    assert found["layout"] == 2  # bias and weight


def test_copy_slices_prologue():
    """`copy_slices_prologue` in torch/_dynamo/compiled_autograd.py, line by line: `new_empty_strided`, `copy_`,
    `as_strided`, `clone`; `copy_` and the view ask for the device."""

    def run():
        b = a * 2
        b[:, 1].mul_(3)
        b.sum().backward()

    a = leaf(4, 3)
    frame = capture_of_run(None, run).audit().query("node == 'copy_slices_prologue'")
    assert list(frame.attribute) == [
        "aten.new_empty_strided.default",
        "device",
        "aten.copy_.default",
        "aten.as_strided.default",
        "device",
        "aten.clone.default",
    ]
    assert set(frame.by) == {"kernel"}
    source, first = inspect.getsourcelines(torch._dynamo.compiled_autograd.copy_slices_prologue)
    for row in frame.itertuples():
        file, _, line = row.where.rpartition(":")
        assert file == "torch/_dynamo/compiled_autograd.py"
        if row.attribute != "device":
            assert row.attribute.split(".")[1] in source[int(line) - first]


@pytest.mark.parametrize("batch", [0, 1, 7])
def test_another_batch_size_reads_the_same(batch):
    """What is read hangs on the graph, not on the sizes."""
    one, other = (backward_of(leaf(rows, 4)) for rows in (3, batch))
    assert one.audit().equals(other.audit())


# -- who reads -----------------------------------------------------------------------------------------------


class Reader(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        rows = g.shape[0]
        first = g[0, 0].item()
        kind = g.dtype, g.device
        return g * (2 if rows and kind and first is not None else 0)


def line_of(text):
    source, first = inspect.getsourcelines(Reader.backward)
    return f"{__file__}:{first + next(i for i, line in enumerate(source) if text in line)}"


def test_reads_in_a_function_of_the_users_are_found_with_their_lines():
    frame = backward_of(Reader.apply(leaf(4, 3))).audit().query("by == 'user'")
    assert set(frame.name) == {"ReaderBackward"}
    assert set(frame.node) == {"call_backward"}
    at = {text: sorted(frame[frame["where"] == line_of(text)].attribute) for text in ("rows =", "first =", "kind =")}
    assert at["rows ="] == ["size"]
    assert at["first ="].count("data") == 1
    assert "aten._local_scalar_dense.default" in at["first ="]
    assert at["kind ="] == ["device", "dtype"]


def test_reads_in_a_hook_are_found_with_their_lines():
    a = leaf(4, 3)
    b = a * 2
    b.register_hook(lambda g: g if g.dim() else None)
    line = inspect.currentframe().f_lineno - 1
    frame = backward_of(b).audit().query("by == 'user'")
    assert [tuple(row) for row in frame[["attribute", "node", "where", "count"]].itertuples(index=False)] == [
        ("dim", "call_hook", f"{__file__}:{line}", 1)
    ]


PYTHON_READS = {
    "shape": (lambda g: g.shape, {"size": 1}),
    "size()": (lambda g: g.size(), {"size": 1}),
    "stride": (lambda g: g.stride(), {"stride": 1}),
    "storage_offset": (lambda g: g.storage_offset(), {"storage_offset": 1}),
    "numel": (lambda g: g.numel(), {"numel": 1}),
    "ndim": (lambda g: g.ndim, {"dim": 1}),
    "is_contiguous": (lambda g: g.is_contiguous(), {"contiguity": 1}),
    "channels_last": (lambda g: g.is_contiguous(memory_format=torch.channels_last), {"contiguity": 1}),
    "device": (lambda g: g.device, {"device": 1}),
    "is_cuda": (lambda g: g.is_cuda, {"device": 1}),
    "layout": (lambda g: g.layout, {"layout": 1}),
    "is_sparse": (lambda g: g.is_sparse, {"layout": 1}),
    "dtype": (lambda g: g.dtype, {"dtype": 1}),
    "is_floating_point": (lambda g: g.is_floating_point(), {"dtype": 1}),
    "torch.is_complex": (torch.is_complex, {"dtype": 1}),
    "element_size": (lambda g: g.element_size(), {"dtype": 1}),
    "numpy": (lambda g: g.numpy(), {"data": 1}),
    "tolist": (lambda g: g.tolist(), {"data": 1}),
    "repr": (repr, {"data": 1}),
    "format": (lambda g: f"{g.sum():.3f}", {"data": 1, "aten.sum.default": 1}),
    "bool": (lambda g: bool(g.sum() > 1e9), {"data": 1}),
    "nonzero": (lambda g: g.nonzero(), {"data": 1, "aten.nonzero.default": 1}),
    "masked_select": (lambda g: g.masked_select(g > 0), {"data": 1}),
    "boolean index": (lambda g: g[g > 0], {"data": 1}),
    "integer index": (lambda g: g[torch.tensor([0])], {"data": 0, "aten.index.Tensor": 1}),
    "equal": (lambda g: torch.equal(g, g), {"data": 1, "aten.equal.default": 1}),
    "nothing": (lambda g: (g.requires_grad, g.grad_fn, g.is_leaf), {}),
}


@pytest.mark.parametrize("read", PYTHON_READS)
def test_each_read_by_python_is_found_once(read):
    look, expected = PYTHON_READS[read]
    a = leaf(4, 3)
    b = a * 2
    hook = b.register_hook(lambda g: (look(g), None)[1])
    frame = backward_of(b).audit().query("by == 'user'")
    hook.remove()
    found = Counter()
    for row in frame.itertuples():
        found[row.attribute] += row.count
    for attribute, count in expected.items():
        assert found[attribute] == count, found
    if all("." not in attribute for attribute in expected) and "data" not in expected:
        assert dict(found) == expected  # and nothing else


def test_with_nothing_watched_the_reads_are_gone(monkeypatch):
    """The tests above fail where the watching is switched off."""
    monkeypatch.setattr("cabw_viz.replay.watched.Watch.record", lambda *_: None)
    assert backward_of(leaf(4, 3)).audit().empty


def test_the_aten_ops_of_a_node():
    frame = backward_of(leaf(4, 3).pow(3)).audit().query("name == 'PowBackward0' and node == 'pow_backward0'")
    assert list(frame.attribute) == ["aten.pow.Tensor_Scalar", "aten.mul.Scalar", "aten.mul.Tensor"]
    assert set(frame["where"]) == {"C++"}


# -- it changes nothing --------------------------------------------------------------------------------------


def assert_same_gradients(capture):
    """An audit gives replay's gradients, to the bit and the stride."""
    plain, audited = Replay(capture._captured).gradients(), audit(capture._captured)
    watched = audited.gradients
    assert plain.keys() == watched.keys()
    for index, gradient in plain.items():
        other = watched[index]
        assert type(other) is type(gradient)
        assert (other.shape, other.dtype, other.layout) == (gradient.shape, gradient.dtype, gradient.layout)
        if gradient.layout is torch.strided:
            assert other.stride() == gradient.stride()
        assert bitwise_equal(gradient.to_dense(), other.to_dense()), capture.record.leaves[index].label
    assert audited.touches


def in_place_on_views():
    b = leaf(4, 3) * 2
    b[:, 1].mul_(3)
    b[1:, :2].t().add_(1)
    return b.sum()


def conjugate_views():
    a = leaf(4, 3, dtype=torch.complex64)
    return (a.mH @ a.conj().imag.to(torch.complex64)).conj().abs().sum() + (a.conj() * a.imag).real.sum()


def complex_kernels_that_conjugate():
    """`linalg.lstsq` calls `linalg.pinv`, which conjugates inside: wrong where that is off below __torch_dispatch__."""
    a, b = leaf(4, 3, dtype=torch.complex64), leaf(4, 2, dtype=torch.complex64)
    return torch.linalg.lstsq(a, b, driver="gelsd").solution.abs().sum()


def sparse_gradients():
    embedding = torch.nn.Embedding(10, 3, sparse=True)
    return embedding(torch.tensor([[1, 2], [2, 7]])).square().mean()


def autocast():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(torch.randn(4, 8)).float().square().mean()


def convolutions():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.MaxPool2d(2))
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    return model.to(memory_format=torch.channels_last)(x).square().sum()


def random_in_backward():
    return Noisy.apply(leaf(4, 3)).sum()


def scalars():
    return leaf(()).exp() * 3 + leaf(()).sin()


def written_gradient():
    b = leaf(4, 3) * 2
    b.register_hook(lambda g: g.clone().mul_(2).index_fill_(0, torch.tensor([1]), 0.0))
    return b.sin().sum()


def resized():
    b = leaf(4, 3) * 2
    b.register_hook(lambda g: g.clone().t_().unsqueeze_(0).squeeze_(0).t_())
    return b.sin().sum()


def into_out():
    b = leaf(4, 3) * 2
    b.register_hook(lambda g: torch.mul(g, 2, out=torch.empty_like(g)))
    return b.sin().sum()


def tensors_of_the_users():
    kept = torch.arange(12.0).view(4, 3)
    b = leaf(4, 3) * 2
    b.register_hook(lambda g: kept.clone().add_(g))
    return b.sin().sum()


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return torch.nn.functional.dropout(g) + torch.rand_like(g) + torch.rand(g.shape)


PROGRAMS = [
    in_place_on_views,
    conjugate_views,
    complex_kernels_that_conjugate,
    sparse_gradients,
    autocast,
    convolutions,
    random_in_backward,
    scalars,
    written_gradient,
    resized,
    into_out,
    tensors_of_the_users,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_gradients_are_those_of_a_replay(program):
    torch.manual_seed(0)
    capture = capture_of(None, lambda: program())
    assert_same_gradients(capture)


@pytest.mark.parametrize("program", [lambda a: a.prod(), lambda a: torch.zeros(4, 3).masked_fill(a > 0, a.sum()).sum()])
def test_formulas_that_go_another_way_for_subclasses(program):
    """`prod_backward` and `masked_fill_backward` in torch/csrc/autograd/FunctionsManual.cpp, behind
    `areAnyTensorSubclassLike`: same gradient, other ops, hence other last bits; and no read of data."""
    a = leaf(4, 3)
    capture = capture_of(None, lambda: program(a))
    audited = audit(capture._captured)
    torch.testing.assert_close(audited.gradients, Replay(capture._captured).gradients())
    assert "data" not in {touch.attribute for touch in audited.touches}


@pytest.mark.parametrize("create_graph", [False, True])
def test_grad_with_and_without_a_graph(create_graph):
    a = leaf(4, 3)
    capture = capture_of_run(None, lambda: torch.autograd.grad(a.sin().square().sum(), a, create_graph=create_graph))
    assert_same_gradients(capture)


def test_nothing_is_written():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    x = torch.randn(3, 4)
    capture = capture_of(model, lambda: model(x).sum())
    before = [p.grad.clone() for p in model.parameters()], [p._version for p in model.parameters()]
    state = torch.get_rng_state()
    steps = []
    model[0].weight.register_post_accumulate_grad_hook(steps.append)
    capture.audit()
    assert all(map(torch.equal, before[0], [p.grad for p in model.parameters()]))
    assert before[1] == [p._version for p in model.parameters()]
    assert torch.equal(state, torch.get_rng_state())
    assert not steps


def test_an_in_place_write_counts_as_one():
    """A hook that writes to the gradient of the root: after its audit as after its replay, neither is made again."""
    b = leaf(4, 3).sin()
    hook = b.register_hook(lambda g: (g.mul_(2), None)[1])
    for again in ("audit", "replay"):
        capture = capture_of_run(None, lambda: b.backward(torch.ones(4, 3), retain_graph=True))
        unchecked = (None,) * len(capture.record.inputs)
        capture._captured.state.arguments = replace(
            capture._captured.state.arguments, versions=unchecked, bits=unchecked
        )
        versions = [tensor._version for tensor in capture._captured.state.arguments.inputs]
        getattr(capture, again)()
        after = [tensor._version for tensor in capture._captured.state.arguments.inputs]
        assert [n - before for before, n in zip(versions, after, strict=True)] == [1, 0, 0][: len(after)]
    hook.remove()


def test_what_a_hook_keeps_is_harmless_afterwards():
    kept = []
    b = leaf(4, 3) * 2
    b.register_hook(kept.append)
    capture = backward_of(b)
    capture.audit()
    touches = capture.record.touches
    gradient = kept[-1]
    assert type(gradient + 1) is torch.Tensor
    assert gradient.numpy().shape == (4, 3)
    assert type(copy.deepcopy(gradient)) is torch.Tensor
    buffer = io.BytesIO()
    torch.save(gradient, buffer)
    buffer.seek(0)
    assert type(torch.load(buffer)) is torch.Tensor
    assert capture.record.touches is touches


# -- the table, the record, refusals -------------------------------------------------------------------------


def test_an_audit_replaces_the_last_one_and_leaves_other_phases():
    capture = backward_of(leaf(4, 3))
    others = [touch for touch in capture.record.touches if touch.phase != "execution"]
    first = capture.audit()
    assert capture.touches().equals(first)
    assert capture.audit().equals(first)
    assert [touch for touch in capture.record.touches if touch.phase != "execution"] == others
    assert list(first.columns) == ["phase", "attribute", "autograd_node", "name", "node", "by", "where", "count"]


def test_hooks_as_in_a_replay():
    seen = []
    b = leaf(4, 3) * 2
    b.register_hook(lambda g: seen.append(1))
    capture = backward_of(b)
    capture.audit(hooks="drop")
    assert len(seen) == 1  # by the user's own run
    with pytest.raises(CabwError, match=r"MulBackward0 .* carries a tensor_pre_hook"):
        capture.audit(hooks="refuse")
    capture.audit()
    assert len(seen) == 2


def test_refusals_as_in_a_replay():
    model = torch.nn.Linear(3, 2)
    x = torch.randn(4, 3)
    capture = capture_of(model, lambda: model(x).sum())
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(CabwError, match="changed in place since the backward was captured"):
        capture.audit()
    with cabw_viz.capture() as session:
        leaf(2).sum().backward()
    session.close()
    with pytest.raises(CabwError, match="the session was closed"):
        session[0].audit()


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        if type(g) is not torch.Tensor:
            raise TypeError("a tensor, please")
        return g * 2


def test_code_that_takes_no_subclass_is_named():
    with pytest.raises(CabwError, match=r"watched tensors: FailingBackward \(#2\), graph node call_backward raised"):
        backward_of(Failing.apply(leaf(4))).audit()


class Audited:
    """Runs a workload captured, and audits each capture before anything else has run its graph."""

    def __init__(self):
        self.outcomes, self.replays = [], []

    @contextlib.contextmanager
    def __call__(self, params):
        with cabw_viz.capture(params) as session:
            yield
        for capture in session:
            try:
                self.outcomes.append(audit(capture._captured))
            except CabwError as error:
                self.outcomes.append(error)
                continue
            self.replays.append((capture, Replay(capture._captured).gradients()))


@on_the_version_read
@pytest.mark.parametrize("name", corpus.NAMES)
def test_every_workload_is_audited_unchanged_or_refused_in_words(name):
    audits = Audited()
    observe(name, around=audits)
    refused = [outcome for outcome in audits.outcomes if isinstance(outcome, CabwError)]
    if name in CANNOT_BE_WATCHED:
        assert refused
        assert all(CANNOT_BE_WATCHED[name] in str(error) for error in refused)
    elif name in NO_SECOND_RUN:
        assert refused
        assert all(NO_SECOND_RUN[name] in str(error) for error in refused)
    elif name in NOT_TRACED:
        assert len(refused) == len(audits.outcomes)
        assert all("has no complete graph" in str(error) for error in refused)
    elif name not in RUN_RAISES:
        assert not refused
        assert audits.outcomes
    watched = [outcome for outcome in audits.outcomes if not isinstance(outcome, CabwError)]
    for audited, (capture, plain) in zip(watched, audits.replays, strict=True):
        gradients = audited.gradients
        assert audited.touches or not capture.record.graph_nodes
        assert gradients.keys() == plain.keys()
        for index, gradient in plain.items():
            assert type(gradients[index]) is type(gradient)
            assert bitwise_equal(*(side.to_dense() for side in (gradient, gradients[index])))
