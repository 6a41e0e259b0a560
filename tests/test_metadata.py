"""What an autograd node takes from symbolic inputs and what is baked, against PyTorch's own ways and its cache."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
import torchgen
from torch._dynamo import compiled_autograd

import cabw_viz
from cabw_viz.analysis.recapture import baked_text, lifted_text, ranges
from cabw_viz.record.model import AutogradNode, Baked, LiftedUse
from cabw_viz.tracing.ivalue_packer import DTYPES, LAYOUTS, MEMORY_FORMATS, packed_fields
from cabw_viz.tracing.metadata import MetadataReader
from cabw_viz.tracing.saved_field_names import UNKNOWN, align
from tests import corpus
from tests.captures import Twice, capture_of, leaf
from tests.corpus import observe
from tests.test_corpus import on_the_version_read
from tests.versions import read_on


def record_of(result, dynamic=True):
    """The record of a result's backward, traced with symbolic sizes or without."""
    static = contextlib.nullcontext() if dynamic else compiled_autograd._enable(lambda graph: graph, dynamic=False)
    with cabw_viz.capture() as session, static:
        result.sum().backward()
    (capture,) = session
    return capture.record


def node_of(record, name):
    return next(node for node in record.autograd_nodes if node.name == name)


def lifted(node):
    return {use.meaning: use.value for use in node.lifted}


def baked(node, but=("device", "dtype", "layout")):
    found = [constant for constant in node.baked if constant.attribute not in but]
    return [(constant.attribute, constant.value, constant.meaning) for constant in found]


# -- what stands in the record -------------------------------------------------------------------------------


def test_a_sum():
    record = record_of(leaf(5, 3) * 1.5)
    node = node_of(record, "SumBackward0")
    assert lifted(node) == {
        "self_sym_sizes[0]": 5,
        "self_sym_sizes[1]": 3,
        "gradient 0, dimension 0": 5,
        "gradient 0, dimension 1": 3,
    }
    assert node.baked == (
        Baked("flag", "[True]", "needs_input_grad"),
        Baked("device", "cpu", "gradient 0"),
        Baked("dtype", "torch.float32", "gradient 0"),
        Baked("layout", "torch.strided", "gradient 0"),
    )


def test_scalars_dims_and_flags_by_their_names():
    assert ("scalar", "2.5", "exponent") in baked(node_of(record_of(leaf(3) ** 2.5), "PowBackward0"))
    assert ("dim", "-1", "dim") in baked(node_of(record_of(leaf(3, 4).softmax(-1)), "SoftmaxBackward0"))
    found = baked(node_of(record_of(leaf(3, 4).logsumexp((0, 1), keepdim=True)), "LogsumexpBackward0"))
    assert ("dim", "[0, 1]", "dim") in found
    assert ("flag", "True", "keepdim") in found
    found = baked(node_of(record_of(torch.nn.functional.gelu(leaf(3), approximate="tanh")), "GeluBackward0"))
    assert ("flag", "tanh", "approximate") in found


def test_a_constant_without_a_name_is_told_by_its_place():
    """`self_scalar_type` of the softmax has no getter in Python, and 6 may be anything."""
    node = node_of(record_of(leaf(3, 4).softmax(-1)), "SoftmaxBackward0")
    assert ("other", "6", "argument 3 of SoftmaxBackward0") in baked(node)
    row = next(row for row in record_of(leaf(3, 4).softmax(-1)).graph_nodes if row.target == "ops.SoftmaxBackward0")
    assert row.arguments.split(", ")[3] == "6"


def test_two_ways_to_name_an_argument_are_none():
    """A stack of two along dim 2: the count of tensors and the dim are both 2."""
    node = node_of(record_of(torch.stack([leaf(3, 4), leaf(3, 4)], 2)), "StackBackward0")
    assert [found for found in baked(node) if found[1] == "2"] == [
        ("other", "2", "argument 2 of StackBackward0"),
        ("other", "2", "argument 3 of StackBackward0"),
    ]
    named = node_of(record_of(torch.stack([leaf(3, 4), leaf(3, 4)], 1)), "StackBackward0")
    assert ("dim", "1", "dim") in baked(named)


def test_negative_numbers_that_python_is_told_as_unsigned():
    loss = torch.nn.functional.nll_loss(leaf(3, 4), torch.tensor([0, 1, 2]))
    assert lifted(node_of(record_of(loss), "NllLossBackward0"))["ignore_index"] == -100


def test_convolutions_lift_their_settings():
    """Padding, stride, dilation and groups are SymInts: changing them needs no new capture."""
    found = lifted(
        node_of(record_of(torch.nn.Conv1d(2, 4, 3, padding=1)(torch.randn(2, 2, 8))), "ConvolutionBackward0")
    )
    for field, value in {"padding[0]": 1, "stride[0]": 1, "dilation[0]": 1, "groups": 1}.items():
        assert found[field] == value


def write_to_a_view():
    b = leaf(4, 3) * 2
    b[:, 1].mul_(3)
    return b


def test_copy_slices():
    found = lifted(node_of(record_of(write_to_a_view()), "CopySlices"))
    assert found == {
        "base size, dimension 0": 4,
        "base size, dimension 1": 3,
        "base stride, dimension 0": 3,
        "base stride, dimension 1": 1,
        "base storage offset": 0,
        "view size, dimension 0": 4,
        "view stride, dimension 0": 3,
        "view storage offset": 1,
        "gradient 0, dimension 0": 4,
        "gradient 0, dimension 1": 3,
    }


def test_a_static_trace_bakes_what_a_dynamic_one_lifts():
    node = node_of(record_of(write_to_a_view(), dynamic=False), "CopySlices")
    assert not node.lifted
    assert baked(node, but=("device", "dtype", "layout", "flag", "other")) == [
        ("size", "[4, 3]", "base size"),
        ("stride", "[3, 1]", "base stride"),
        ("storage_offset", "0", "base storage offset"),
        ("size", "[4]", "view size"),
        ("stride", "[3]", "view stride"),
        ("storage_offset", "1", "view storage offset"),
        ("size", "[4, 3]", "gradient 0"),
    ]
    record = record_of(leaf(5, 3) * 1.5, dynamic=False)
    assert not record.sizes
    assert ("size", "[5, 3]", "self_sym_sizes") in baked(node_of(record, "SumBackward0"))


def test_packed_options_of_a_node():
    record = record_of(leaf(3).to(torch.float64))
    packed = [c for c in node_of(record, "ToCopyBackward0").baked if c.meaning.startswith("argument 2")]
    assert [(c.attribute, c.value) for c in packed] == [
        ("device", "cpu"),
        ("dtype", "torch.float32"),
        ("layout", "torch.strided"),
    ]


def test_a_compiled_regions_ops_are_named_by_their_schemas():
    step = torch.compile(lambda x: x.view(2, 6).sum(1, keepdim=True) * 2, backend="aot_eager")
    node = node_of(record_of(step(leaf(3, 4))), "CompiledFunctionBackward")
    found = baked(node)
    assert any(attribute == "size" and meaning.startswith("size of aot0_") for attribute, _, meaning in found)
    torch._dynamo.reset()


@read_on("2.13")
def test_whether_there_is_a_gradient_already():
    a = leaf(3)
    flag = "accumulates into a .grad"
    for known in ("False", "True"):
        assert ("flag", known, flag) in baked(node_of(record_of(a * 2), "AccumulateGrad"))


def test_a_failed_trace_names_fields_without_their_values(monkeypatch):
    """Half-way through a failed trace saved sizes may be symbols, so that no value is read."""

    def failing(*_):
        raise RuntimeError("no further")

    monkeypatch.setattr(compiled_autograd.AutogradCompilerInstance, "proxy_call_backward", failing)
    monkeypatch.setattr("cabw_viz.torch_adapter.check", lambda: None)  # of the signatures
    capture = capture_of(None, lambda: Twice.apply(leaf(4, 3)).pow(2.5).sum())
    record = capture.record
    assert record.failure is not None
    assert ("scalar", "2.5", "exponent") in baked(node_of(record, "PowBackward0"))


# -- against PyTorch's own numbers and names -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_dtypes_are_those_of_the_tensors(dtype):
    made = getattr(torch, dtype)
    record = record_of((leaf(3, dtype=made) * 2).real)
    assert ("dtype", f"torch.{dtype}") in [(c.attribute, c.value) for c in node_of(record, "MulBackward0").baked]


def test_the_numbers_of_dtypes_are_those_of_the_headers():
    header = Path(torch.__file__).parent / "include/torch/headeronly/core/ScalarType.h"
    text = header.read_text() if header.exists() else ""
    if "AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(_)" not in text:
        pytest.skip("this torch keeps its list of dtypes in another file")
    block = text.partition("AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(_)")[2].partition("\n\n")[0]
    names = {"Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Half": "float16"}
    names |= {"Float": "float32", "Double": "float64", "ComplexHalf": "complex32", "ComplexFloat": "complex64"}
    names |= {"ComplexDouble": "complex128"}
    found = [line.partition(", ")[2].partition(")")[0] for line in block.splitlines() if ", " in line]
    theirs = [names.get(name, name.lower()) for name in found]
    assert theirs[: len(DTYPES)] == list(DTYPES)[: len(theirs)]  # a number, once given, stays; newer ones are added


def test_every_known_name_is_one_of_torchs():
    absent = {"bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float4_e2m1fn_x2", "float8_e8m0fnu", "quint2x4"}
    absent |= {name for name in DTYPES if name.startswith(("int", "uint")) and name[-1] in "1234567" and len(name) < 6}
    for name in (*DTYPES, *LAYOUTS, *MEMORY_FORMATS):
        assert hasattr(torch, name) or name in absent


OPS = {
    "addmm": lambda: torch.addmm(leaf(2), leaf(3, 4), leaf(4, 2), beta=0.5, alpha=2),
    "mm": lambda: leaf(3, 4) @ leaf(4, 2),
    "mean": lambda: leaf(3, 4).mean(1),
    "var": lambda: leaf(3, 4).var(0, correction=1, keepdim=True),
    "norm": lambda: torch.linalg.vector_norm(leaf(3, 4), 3, dim=0),
    "layer_norm": lambda: torch.nn.functional.layer_norm(leaf(3, 4), (4,)),
    "group_norm": lambda: torch.nn.functional.group_norm(leaf(2, 4, 3), 2),
    "batch_norm": lambda: torch.nn.functional.batch_norm(leaf(3, 4), None, None, training=True),
    "conv": lambda: torch.nn.functional.conv2d(leaf(1, 2, 5, 5), leaf(4, 1, 3, 3), padding=1, groups=2),
    "max_pool": lambda: torch.nn.functional.max_pool2d(leaf(1, 2, 6, 6), 3, 1, 1),
    "interpolate": lambda: torch.nn.functional.interpolate(leaf(1, 2, 4, 4), scale_factor=1.5, mode="bilinear"),
    "embedding": lambda: torch.nn.functional.embedding(torch.tensor([1, 2]), leaf(5, 3), padding_idx=0),
    "cross_entropy": lambda: torch.nn.functional.cross_entropy(leaf(3, 4), torch.tensor([0, 1, 2])),
    "slice": lambda: leaf(5, 6)[1:4, ::2],
    "select": lambda: leaf(5, 6).select(1, 2),
    "split": lambda: leaf(5, 6).split(2, 1)[0],
    "cat": lambda: torch.cat([leaf(2, 3), leaf(2, 4)], 1),
    "gather": lambda: leaf(3, 4).gather(1, torch.tensor([[0], [1], [2]])),
    "index": lambda: leaf(3, 4)[torch.tensor([0, 2])],
    "scatter": lambda: torch.diagonal_scatter(leaf(3, 3), leaf(3)),
    "as_strided": lambda: leaf(12).as_strided((2, 3), (3, 1), 1),
    "cumsum": lambda: leaf(3, 4).cumsum(1),
    "clamp": lambda: leaf(3, 4).clamp(-0.5, 0.5),
    "leaky_relu": lambda: torch.nn.functional.leaky_relu(leaf(3), 0.2),
    "dropout": lambda: torch.nn.functional.dropout(leaf(3, 4), 0.3),
    "attention": lambda: torch.nn.functional.scaled_dot_product_attention(*[leaf(1, 2, 4, 8) for _ in range(3)]),
    "svd": lambda: torch.linalg.svd(leaf(4, 3), full_matrices=False)[1],
    "fft": lambda: torch.fft.rfft(leaf(8)).abs(),
    "repeat": lambda: leaf(3).repeat(2, 2),
    "roll": lambda: leaf(3, 4).roll((1, 2), (0, 1)),
    "flip": lambda: leaf(3, 4).flip(0),
    "prod": lambda: leaf(3, 4).prod(1),
    "topk": lambda: leaf(3, 4).topk(2)[0],
    "copy": lambda: torch.zeros(3).copy_(leaf(3)),
    "where": lambda: torch.where(torch.tensor([True, False]), leaf(2), leaf(2)),
    "lerp": lambda: torch.lerp(leaf(3), leaf(3), 0.3),
    "std_of_view": lambda: leaf(12).view(3, 4).permute(1, 0).std(0),
}


@pytest.fixture(scope="session")
def packed_order():
    """For each built-in node: its arguments behind `needs_input_grad`, as torchgen writes them into C++."""
    pytest.importorskip("yaml")
    derivatives = pytest.importorskip("torchgen.packaged.autograd.load_derivatives")
    packaged = Path(torchgen.__file__).parent / "packaged"
    native = packaged / "ATen/native"
    infos, _ = derivatives.load_derivatives(
        str(packaged / "autograd/derivatives.yaml"), str(native / "native_functions.yaml"), str(native / "tags.yaml")
    )
    found = {}
    for info in (info for by_key in infos.values() for info in by_key.values() if info.args_with_derivatives):
        counts = [f"{arg.name}_size_" for arg in info.args_with_derivatives if "List" in arg.type]
        by_name = [
            sorted(str(saved.nctype.name) for saved in side) for side in (info.all_saved_inputs, info.all_saved_outputs)
        ]
        found.setdefault(info.op, [*counts, *by_name[0], *by_name[1]])
    return found


@pytest.mark.parametrize("op", OPS)
def test_names_are_in_the_places_where_torchgen_packs_them(op, packed_order, monkeypatch):
    seen = []
    inner = MetadataReader._names

    def names(self, row, arguments):
        found = inner(self, row, arguments)
        seen.append((row.target.removeprefix("ops."), found))
        return found

    monkeypatch.setattr(MetadataReader, "_names", names)
    record_of(OPS[op]())
    assert seen
    for name, found in seen:
        order = packed_order.get(name)
        if order is not None:  # CopyBackwards is written by hand
            assert len(found) in (len(order), len(order) + 1)  # retain_variables
            assert all(given in (None, known) for given, known in zip(found, order, strict=False)), (found, order)


def test_fields_are_laid_along_arguments_in_order():
    def fits(given, value):
        return value is UNKNOWN or given == value

    def any_may_be_nameless(_):
        return True

    one_way = align(["t", 4, 6], [("dim", 4)], fits, any_may_be_nameless)
    assert one_way == [None, "dim", None]
    assert align([4, 4], [("dim", 4)], fits, any_may_be_nameless) == [None, None]
    assert align([4, 4], [("a", 4), ("b", 4)], fits, any_may_be_nameless) == ["a", "b"]
    assert align([4, 5], [("b", 5), ("a", 4)], fits, any_may_be_nameless) is None
    assert align([4, 5], [("a", UNKNOWN)], fits, lambda given: given != 5) == [None, "a"]


def test_forms_of_packed_values():
    options = (None, 2, torch.device("cpu"), 15, 0, True)
    assert [(p.attribute, p.value) for p in packed_fields(options)] == [
        ("device", "cpu"),
        ("dtype", "torch.bfloat16"),
        ("layout", "torch.strided"),
        ("memory_format", "torch.channels_last"),
        ("flag", "True"),
    ]
    for metadata in ((options, [2, 3], True), (options, [2, 3], True, 6)):  # to torch 2.9, and since 2.10
        found = [(p.attribute, p.value, p.name) for p in packed_fields(metadata)]
        assert ("size", [2, 3], "") in found
        assert ("flag", "True", "is_tensor_subclass") in found
        assert (("dtype", "torch.float32", "grad_dtype") in found) == (len(metadata) == 4)
    assert ("size", [2], "") in [(p.attribute, p.value, p.name) for p in packed_fields(([2], options))]
    variable = (0, torch.device("cpu"), 6, [2], True, False)
    assert ("dtype", "torch.float32") in [(p.attribute, p.value) for p in packed_fields(variable)]
    assert [p.attribute for p in packed_fields(([2], [1], 0))] == ["size", "stride", "storage_offset"]
    for other in ([2, 3], (1, 2), (), 6, None, ([1], [2]), (None, None, None, 1.5, None, None)):
        assert packed_fields(other) is None


# -- against PyTorch's cache ---------------------------------------------------------------------------------


def outcome_of(first, second, between=lambda: None):
    """What becomes of the second backward, and the record of the first."""
    with cabw_viz.capture() as session:
        first().sum().backward()
        between()
        second().sum().backward()
    return session.events.outcome.iloc[1], session[0].record


def linear(rows, bias=True, dtype=torch.float32):
    def run():
        model = torch.nn.Linear(4, 2, bias=bias, dtype=dtype)
        return model(torch.randn(rows, 4, dtype=dtype)).relu()

    return run


def needs(first, second):
    def run():
        a, b = torch.randn(3), torch.randn(3)
        return a.requires_grad_(first) * b.requires_grad_(second)

    return run


HITS = {
    "a batch of 5": (linear(3), linear(5)),
    "a batch of 1": (linear(3), linear(1)),
    "an empty batch": (linear(3), linear(0)),
    "strides": (lambda: leaf(3, 4) @ leaf(4, 2), lambda: leaf(3, 4) @ torch.randn(2, 4).t().requires_grad_()),
    "ignore_index": (
        lambda: torch.nn.functional.nll_loss(leaf(3, 4), torch.tensor([0, 1, 2])),
        lambda: torch.nn.functional.nll_loss(leaf(3, 4), torch.tensor([0, 1, 2]), ignore_index=1),
    ),
    "an index": (lambda: leaf(3, 4).select(0, 1), lambda: leaf(3, 4).select(0, 2)),
    "padding": (
        lambda: torch.nn.functional.conv1d(leaf(1, 2, 8), leaf(3, 2, 3), padding=1),
        lambda: torch.nn.functional.conv1d(leaf(1, 2, 8), leaf(3, 2, 3), padding=2),
    ),
    "the view that is written to": (write_to_a_view, lambda: write_to_column(2)),
}
"""Changes that symbolic inputs take up."""


def write_to_column(column):
    b = leaf(4, 3) * 2
    b[:, column].mul_(3)
    return b


@pytest.mark.parametrize("change", HITS)
def test_a_change_of_what_is_lifted_hits_the_cache(change):
    outcome, record = outcome_of(*HITS[change])
    assert outcome == "cache_hit"
    assert {use.size for node in record.autograd_nodes for use in node.lifted} == set(range(len(record.sizes)))
    assert not any(b.attribute in ("size", "stride", "storage_offset") for n in record.autograd_nodes for b in n.baked)


CAPTURES = {
    "exponent": (lambda: leaf(3) ** 2, lambda: leaf(3) ** 3, "exponent = 2"),
    "dim": (lambda: leaf(3, 3).softmax(0), lambda: leaf(3, 3).softmax(1), "dim = 0"),
    "alpha": (lambda: leaf(3).add(leaf(3), alpha=2), lambda: leaf(3).add(leaf(3), alpha=3), "alpha = 2"),
    "flag": (
        lambda: torch.nn.functional.gelu(leaf(3), approximate="tanh"),
        lambda: torch.nn.functional.gelu(leaf(3)),
        "approximate = tanh",
    ),
    "dtype": (linear(3), linear(3, dtype=torch.float64), "torch.float32"),
    "dimensions": (lambda: leaf(3).sin(), lambda: leaf(3, 1).sin(), ""),
    "requires_grad": (needs(first=True, second=True), needs(first=True, second=False), ""),
}
"""Changes of what is baked, and what the record says of it."""


@pytest.mark.parametrize("change", CAPTURES)
def test_a_change_of_what_is_baked_is_captured_again(change):
    first, second, what = CAPTURES[change]
    outcome, record = outcome_of(first, second)
    assert outcome == "captured"
    assert any(what in baked_text(node) for node in record.autograd_nodes)


def test_a_hook_and_a_gradient_that_is_there_already():
    a = leaf(3)
    outcome, _ = outcome_of(lambda: a * 2, lambda: a * 2)  # .grad is there the second time
    assert outcome == "captured"

    def hooked():
        b = leaf(3) * 2
        b.register_hook(lambda g: g)
        return b

    outcome, _ = outcome_of(lambda: leaf(3) * 2, hooked)
    assert outcome == "captured"


def test_a_static_trace_is_made_again_for_another_size_which_is_then_lifted():
    """dynamic=False: what has changed once is symbolic from then on."""
    model = torch.nn.Linear(4, 2, bias=False)
    with cabw_viz.capture() as session, compiled_autograd._enable(lambda graph: graph, dynamic=False):
        for rows in (3, 5, 7):
            model.zero_grad()
            model(torch.randn(rows, 4)).sum().backward()
    assert list(session.events.outcome) == ["captured", "captured", "cache_hit"]
    first, second = (capture.record for capture in session)
    assert "self_sym_sizes = [3, 2]" in baked_text(node_of(first, "SumBackward0"))
    assert "self_sym_sizes[0] = 5 (" in lifted_text(node_of(second, "SumBackward0"))
    assert "self_sym_sizes[1] = 2" in baked_text(node_of(second, "SumBackward0"))


# -- in words ------------------------------------------------------------------------------------------------


def test_in_words():
    node = AutogradNode(
        4,
        "PowBackward0",
        "builtin",
        1,
        1,
        lifted=(LiftedUse(0, "gradient 0, dimension 0", 3), LiftedUse(3, "gradient 0, dimension 1", 8)),
        baked=(Baked("scalar", "2.0", "exponent"),),
    )
    assert lifted_text(node) == "gradient 0 = [3, 8] (sizes[0], sizes[3])"
    assert baked_text(node) == "exponent = 2.0"


def test_ranges():
    assert ranges([]) == ""
    assert ranges([3, 0]) == "sizes[0], sizes[3]"
    assert ranges([0, 1, 2, 5, 6, 9]) == "sizes[0] to sizes[2], sizes[5], sizes[6], sizes[9]"


# -- the workloads -------------------------------------------------------------------------------------------


@on_the_version_read
@pytest.mark.parametrize("name", corpus.NAMES)
def test_every_symbolic_input_is_used_by_the_node_that_lifted_it(name):
    records_seen = []

    @contextlib.contextmanager
    def around(params):
        with cabw_viz.capture(params) as session:
            yield
        records_seen.extend(capture.record for capture in session)

    observe(name, around=around, steps=1)
    for record in records_seen:
        if record.failure is not None and not record.leaves:
            continue
        uses = [(use.size, node.number) for node in record.autograd_nodes for use in node.lifted]
        for index, number in uses:
            assert record.sizes[index].autograd_node in (number, None)
        if record.failure is None:
            assert {index for index, _ in uses} == set(range(len(record.sizes)))
            for node in record.autograd_nodes:
                kinds = {record.graph_nodes[ordinal].kind for ordinal in node.graph_nodes}
                assert ("validate_outputs" not in kinds) or {"device", "dtype", "layout"} <= {
                    constant.attribute for constant in node.baked
                }
