"""Lowered backwards of real models: at other batch sizes, and whose each op is."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.errors import CabwError
from cabw_viz.numerics.compare import bitwise_equal
from tests import definitions
from tests.captures import capture_of
from tests.test_lowering import assert_aten_alone, assert_same_as_the_run


def gpt2():
    model = definitions.gpt2()[0].eval()
    return model, lambda ids: model(ids, labels=ids).loss, lambda batch: torch.randint(0, 50, (batch, 6))


def resnet():
    model = definitions.resnet()[0]
    return model, lambda x: model(x).square().sum(), lambda batch: torch.randn(batch, 3, 16, 16)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def lstm():
    model = Recurrent()
    return model, lambda x: model(x).square().mean(), lambda batch: torch.randn(batch, 5, 8)


def perceptron():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    return model, lambda x: nn.functional.cross_entropy(model(x), x.argmax(1) % 3), lambda batch: torch.randn(batch, 8)


def encoder():
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    return model, lambda x: model(x).square().mean(), lambda batch: torch.randn(batch, 5, 16)


MODELS = [gpt2, resnet, lstm, perceptron, encoder]
REFUSED_AT_ONE = {
    encoder: "that capture is of another backward: ops",  # eager's own forward makes other nodes
    resnet: r"guard is violated, inputs_\d+\.shape\[0\] > 1: .* is 1 ",  # one sample has several memory formats at once
}
"""Where a graph of several samples is not the one for a single sample."""


def capture_without_grad(model, loss, data):
    model.zero_grad()
    return capture_of(model, lambda: loss(data))


def eager(model, loss, data):
    """Gradients of a run without a capture."""
    model.zero_grad()
    loss(data).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters(remove_duplicate=False)}


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert found[name].shape == gradient.shape
        assert bitwise_equal(found[name], gradient), name


@pytest.mark.parametrize("make", MODELS)
def test_other_batch_sizes_give_eagers_gradients(make):
    torch.manual_seed(0)
    model, loss, data = make()
    capture = capture_without_grad(model, loss, data(3))
    lowered = capture.lower(symbolic=True)
    assert_aten_alone(lowered)
    assert_same_as_the_run(capture, lowered.gradients())
    for batch in (5, 2):
        sample = data(batch)
        assert_same_bits(lowered.gradients(capture_without_grad(model, loss, sample)), eager(model, loss, sample))
    sample = data(1)
    if make in REFUSED_AT_ONE:
        with pytest.raises(CabwError, match=REFUSED_AT_ONE[make]):
            lowered.gradients(capture_without_grad(model, loss, sample))
    else:
        assert_same_bits(lowered.gradients(capture_without_grad(model, loss, sample)), eager(model, loss, sample))


def test_untied_sizes_give_the_same_where_batch_and_width_are_equal_by_chance():
    torch.manual_seed(0)
    model, loss, data = perceptron()
    capture = capture_without_grad(model, loss, data(8))
    with pytest.raises(CabwError, match=r"is 8 \(.*\), but inputs_\d+\.shape\[0\] is 5 \(") as error:
        capture.lower(symbolic=True).gradients(capture_without_grad(model, loss, data(5)))
    assert "Expected: equal sizes" in str(error.value)
    assert "cap.lower(symbolic=True, tied=False)" in str(error.value)
    lowered = capture.lower(symbolic=True, tied=False)
    for batch in (8, 5, 1):
        sample = data(batch)
        assert_same_bits(lowered.gradients(capture_without_grad(model, loss, sample)), eager(model, loss, sample))


def test_fixed_sizes_refuse_another_batch():
    torch.manual_seed(0)
    model, loss, data = perceptron()
    sample = data(4)
    capture = capture_without_grad(model, loss, sample)
    lowered = capture.lower()
    assert_same_bits(lowered.gradients(), eager(model, loss, sample))
    assert lowered.guards == ()
    with pytest.raises(CabwError, match=r"is 5 .*\n?Expected: 4, as when captured\.\nTry: cap\.lower\(symbolic=True\)"):
        lowered.gradients(capture_without_grad(model, loss, data(5)))


# -- whose each op is ----------------------------------------------------------------------------------------


COPIES = ("aten.clone.default", "aten.detach.default")


@pytest.mark.parametrize("make", [gpt2, resnet, lstm])
def test_each_op_is_the_autograd_nodes_that_an_audit_says(make):
    """An audit sees ops as they run on watched tensors, node by node; it knows nothing of tracing."""
    torch.manual_seed(0)
    model, loss, data = make()
    capture = capture_without_grad(model, loss, data(3))
    capture.lower()
    frame = capture.audit()
    ran = Counter()
    for row in frame[frame.attribute.str.startswith("aten.")].itertuples():
        ran[(row.autograd_node, row.attribute)] += row.count
    rows = capture.results.lowered
    ops = [row for row in rows if row.kind == "aten_op"]
    assert all(row.autograd_node is not None for row in ops)
    lowered = Counter((row.autograd_node, row.target) for row in ops)
    # A workspace is copied before a kernel writes to it.
    copied = [row for row in ops if row.target in COPIES] if make is lstm else []
    copies = Counter((row.autograd_node, row.target) for row in copied)
    assert lowered - ran - copies == Counter()
    unused = ran - lowered  # results without users are dropped from a graph
    assert sum(unused.values()) <= 0.02 * sum(ran.values()), unused


def test_each_node_keeps_module_and_line():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    capture = capture_of(model, lambda: model(torch.randn(2, 4)).sum(), lines=True)
    lowered = capture.lower(symbolic=True)
    (tanh,) = lowered.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh_backward.default)
    (row,) = (node for node in capture.record.autograd_nodes if node.name == "TanhBackward0")
    meta = dict(tanh.meta["cabw"])
    assert capture.record.graph_nodes[meta.pop("graph_node")].target == "ops.TanhBackward0"
    assert meta == {
        "autograd_node": row.number,
        "name": "TanhBackward0",
        "module": "1",
        "module_class": "Tanh",
        "visit": 0,
        "line": str(row.line),
    }
    assert tanh.meta["nn_module_stack"] == {"1": ("1", "Tanh")}
    assert tanh.meta["stack_trace"].splitlines() == [
        f'  File "{row.line.file}", line {row.line.line}, in forward',
        "    capture = capture_of(model, lambda: model(torch.randn(2, 4)).sum(), lines=True)",
        f"TanhBackward0 (NodeCall {row.number})",
    ]
    assert "test_lowering_models.py" in lowered.print_readable(print_output=False)
    assert tanh.meta["val"].shape == (2, 4)


def test_the_record_lists_the_graph():
    torch.manual_seed(0)
    model, loss, data = perceptron()
    capture = capture_without_grad(model, loss, data(3))
    assert capture.results.lowered == ()
    lowered = capture.lower(symbolic=True)
    rows, nodes = capture.results.lowered, list(lowered.graph.nodes)
    assert [row.name for row in rows] == [node.name for node in nodes]
    for row, node in zip(rows, nodes, strict=True):
        assert [rows[i].name for i in row.inputs] == [each.name for each in node.all_input_nodes]
        assert {rows[i].name for i in row.users} == {user.name for user in node.users}
    kinds = Counter(row.kind for row in rows)
    assert kinds["placeholder"] == len(lowered.example_inputs())
    assert kinds["output"] == 1
    assert kinds["getitem"] == 3  # of native_layer_norm_backward
    (row,) = (row for row in rows if row.target == "aten.gelu_backward.default")
    assert row.arguments == "(mm, inputs_8)"
    assert capture.record.by_number[row.autograd_node].name == "GeluBackward0"


def test_two_lowerings_are_equal():
    torch.manual_seed(0)
    model, loss, data = perceptron()
    capture = capture_without_grad(model, loss, data(3))
    first, rows = capture.lower(symbolic=True).code, capture.results.lowered
    assert (capture.lower(symbolic=True).code, capture.results.lowered) == (first, rows)


def test_tied_parameters_and_returned_gradients():
    torch.manual_seed(0)
    model, loss, data = gpt2()
    capture = capture_without_grad(model, loss, data(2))
    lowered = capture.lower()
    assert "transformer.wte.weight = lm_head.weight" in lowered.leaves
    assert_same_as_the_run(capture, lowered.gradients())
    found = lowered(*lowered.example_inputs())
    named = lowered.gradients()
    assert all(torch.equal(g, named[name.partition(" = ")[0]]) for name, g in zip(lowered.leaves, found, strict=True))
    a = torch.randn(3, requires_grad=True)
    with cabw_viz.capture({"a": a}) as session:
        (gradient,) = torch.autograd.grad(a.sin().square().sum(), a, create_graph=True)
    assert_same_bits(session[0].lower().gradients(), {"a": gradient.detach()})


SOLVERS = {
    "solve": lambda a, b: torch.linalg.solve(a @ a.t() + torch.eye(5), b),
    "solve_a_constant": lambda a, b: torch.linalg.solve(a.detach() @ a.detach().t() + torch.eye(5), b),
    "lstsq": lambda a, b: torch.linalg.lstsq(a + 5 * torch.eye(5), b).solution,
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_formulas_that_ask_a_saved_tensor_whether_it_wants_a_gradient(solver, symbolic):
    torch.manual_seed(0)
    leaves = {"a": torch.randn(5, 5, requires_grad=True), "b": torch.randn(5, 2, requires_grad=True)}
    capture = capture_of(leaves, lambda: SOLVERS[solver](**leaves).sin().sum())
    wanted = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    assert set(wanted) == ({"b"} if solver == "solve_a_constant" else {"a", "b"})
    assert_same_bits(capture.lower(symbolic=symbolic).gradients(), wanted)


def test_a_gradient_lost_on_stand_ins_is_no_lowered_graph(monkeypatch):
    a, b = torch.eye(5, requires_grad=True), torch.randn(5, 2, requires_grad=True)
    capture = capture_of({"a": a, "b": b}, lambda: torch.linalg.solve(a, b).sum())
    monkeypatch.setattr("cabw_viz.replay.lowering.trace._with_requires_grad", lambda _, stand_ins: stand_ins)
    with pytest.raises(CabwError, match=r"on stand-ins nothing flows to a\.") as error:
        capture.lower()
    assert error.value.expected
    assert error.value.try_
