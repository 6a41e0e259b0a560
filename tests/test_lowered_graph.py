"""The drawing of the graph of aten ops, against the fx graph that it was made of."""

from __future__ import annotations

import operator

import pytest
import torch

import cabw_viz
from cabw_viz.errors import CabwError
from cabw_viz.record.results import Results
from cabw_viz.views.render import graph_view
from tests.inspector.blocks import lowered, transformer
from tests.module_models import MODELS
from tests.test_dot import Parsed

NAMES = ["tied", "twice", "residual", "rows", "compiled", "hooked"]


def lower(name):
    """A capture that was lowered, and the graph that came of it."""
    torch.manual_seed(0)
    model, run = MODELS[name]()
    with cabw_viz.capture(model) as session:
        run()
    cap = session[0]
    return cap, cap.lower()


def ops(graph):
    """The nodes that compute, and those from which the arguments of each come, past picked results."""

    def sources(node):
        for value in node.all_input_nodes:
            if value.op == "call_function" and value.target is operator.getitem:
                yield from sources(value)
            elif value.op not in ("placeholder", "output"):
                yield value

    shown = [n for n in graph.graph.nodes if n.op not in ("placeholder", "output") and n.target is not operator.getitem]
    return shown, {(source.name, node.name) for node in shown for source in sources(node)}


@pytest.mark.parametrize("name", NAMES)
def test_the_drawing_is_the_graph(name):
    cap, graph = lower(name)
    drawing = cap.graph("aten").drawing
    names = {f"g{node.ordinal}": node.name for node in cap.results.lowered}
    shown, edges = ops(graph)
    assert [names[box.id] for box in drawing.boxes if box.id in names] == [node.name for node in shown]
    drawn = {(names[a.source], names[a.target]) for a in drawing.arrows if a.target in names}
    assert drawn == edges
    returned = [box.title for box in drawing.boxes if box.kind == "returned"]
    assert returned == [leaf.label for leaf in in_order(cap, graph)]


def in_order(cap, graph):
    """The leaves in the order in which the lowered graph returns their gradients."""
    by_name = {name: leaf for leaf in cap.record.leaves for name in (*leaf.names, leaf.label)}
    return [by_name[name] for name in graph.leaves]


def test_ops_say_which_autograd_node_and_parameter_they_belong_to():
    cap, _ = lower("twice")
    drawing = cap.graph("aten").drawing
    boxes = {box.id: box for box in drawing.boxes}
    for node in cap.results.lowered:
        if node.kind == "aten_op":
            assert boxes[f"g{node.ordinal}"].nodes == (node.autograd_node,)
    assert any(
        "view of between.weight" in line or "between.weight" in line for b in drawing.boxes for line in b.details
    )


@pytest.mark.dot
def test_a_part_of_it_can_be_cut_out_and_coloured():
    record = transformer(2)
    view = graph_view(record, "aten", results=Results(lowered=lowered(record)), focus="layers.1.mlp", color_by="bytes")
    inside = {n.number for n in record.autograd_nodes if f"{n.module}.".startswith("layers.1.mlp.")}
    assert {number for box in view.drawing.boxes for number in box.nodes} == inside
    assert len(Parsed(view.source).nodes) == len(view.drawing.boxes)


def test_before_it_is_lowered_the_call_is_named():
    with pytest.raises(CabwError, match=r"no graph of aten ops yet(?s:.)*cap\.lower\(\) first"):
        graph_view(transformer(1), "aten")


@pytest.mark.parametrize("level", ["fx", "aten"])
def test_a_cut_shows_what_crosses_its_border_and_nothing_else(level):
    """Against the module's own set of graph nodes: which values of the others they read, and the others of theirs."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU("tanh"), torch.nn.Linear(4, 2))
    with cabw_viz.capture(model) as session:
        hidden = model[1](model[0](torch.randn(3, 4)))
        (model[2](hidden).sum() + hidden.sum()).backward()  # two gradients meet before the activation's backward
    cap = session[0]
    graph = cap.lower() if level == "aten" else cap._captured.state.graph
    rows = cap.results.lowered if level == "aten" else cap.record.graph_nodes
    of_module = {node.number for node in cap.record.autograd_nodes if node.module == "1"}
    by_name = {row.name: row for row in rows}
    shown, edges = ops(graph)
    worked = {node.name for node in shown if by_name[node.name].kind not in ("lifted_input", "lifted_size")}
    inside = {name for name in worked if by_name[name].autograd_node in of_module}
    enters = {target for source, target in edges if source in worked - inside and target in inside}
    leaves = {source for source, target in edges if source in inside and target in worked - inside}
    assert enters
    assert leaves

    drawing = cap.graph(level, focus="1").drawing
    names = {f"g{row.ordinal}": row.name for row in rows}
    assert {names[box.id] for box in drawing.boxes if box.id in names} == inside
    assert {box.title for box in drawing.boxes if box.id not in names} == {"from 2", "to 0"} | (
        {"from SumBackward0 #1", "from AddBackward0 #1"} & {box.title for box in drawing.boxes}
    )
    assert {names[a.target] for a in drawing.arrows if a.source.startswith("from_")} == enters
    assert {names[a.source] for a in drawing.arrows if a.target.startswith("to_")} == leaves
