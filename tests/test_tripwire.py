"""Reads of metadata during the initial trace: all of them are found, none is made up, and no program notices."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import weakref
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch._dynamo import compiled_autograd

import cabw_viz
from cabw_viz.record.model import Touch
from cabw_viz.tracing.tripwire import Tripwire
from tests.captures import Twice
from tests.planted import OPS, READS, TRACER, line_of, planted, tanh_twice
from tests.test_corpus import identity, on_the_version_read
from tests.versions import read_on

RUNS = ("eager", "compiled")


@pytest.fixture
def reads_not_noted(monkeypatch):
    """The mutation: fakes are watched, but no read is noted."""
    monkeypatch.setattr(Tripwire, "note", lambda self, attribute, fake: None)


def records_of(step, run="eager", params=None, **options):
    """The records of the backwards that a function makes; whatever it raises is left out."""
    with cabw_viz.capture(params, run=run, **options) as session, contextlib.suppress(Exception):
        step()
    return [capture.record for capture in session]


def node(record, name, nth=0):
    """The number of an autograd node."""
    return [node.number for node in record.autograd_nodes if node.name == name][nth]


def output(record, name, nth=0):
    """The ordinal of the graph node that stands for the first gradient that an autograd node makes."""
    number = node(record, name, nth)
    calls = [n for n in record.graph_nodes if n.autograd_node == number and n.kind == "backward_call"]
    return calls[0].users[0]


# ----------------------------------------------------------------------------------------------- clean and dirty traces


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)), torch.randn(3, 4)


def convolution_net():
    layers = [torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(12, 2)), torch.randn(2, 2, 6, 6)


def transformer_layer():
    return torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8)


MODELS = [mlp, convolution_net, transformer_layer]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("model", MODELS)
def test_the_trace_of_a_plain_model_reads_nothing(model, run):
    net, batch = model()
    for step in (lambda: net(batch).square().mean().backward(), lambda: net(batch).abs().sum().backward()):
        (record,) = records_of(step, run, net)  # the second time there is a `.grad`
        assert record.failure is None
        assert record.touches == ()


CLONED = Counter({"size": 2, "stride": 2, "storage_offset": 2, "aten.as_strided.default": 2, "aten.clone.default": 1})
"""What the tracer does to a tensor that it hands to a hook: `clone_preserve_strides`."""


def tensor_hook(net, out):
    out.register_hook(lambda g: g * 1.0)


def leaf_hook(net, out):
    net[0].weight.register_hook(lambda g: g * 1.0)


def retain_grad(net, out):
    out.retain_grad()


def pre_hook(net, out):
    out.grad_fn.register_prehook(lambda gs: gs)


def post_hook(net, out):
    out.grad_fn.register_hook(lambda gs, outs: gs)


def post_acc_grad_hook(net, out):
    net[0].weight.register_post_accumulate_grad_hook(lambda p: None)


HOOKS = {
    tensor_hook: ("AddmmBackward0", 0),  # the last layer's: the first node below the loss
    retain_grad: ("AddmmBackward0", 0),
    pre_hook: ("AddmmBackward0", 0),
    post_hook: ("AddmmBackward0", 0),
    leaf_hook: ("AccumulateGrad", None),
    post_acc_grad_hook: ("AccumulateGrad", None),
}


def hooked(register, run="eager"):
    net, batch = mlp()

    def step():
        out = net(batch)
        register(net, out)
        out.square().mean().backward()

    (record,) = records_of(step, run, net)
    return record


def check_hooked(record):
    """Each tensor that goes into the hook is cloned once, at the node that has the hook, and nothing else is read."""
    (hook,) = [n for n in record.graph_nodes if n.kind == "hook"]
    handed = [ordinal for ordinal in hook.inputs if record.graph_nodes[ordinal].kind != "lifted_object"]
    if "post_hook" in hook.arguments:  # it gets what its node made and what that was given; only the first is cloned
        handed = [
            n for n in handed if record.graph_nodes[n].inputs[0] in record.by_number[hook.autograd_node].graph_nodes
        ]
    assert handed
    read = {n: Counter() for n in handed}
    for touch in record.touches:
        read[touch.node][touch.attribute] += touch.count
    assert read == dict.fromkeys(handed, CLONED)
    assert {touch.phase for touch in record.touches} == {"initial_trace"}
    assert {touch.autograd_node for touch in record.touches} == {hook.autograd_node}
    assert {touch.by for touch in record.touches} == {"tracer"}
    lines, first = inspect.getsourcelines(torch._prims_common.clone_preserve_strides)
    within = {f"torch/_prims_common/__init__.py:{line}" for line in range(first, first + len(lines))}
    assert {touch.where for touch in record.touches} <= within


@on_the_version_read
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("register", HOOKS)
def test_the_clone_that_the_tracer_makes_for_a_hook_is_found(register, run):
    record = hooked(register, run)
    check_hooked(record)
    name, nth = HOOKS[register]
    (at,) = {touch.autograd_node for touch in record.touches}
    assert record.by_number[at].name == name
    if nth is not None:
        assert at == node(record, name, nth)
    if nth is None:
        assert record.label(record.by_number[at]) == "AccumulateGrad 0.weight"


@pytest.mark.parametrize("register", HOOKS)
def test_with_the_watching_off_the_check_of_hooks_fails(register, reads_not_noted):
    with pytest.raises(AssertionError):
        check_hooked(hooked(register))


def test_a_post_hook_reads_all_that_its_node_made():
    record = hooked(post_hook)
    made = {touch.node for touch in record.touches}
    assert len(made) == record.by_number[node(record, "AddmmBackward0")].outputs
    assert {record.graph_nodes[ordinal].kind for ordinal in made} == {"getitem"}


def test_a_post_accumulate_hook_reads_the_leaf():
    record = hooked(post_acc_grad_hook)
    (read,) = {touch.node for touch in record.touches}
    assert record.graph_nodes[read].kind == "lifted_input"
    assert [i.names for i in record.inputs if i.graph_node == read] == [("0.weight",)]


def test_packed_saved_tensors_and_hooks_that_do_not_run_here_read_nothing():
    w = torch.randn(3, requires_grad=True)

    def step():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            (w * w.exp()).sum().backward()

    (record,) = records_of(step)
    assert any(n.kind == "unpack_hook" for n in record.graph_nodes)
    assert record.touches == ()


# ------------------------------------------------------------------------------------------------------- planted reads


def with_planted(action, run="eager", **options):
    with planted(action, **options):
        (record,) = records_of(tanh_twice, run)
    return record


def check_planted(record, action, expected, at="TanhBackward0"):
    """What was planted, at its node and its line, in order, and nothing else."""
    found = [Touch("initial_trace", a, node(record, at), None, "user", line_of(action), n) for a, n in expected.items()]
    assert [replace(touch, node=None) for touch in record.touches] == found
    if record.failure is None:
        assert {touch.node for touch in record.touches} <= {output(record, at)}
    else:
        names = {record.graph_nodes[touch.node].name for touch in record.touches}
        assert all(name.startswith("getitem") for name in names)
        assert len(names) == 1


PLANTED = READS | OPS


@on_the_version_read
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_read_is_found(name, run):
    action, expected = PLANTED[name]
    check_planted(with_planted(action, run), action, expected)


@on_the_version_read
@pytest.mark.parametrize("name", OPS)
def test_so_it_is_where_the_tracer_records_no_ops(name):
    action, expected = OPS[name]
    check_planted(with_planted(action, proxies=False), action, expected)


@pytest.mark.parametrize("name", [name for name, (_, expected) in PLANTED.items() if expected])
def test_with_the_watching_off_the_check_of_planted_reads_fails(name, reads_not_noted):
    action, expected = PLANTED[name]
    with pytest.raises(AssertionError):
        check_planted(with_planted(action), action, expected)


def test_no_two_reads_are_mixed_up(monkeypatch):
    """Three callbacks that hand out tensors, at every node: each read is noted at the node that it was made for."""
    handed = []

    def counting(made):
        handed.extend(tensor.dim() for tensor in (made if isinstance(made, (list, tuple)) else [made]))
        return made

    inner = {name: getattr(TRACER, name) for name in ("apply_functional", "validate_outputs", "accumulate")}

    def apply_functional(self, fn_name, grads, args, output_metadata):
        return counting(inner["apply_functional"](self, fn_name, grads, args, output_metadata))

    def validate_outputs(self, _, outputs, args, output_metadata):
        return counting(inner["validate_outputs"](self, _, outputs, args, output_metadata))

    def accumulate(self, old_var, new_var):
        return counting(inner["accumulate"](self, old_var, new_var))

    for callback in (apply_functional, validate_outputs, accumulate):
        monkeypatch.setattr(TRACER, callback.__name__, callback)
    net, batch = mlp()
    out = net(batch)
    (record,) = records_of(lambda: (out * out).sum().backward(), params=net)
    assert sum(touch.count for touch in record.touches) == len(handed)
    assert {touch.attribute for touch in record.touches} == {"dim"}
    there = [touch for touch in record.touches if touch.node is not None]  # a value without users is not in the graph
    # A sum of gradients belongs to the node that brings the last summand.
    assert all(record.graph_nodes[touch.node].autograd_node == touch.autograd_node for touch in there)
    assert {record.graph_nodes[touch.node].kind for touch in there} == {"getitem", "gradient_sum"}
    assert len({touch.autograd_node for touch in there}) > 4


def custom_function(x):
    return Twice.apply(x).sum()


def compiled_region(x):
    return torch.compile(lambda x: (x * 2).sin(), backend="aot_eager")(x).sum()


@read_on("2.13")
@pytest.mark.parametrize(
    ("forward", "name"), [(custom_function, "TwiceBackward"), (compiled_region, "CompiledFunctionBackward")]
)
def test_what_a_function_of_python_hands_on_is_watched(monkeypatch, forward, name):
    inner = TRACER.proxy_call_backward

    def proxy_call_backward(  # noqa: PLR0917 (as PyTorch's)
        self,
        inputs,
        output_metadatas,
        saved_tensors,
        backward_idx,
        ctx,
        maybe_backward_state_idx,
        opaque_object_indices,
    ):
        made = inner(
            self,
            inputs,
            output_metadatas,
            saved_tensors,
            backward_idx,
            ctx,
            maybe_backward_state_idx,
            opaque_object_indices,
        )
        made[0].stride()
        return made

    monkeypatch.setattr(TRACER, "proxy_call_backward", proxy_call_backward)
    torch._dynamo.reset()
    x = torch.randn(3, requires_grad=True)
    (record,) = records_of(lambda: forward(x).backward())
    (touch,) = record.touches
    assert (touch.attribute, touch.by, touch.count) == ("stride", "user", 1)
    assert touch.autograd_node == node(record, name)
    assert record.graph_nodes[touch.node].autograd_node == node(record, name)


def test_a_lifted_leaf_is_watched():
    action = READS["several"][0]
    with planted(action, "leaf"):
        (record,) = records_of(tanh_twice)
    assert [(t.attribute, t.count) for t in record.touches] == [("size", 2), ("dtype", 1), ("device", 1)]
    assert {t.autograd_node for t in record.touches} == {node(record, "TanhBackward0")}
    (read,) = {t.node for t in record.touches}
    assert [i.graph_node for i in record.inputs if i.names and i.shape == (3, 4)] == [read]


@pytest.mark.parametrize("which", ["variable", "grad"])
def test_what_is_compared_when_a_grad_is_set_does_not_count(monkeypatch, which):
    inner = TRACER.accumulate_grad

    def accumulate_grad(self, variable, variable_grad, grad, has_post_hooks=None):
        result = inner(self, variable, variable_grad, grad, has_post_hooks)
        {"variable": variable, "grad": variable.grad}[which].numel()
        return result

    monkeypatch.setattr(TRACER, "accumulate_grad", accumulate_grad)
    (record,) = records_of(tanh_twice)
    monkeypatch.undo()
    assert record.touches == ()


@read_on("2.13")
def test_a_leaf_has_its_gradient_as_without_the_tripwire(monkeypatch):
    inner, same = TRACER.accumulate_grad, []

    def accumulate_grad(self, variable, variable_grad, grad, has_post_hooks=None):
        same.append((variable_grad is not None, variable.grad is variable_grad))
        return inner(self, variable, variable_grad, grad, has_post_hooks)

    monkeypatch.setattr(TRACER, "accumulate_grad", accumulate_grad)
    w = torch.randn(3, requires_grad=True)
    records_of(lambda: [(w * w).sum().backward() for _ in range(2)])
    assert same == [(False, True), (True, True)]


def test_reads_are_counted_by_line_and_in_order_of_the_first():
    def several(d):
        for _ in range(3):
            d.numel()
            d.dim()
        d.numel()

    record = with_planted(several)
    found = [(touch.attribute, touch.count) for touch in record.touches]
    first = several.__code__.co_firstlineno
    lines = [int(touch.where.rpartition(":")[2]) - first for touch in record.touches]
    assert found == [("numel", 3), ("dim", 3), ("numel", 1)]
    assert lines == [2, 3, 4]


def test_what_is_read_of_the_result_of_an_op_has_that_ops_node():
    def use(d):
        e = d * 2
        e.numel()
        d.add_(e)
        d.dim()

    record = with_planted(use)
    found = {touch.attribute: touch.node for touch in record.touches}
    assert record.graph_nodes[found["aten.mul.Tensor"]].target == "getitem"
    assert record.graph_nodes[found["numel"]].target == "aten.mul.Tensor"
    assert record.graph_nodes[found["dim"]].target == "aten.add_.Tensor"
    assert {touch.by for touch in record.touches} == {"user"}


def test_reads_of_what_is_gone_from_the_graph_have_no_node_and_are_counted_together():
    def use(d):
        return [(d * scale).numel() for scale in (2, 3)]

    record = with_planted(use)
    assert [(t.attribute, t.node, t.count) for t in record.touches] == [
        ("aten.mul.Tensor", output(record, "TanhBackward0"), 2),
        ("numel", None, 2),
    ]


def test_a_read_in_code_of_pytorchs_on_the_users_behalf_is_the_users():
    def use(d):
        return torch._prims_common.suggest_memory_format(d)

    record = with_planted(use)
    assert record.touches
    assert {(t.by, t.where) for t in record.touches} == {("user", f"{__file__}:{use.__code__.co_firstlineno + 1}")}


def test_a_read_by_c_alone_is_a_kernels():
    """A user's tracer class with a callback that is no Python: only C++ lies between engine and op."""

    class Theirs(TRACER):
        accumulate = torch.add

    x = torch.randn(3, requires_grad=True)
    with their_tracer(Theirs, identity), cabw_viz.capture() as session:
        (x * x).sum().backward()
    (record,) = [capture.record for capture in session]
    assert {touch.by for touch in record.touches} == {"kernel"}
    assert {touch.where for touch in record.touches} == {"C++"}
    assert {touch.attribute for touch in record.touches} >= {"aten.add.Tensor"}


# ------------------------------------------------------------------------------------------------ the life of a dummy


def test_a_failed_trace_keeps_what_was_read_until_then():
    def failing(d):
        d.dim()
        raise ZeroDivisionError

    with planted(failing), cabw_viz.capture() as session:
        tanh_twice()
    record = session[0].record
    assert session.events["outcome"][0] == "failed"
    assert record.failure.type == "ZeroDivisionError"
    (touch,) = record.touches
    assert (touch.attribute, touch.autograd_node) == ("dim", record.failure.autograd_node)
    assert record.graph_nodes[touch.node].name.startswith("getitem")


def test_after_the_failure_nothing_is_counted():
    """The remaining callbacks answer with dummies that mean nothing."""
    kept = []

    def failing(d):
        kept.append(d)
        d.register_hook(lambda g: g)
        raise ZeroDivisionError

    inner = TRACER.set_node_origin

    def set_node_origin(self, node_name, nodecall_index, pyobj):
        for dummy in kept:
            dummy.dim()
        return inner(self, node_name, nodecall_index, pyobj)

    with pytest.MonkeyPatch.context() as patch, planted(failing):
        patch.setattr(TRACER, "set_node_origin", set_node_origin)
        (record,) = records_of(tanh_twice)
    assert [touch.attribute for touch in record.touches] == []


def test_after_the_trace_nothing_is_counted_and_a_dummy_still_works():
    kept = []
    with planted(kept.append), cabw_viz.capture() as session:
        tanh_twice()
    (dummy,) = kept
    assert session[0].record.touches == ()
    assert (dummy.shape, dummy.dtype, dummy.device.type) == (torch.Size([0, 123456789]), torch.float32, "cpu")
    made = dummy.t() + 1
    assert isinstance(made, torch._subclasses.FakeTensor)
    assert made.shape == (123456789, 0)
    assert session[0].record.touches == ()


def test_a_dummy_does_not_keep_the_tracer_alive():
    kept, tracers = [], []
    inner = TRACER.begin_capture

    def begin_capture(self, inputs, sizes, scalars, origins, accumulate_grad, check_nans):
        tracers.append(weakref.ref(self))
        return inner(self, inputs, sizes, scalars, origins, accumulate_grad, check_nans)

    with pytest.MonkeyPatch.context() as patch, planted(kept.append):
        patch.setattr(TRACER, "begin_capture", begin_capture)
        records_of(tanh_twice)
    gc.collect()
    assert kept
    assert [tracer() for tracer in tracers] == [None]


def test_a_dummy_is_copied_without_the_trace_that_it_belongs_to():
    copies = []
    with planted(lambda d: copies.append(copy.deepcopy(d))), cabw_viz.capture() as session:
        tanh_twice()
    assert copies[0].shape == (0, 123456789)
    assert [touch.attribute for touch in session[0].record.touches] == ["aten.clone.default"]


def test_without_the_tripwire_dummies_are_pytorchs_own():
    types = []
    with planted(lambda d: types.append(type(d))), cabw_viz.capture(tripwire=False) as session:
        tanh_twice()
    assert types == [torch._subclasses.FakeTensor]
    (record,) = records_of(hook_step, tripwire=False)
    assert session[0].record.touches == record.touches == ()


def hook_step():
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    y.register_hook(lambda g: g)
    y.sum().backward()


def test_the_record_of_a_program_is_always_the_same():
    one, other = (with_planted(lambda d: (d.shape, (d * 2).numel())) for _ in range(2))
    assert one.touches
    assert one.touches == other.touches
    assert one == other
    assert records_of(hook_step) == records_of(hook_step)


# -------------------------------------------------------------------------------------------- the user's own compiler


@contextlib.contextmanager
def their_tracer(tracer, compiler):
    """Compiled autograd on with a tracer class of the user's."""
    with compiled_autograd._enable(compiler):
        torch._C._dynamo.compiled_autograd.set_autograd_compiler(functools.partial(tracer, compiler), True)
        yield


def test_the_users_own_compiler_is_watched_on_the_way():
    with compiled_autograd._enable(identity):
        (record,) = records_of(hook_step)
    assert record.run == "user"
    check_hooked(record)


def test_graph_nodes_are_those_of_the_graph_before_their_compiler_changed_it():
    def compiler(graph):
        for n in list(graph.graph.nodes)[:5]:
            with graph.graph.inserting_before(n):
                graph.graph.call_function(len, ((),))
        graph.recompile()
        return graph

    with compiled_autograd._enable(compiler):
        (record,) = records_of(hook_step)
    check_hooked(record)


def test_their_tracer_class_stays_in_charge():
    calls = []

    class Theirs(TRACER):
        def allocate_dummy(self):
            calls.append("allocate_dummy")
            return super().allocate_dummy()

        def tensor_pre_hook(self, inputs, hook_id, i):
            calls.append("tensor_pre_hook")
            return super().tensor_pre_hook(inputs, hook_id, i)

    with their_tracer(Theirs, identity):
        (record,) = records_of(hook_step)
    assert set(calls) == {"allocate_dummy", "tensor_pre_hook"}
    assert {touch.by for touch in record.touches} == {"user"}  # a frame of theirs is on the stack now
    assert {touch.where.rpartition(":")[0] for touch in record.touches} == {__file__}
    assert sum(touch.count for touch in record.touches) == CLONED.total()
