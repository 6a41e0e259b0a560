"""What each autograd node holds: saved tensors, gradients, bytes; and that looking holds nothing itself."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo import compiled_autograd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import cabw_viz
from cabw_viz import torch_adapter
from cabw_viz.analysis.memory import ModuleBytes, held_by_module, saved_bytes, stored
from cabw_viz.record.model import AutogradNode, CaptureRecord, GradientSpec, SavedTensor
from cabw_viz.tracing import saved_tensors
from cabw_viz.tracing.extract import autograd_nodes
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_numbering import number_nodes
from tests import records
from tests.captures import capture_of, data, model
from tests.definitions import MODELS

pytestmark = pytest.mark.skipif(
    not torch_adapter.DETECTS_PACKED, reason="this torch does not tell which saved tensors are packed, so none are read"
)


def saved(record, name):
    """Saved tensors of the first node of a name, by field."""
    node = next(node for node in record.autograd_nodes if node.name == name)
    return {tensor.field: tensor for tensor in node.saved}


def bytes_of(record):
    """Bytes of all storages that saved tensors lie in, each counted once."""
    return sum({storage: size for node in record.autograd_nodes for storage, size, _ in stored(node)}.values())


def number(record, name):
    return next(node.number for node in record.autograd_nodes if node.name == name)


# -------------------------------------------------------------------------------------------------- saved tensors


def test_what_a_linear_layer_and_a_tanh_save():
    net = model()
    record = capture_of(net, lambda: net(data()).sum()).record
    addmm, tanh = saved(record, "AddmmBackward0"), saved(record, "TanhBackward0")
    t = number(record, "TBackward0")
    assert addmm.keys() == {"mat1", "mat2"}
    weight = addmm["mat2"]
    assert (weight.shape, weight.dtype, weight.device, weight.bytes) == ((8, 2), "torch.float32", "cpu", 64)
    assert (weight.names, weight.view_of, weight.made_by) == ((), ("2.weight",), t)
    activation = addmm["mat1"]
    assert (activation.shape, activation.made_by) == ((3, 8), number(record, "TanhBackward0"))
    # Tanh saves its own result: the same memory, and the graph's input is another tensor.
    assert (tanh["result"].storage, tanh["result"].made_by) == (activation.storage, activation.made_by)
    assert record.inputs[tanh["result"].input].shape == record.inputs[activation.input].shape == (3, 8)


def test_parameters_buffers_and_leaves_are_named():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.ones(4))
            self.register_buffer("scale", torch.full((4,), 2.0))
            self.tied = self.a

        def forward(self, x):
            return (x * self.a * self.scale).exp()

    net, x = Net(), data().requires_grad_()
    record = capture_of(net, lambda: net(x).sum()).record
    fields = [
        {tensor.field: tensor.names for tensor in node.saved}
        for node in record.autograd_nodes
        if node.name == "MulBackward0"
    ]
    assert fields == [{"other": ("scale",)}, {"other": ("a", "tied"), "self": ("leaf_0 (3, 4)",)}]


def test_a_part_of_a_parameter_is_told_as_such():
    w = torch.ones(3, 4, requires_grad=True)
    record = capture_of({"w": w}, lambda: torch.sum(w[1].exp() * w.detach()[2])).record
    mul = saved(record, "MulBackward0")
    assert (mul["other"].names, mul["other"].view_of, mul["other"].made_by) == ((), ("w",), None)
    assert (mul["other"].bytes, mul["other"].storage_bytes) == (16, 48)


def test_every_saved_tensor_that_the_graph_lifts_is_the_right_one():
    net = model()
    with cabw_viz.capture(net) as session:
        loss = net(data()).square().mean()
        real = {
            (place, field.removeprefix("_saved_")): getattr(node, field)
            for place, node in enumerate(number_nodes([loss]).nodes)
            for field in dir(node)
            if field.startswith("_saved_")
        }
        loss.backward()
    inputs = session[0]._captured.state.arguments.inputs
    rows = [(node.number, tensor) for node in session[0].record.autograd_nodes for tensor in node.saved]
    assert len(rows) == 5
    for place, tensor in rows:
        expected, lifted = real[place, tensor.field], inputs[tensor.input]
        assert torch.equal(lifted, expected)
        assert lifted.untyped_storage().data_ptr() == expected.untyped_storage().data_ptr()
        assert lifted.shape == tensor.shape


@pytest.mark.parametrize("name", MODELS)
def test_saved_tensors_of_whole_models(name):
    """Against hooks: they see every tensor that is saved, and count their storages."""
    model, run = MODELS[name]()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        loss = run()
    record = capture_of(model, run).record
    rows = [tensor for node in record.autograd_nodes for tensor in node.saved]
    scalars = [row for row in rows if row.shape == () and row.dtype == "torch.float64"]  # `x * 2`: no hook is asked
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    assert len(rows) == len(kept) + len(scalars)
    assert bytes_of(record) == sum(storages.values()) + sum(row.bytes for row in scalars)
    assert not any(row.packed for row in rows)
    assert loss.grad_fn is not None  # it keeps the storages apart until here
    lifted = [tensor for tensor in rows if tensor.input is not None]
    assert len(lifted) >= 0.95 * len(rows)  # some are saved, and needed for no gradient
    for tensor in lifted:
        row = record.inputs[tensor.input]
        assert (row.shape, row.dtype, row.device) == (tensor.shape, tensor.dtype, tensor.device)
        assert not tensor.names or set(tensor.names) == set(row.names)


@pytest.mark.parametrize("options", [{"snapshot": True}, {"run": "compiled"}, {"tripwire": False}], ids=str)
def test_however_it_is_captured_the_same_is_held(options):
    def run(**options):
        net = model()
        record = capture_of(net, lambda: net(data()).square().sum(), **options).record
        return [(node.saved, node.gradients_in, node.gradients_out, node.module) for node in record.autograd_nodes]

    assert run(**options) == run()


def test_under_the_users_compiler_the_same_is_held():
    def run(block):
        net = model()
        with block, cabw_viz.capture(net) as session:
            net(data()).square().sum().backward()
        return [(node.saved, node.module, node.line) for node in session[0].record.autograd_nodes]

    torch._dynamo.reset()
    plain, ours = (run(block) for block in (torch.enable_grad(), compiled_autograd._enable(lambda graph: graph)))
    assert ours == plain


def test_a_function_and_what_it_stashes():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, none):
            ctx.save_for_backward(x, none)
            ctx.factor, ctx.mask = 2, x > 0
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None

    w = torch.ones(3, 4, requires_grad=True)
    record = capture_of({"w": w}, lambda: Scale.apply(w, None).sum()).record
    found = saved(record, "ScaleBackward")
    assert found.keys() == {"saved_tensors[0]", "mask"}
    assert found["saved_tensors[0]"].names == ("w",)
    assert (found["mask"].dtype, found["mask"].bytes, found["mask"].input) == ("torch.bool", 12, None)


# ----------------------------------------------------------------------------------------------- looking is harmless


def test_hooks_are_not_called_and_packed_tensors_stay_packed():
    calls = Counter()

    def pack(tensor):
        calls["pack"] += 1
        return tensor.numpy(force=True)

    def unpack(array):
        calls["unpack"] += 1
        return torch.from_numpy(array)

    net = model()
    with cabw_viz.capture(net) as session:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = net(data()).sum()
        before = calls.copy()
        loss.backward()
    record = session[0].record
    assert calls == before + Counter(unpack=4)  # the user's own backward
    rows = [tensor for node in record.autograd_nodes for tensor in node.saved]
    assert len(rows) == 4
    assert {(tensor.packed, tensor.shape, tensor.bytes, tensor.storage, tensor.input) for tensor in rows} == {
        (True, (), 0, None, None)
    }
    assert {row.module: row.packed for row in held_by_module(record)} == {"0": 1, "1": 1, "2": 2}


def test_checkpointed_tensors_are_packed():
    net = model()
    record = capture_of(net, lambda: checkpoint(net, data(), use_reentrant=False).sum()).record
    assert {tensor.packed for node in record.autograd_nodes for tensor in node.saved} == {True}


def test_freed_nodes_hold_nothing():
    w = torch.ones(3, requires_grad=True)
    with cabw_viz.capture({"w": w}) as session:
        hidden = w.exp()
        hidden.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            hidden.sum().backward()
    held = [saved(capture.record, "ExpBackward0").keys() for capture in session]
    assert held == [{"result"}, set()]


def test_what_was_changed_in_place_is_still_told():
    w = torch.ones(3, requires_grad=True)
    with cabw_viz.capture({"w": w}) as session:
        hidden = w.exp()
        loss = hidden.sum()
        with torch.no_grad():
            hidden.add_(1)
        with pytest.raises(RuntimeError, match="inplace"):
            loss.backward()
    (result,) = saved(session[0].record, "ExpBackward0").values()
    assert (result.shape, result.made_by) == ((3,), None)


def test_subclasses_and_modes_of_the_user_are_not_asked():
    calls = []

    class Mine(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    def run():
        w = torch.ones(3).as_subclass(Mine).requires_grad_()
        loss = (w.exp() * w).sum()
        nodes = number_nodes([loss])
        names, described = Names({"w": w}), autograd_nodes(nodes)
        names.refresh()
        calls.clear()
        with Watching():
            _, found = saved_tensors.read(described, nodes, names)
        assert sum(len(node.saved) for node in found) == 3
        return list(calls)

    assert run() == []


def test_looking_keeps_nothing_alive():
    alive = []
    net = model()
    with cabw_viz.capture(net, only=slice(0, 2), gradients="none") as session:
        for _ in range(3):
            hidden = net[1](net[0](data()))
            alive.append(weakref.ref(hidden))
            loss = net[2](hidden).sum()
            del hidden
            loss.backward()
            del loss
        gc.collect()
        assert [ref() is None for ref in alive] == [False, False, True]  # captures keep their inputs
    session.close()
    gc.collect()
    assert [ref() for ref in alive] == [None, None, None]
    assert bytes_of(session[0].record) > 0


# ------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", ["gpt2", "resnet", "lstm"])
def test_gradients_are_those_of_the_real_run(name):
    model, run = MODELS[name]()
    entering, leaving = {}, {}

    def specs(gradients):
        return tuple(None if g is None else GradientSpec(tuple(g.shape), str(g.dtype)) for g in gradients)

    with cabw_viz.capture(model) as session:
        loss = run()
        handles = []
        for place, node in enumerate(number_nodes([loss]).nodes):
            if node is not None:
                handles.append(node.register_prehook(lambda g, place=place: entering.__setitem__(place, specs(g))))
                handles.append(node.register_hook(lambda out, _, place=place: leaving.__setitem__(place, specs(out))))
        loss.backward()
    record = session[0].record
    assert len(entering) == len(record.autograd_nodes) - 1
    for node in record.autograd_nodes[1:]:
        for specs_of_node, gradients in ((entering, node.gradients_in), (leaving, node.gradients_out)):
            if node.kind != "accumulate_grad" or specs_of_node is entering:
                pairs = list(zip(specs_of_node[node.number], gradients, strict=True))
                # Either side may lack one: a gradient that is zero, or that is computed and goes nowhere.
                assert all(one is None or other is None or one == other for one, other in pairs)
                assert specs_of_node is leaving or None not in gradients


def test_gradients_that_go_nowhere_and_inputs_of_any_dtype():
    w = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    record = capture_of({"w": w}, lambda: torch.sum(w.to(torch.float32) * torch.ones(3))).record
    mul = record.by_number[number(record, "MulBackward0")]
    copy = record.by_number[number(record, "ToCopyBackward0")]
    assert mul.gradients_in == (GradientSpec((2, 3), "torch.float32"),)
    assert mul.gradients_out == (GradientSpec((2, 3), "torch.float32"), None)
    assert copy.gradients_out == (GradientSpec((2, 3), "torch.float64"),)
    assert record.autograd_nodes[0].gradients_out == (GradientSpec((), "torch.float32"),)


# --------------------------------------------------------------------------------------------------- compiled forwards


def test_a_compiled_region_and_what_it_saves():
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager")
    def region(x, w):
        return (x @ w).sin()

    v, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    record = capture_of({"v": v, "w": w}, lambda: region(region(data(), v), w).sum()).record
    torch._dynamo.reset()
    regions = [node for node in record.autograd_nodes if node.kind == "aot_backward"]
    assert [node.aot_graph for node in regions] == [0, 1]  # two: in the first call, the data need no gradient
    assert {node.aot_graph for node in record.autograd_nodes if node.kind != "aot_backward"} == {None}
    for node in regions:
        assert all(tensor.aot_node for tensor in node.saved)
        pasted = [record.graph_nodes[ordinal].name for ordinal in node.graph_nodes]
        assert all(name.startswith(f"aot{node.aot_graph}_") for name in pasted if name.startswith("aot"))
        for tensor in node.saved:
            assert f"aot{node.aot_graph}_{tensor.aot_node}" in pasted
            assert record.inputs[tensor.input].shape == tensor.shape
    ops = [record.graph_nodes[ordinal] for ordinal in regions[0].graph_nodes]
    assert {op.aot_node for op in ops if op.target == "aten.mm.default"} == {"mm_1", "mm_2"}
    assert [tensor.aot_node for tensor in regions[0].saved if tensor.view_of == ("w",)] == ["t_1"]


def test_the_same_region_called_twice_is_one_graph():
    torch._dynamo.reset()
    region = torch.compile(lambda x: x.sin(), backend="aot_eager")
    w = torch.randn(3, requires_grad=True)
    record = capture_of({"w": w}, lambda: region(region(w)).sum()).record
    torch._dynamo.reset()
    assert [node.aot_graph for node in record.autograd_nodes if node.kind == "aot_backward"] == [0, 0]


# ----------------------------------------------------------------------------------------------------------- bytes


def record_with_saved(*nodes):
    """A record of nodes with these modules and saved tensors."""
    rows = [
        AutogradNode(place, f"N{place}", "builtin", 1, 1, module=module, module_class="M", saved=tuple(tensors))
        for place, (module, tensors) in enumerate(nodes)
    ]
    return CaptureRecord(records.CALL, "2.13.0", "eager", tuple(rows))


def part(field, storage, size, **more):
    return SavedTensor(field, (size // 4,), "torch.float32", "cpu", size, storage, 100, **more)


def test_storages_are_counted_once_and_shared_ones_are_said():
    record = record_with_saved(
        ("a.x", [part("self", 0, 40), part("other", 0, 20)]),
        ("a.y", [part("self", 1, 40, view_of=("w",)), SavedTensor("mask", packed=True)]),
        (
            "b",
            [
                part("self", 1, 40, names=("w",)),
                part("result", 2, 40),
                SavedTensor("odd", (2,), "torch.int64", "cpu", 16),
            ],
        ),
        ("", []),
    )
    assert held_by_module(record) == (
        ModuleBytes("b", 216, 100, ("a.y",), 100, 0),
        ModuleBytes("a.x", 100, 0, (), 0, 0),
        ModuleBytes("a.y", 100, 100, ("b",), 100, 1),
    )
    assert held_by_module(record, depth=1) == (
        ModuleBytes("b", 216, 100, ("a",), 100, 0),
        ModuleBytes("a", 200, 100, ("b",), 100, 1),
    )
    assert bytes_of(record) == 316
    assert [saved_bytes(node) for node in record.autograd_nodes] == [100, 100, 216, 0]


def test_the_table_of_what_is_held():
    net = model()
    with cabw_viz.capture(net) as session:
        net(data()).sum().backward()
    frame = session[0].memory()
    assert list(frame.columns) == ["module", "bytes", "shared", "shared_with", "named", "packed"]
    rows = {row.module: (row.bytes, row.shared, row.shared_with, row.named) for row in frame.itertuples()}
    assert rows == {
        "2": (160, 96, ("1",), 64),  # the activation, which Tanh keeps too, and the weight
        "1": (96, 96, ("2",), 0),
        "0": (48, 0, (), 0),  # the data; of its weight it needs nothing, for the data need no gradient
    }
    assert session[0].nodes.saved_bytes.sum() == 160 + 96 + 48
    assert session[0].nodes.module.tolist()[1:3] == [None, "2"]


def test_expanded_sparse_and_meta_tensors():
    w = torch.ones(1, 3, requires_grad=True)
    record = capture_of({"w": w}, lambda: torch.sum(w.exp().expand(1000, 3) * torch.ones(1000, 3))).record
    assert saved(record, "ExpBackward0")["result"].storage_bytes == 12
    indices = torch.tensor([[0, 1], [1, 0]])
    sparse = torch.sparse_coo_tensor(indices, torch.ones(2), (2, 2)).coalesce()
    v = torch.ones(2, 2, requires_grad=True)
    record = capture_of({"v": v}, lambda: torch.sparse.mm(sparse, v).sum()).record
    matrix = next(tensor for node in record.autograd_nodes for tensor in node.saved if tensor.shape == (2, 2))
    assert matrix.storage_bytes == 2 * 4 + 4 * 8
