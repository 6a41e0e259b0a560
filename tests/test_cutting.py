"""Parts cut out of a backward, against networkx on its edges."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabw_viz.analysis.cutting import HOPS, cut
from cabw_viz.errors import CabwError
from cabw_viz.record.model import Leaf
from cabw_viz.views.render import graph_view
from tests import records
from tests.inspector.blocks import transformer
from tests.module_models import MODELS, capture_of_model
from tests.test_dot import Parsed
from tests.test_module_graph import backwards, check

LEVELS = ["module", "autograd", "fx"]


@pytest.fixture(params=MODELS)
def record(request):
    return capture_of_model(request.param).record


def graph_of(record):
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(node.number for node in record.autograd_nodes)
    graph.add_edges_from((n.number, e.target) for n in record.autograd_nodes for e in n.edges if e.target in graph)
    return graph


def drawn(record, level="autograd", **options):
    """Numbers of the autograd nodes that a drawing shows."""
    return {number for box in graph_view(record, level, **options).drawing.boxes for number in box.nodes}


# -------------------------------------------------------------------------------------------------------------- path_to


def test_the_ways_to_a_parameter_are_its_ancestors(record):
    graph = graph_of(record)
    for leaf in record.leaves:
        wanted = nx.ancestors(graph, leaf.autograd_node) | {leaf.autograd_node}
        assert wanted <= nx.descendants(graph, 0) | {0}  # so that all of them lie between the loss and the leaf
        for name in leaf.names:
            assert drawn(record, path_to=name) == wanted
            drawing = graph_view(record, path_to=name).drawing
            check(cut(record, path_to=name).record, drawing)


def test_every_name_of_a_tied_parameter_will_do():
    record = capture_of_model("tied").record
    (leaf,) = [leaf for leaf in record.leaves if len(leaf.names) > 1]
    assert set(leaf.names) == {"embed.weight", "head.weight"}
    ways = [drawn(record, path_to=name) for name in (*leaf.names, leaf.label)]
    assert ways[0] == ways[1] == ways[2]
    modules = {record.by_number[n].module.split(".")[0] for n in ways[0]}
    assert {"embed", "head", "layers"} <= modules


def test_a_gradient_that_is_returned_enters_its_node_at_one_input():
    b = records.Backward()
    b.node("GraphRoot", (0, 1, 0), (1, 2, 0), kind="graph_root", inputs=0)
    b.node("SinBackward0", (0, 3, 0))
    b.node("CosBackward0", (0, 3, 1))
    b.node("SplitBackward0", (0, 4, 0), inputs=2)
    b.leaf("w")
    record = b.record()
    leaves = (*record.leaves, Leaf(("h",), (3,), "float32", autograd_node=3, input=1, output=0))
    record = type(record)(**{**vars_of(record), "leaves": leaves})
    assert drawn(record, path_to="h") == {0, 2, 3}
    assert drawn(record, path_to="w") == {0, 1, 2, 3, 4}


def vars_of(record):
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def test_parameters_that_are_none():
    record = capture_of_model("tied").record
    with pytest.raises(CabwError, match=r"(?s)path_to='embed\.wieght' is no parameter.*'embed\.weight'"):
        graph_view(record, path_to="embed.wieght")
    with pytest.raises(CabwError, match=r"path_to='norm1' is no parameter(?s:.)*'layers\.\d\.norm1\.bias'"):
        graph_view(record, path_to="norm1")
    leaves = (*record.leaves, Leaf(("unused.weight",), (3,), "float32", autograd_node=None))
    apart = type(record)(**{**vars_of(record), "leaves": leaves})
    with pytest.raises(CabwError, match=r"no gradient of this backward goes to unused\.weight(?s:.)*path_to="):
        graph_view(apart, path_to="unused.weight")


# --------------------------------------------------------------------------------------------------------------- around


@pytest.mark.parametrize("hops", [0, 1, 2, 5])
def test_the_neighbourhood_is_the_ego_graph(record, hops):
    graph = graph_of(record)
    for number in [0, len(graph) // 3, len(graph) - 1]:
        wanted = set(nx.ego_graph(graph, number, radius=hops, undirected=True))
        assert drawn(record, around=number, hops=hops) == wanted


@settings(max_examples=40, deadline=None)
@given(backwards(), st.data())
def test_any_neighbourhood_of_any_backward(record, data):
    number = data.draw(st.sampled_from([node.number for node in record.autograd_nodes]))
    hops = data.draw(st.integers(0, 4))
    wanted = set(nx.ego_graph(graph_of(record), number, radius=hops, undirected=True))
    part = cut(record, around=number, hops=hops)
    assert part.numbers == wanted
    if any(node.module for node in part.record.autograd_nodes):
        check(part.record, graph_view(record, around=number, hops=hops).drawing)


def test_a_small_neighbourhood_shows_its_nodes_one_by_one():
    record = capture_of_model("tied").record
    number = next(n.number for n in record.autograd_nodes if n.name.startswith("Native"))
    drawing = graph_view(record, around=number).drawing
    assert {len(box.nodes) for box in drawing.boxes} == {1}
    assert drawing.level == "module"
    assert drawing.notes == (f"only what is at most {HOPS} edges away from #{number}",)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"around": 10_000}, "around=10000 is no autograd node(?s:.)*a number from 0 to"),
        ({"around": "x"}, "around='x' is no autograd node"),
        ({"around": True}, "around=True is no autograd node"),
        ({"around": 1, "hops": -1}, "hops=-1 is no number of edges"),
        ({"around": 1, "hops": 1.5}, r"hops=1\.5 is no number of edges"),
        ({"hops": 3}, "hops=3 was given without around="),
        ({"focus": "layers.9"}, r"(?s)focus names 'layers\.9'.*a module's path such as 'layers\.3'"),
        ({"focus": ""}, "focus names ''"),
        ({"focus": 3}, "focus names 3"),
    ],
)
def test_what_is_not_there(options, match):
    with pytest.raises(CabwError, match=match):
        graph_view(capture_of_model("tied").record, **options)


# ---------------------------------------------------------------------------------------------------------------- focus


def crossing(record, inside):
    """Gradients into and out of a set of nodes."""
    edges = [(n.number, e.target) for n in record.autograd_nodes for e in n.edges]
    return Counter("in" if a not in inside else "out" for a, b in edges if (a in inside) != (b in inside))


@pytest.mark.parametrize("level", LEVELS)
def test_a_module_is_cut_out_with_its_borders(record, level):
    for module in sorted({node.module for node in record.autograd_nodes if node.module}):
        inside = {n.number for n in record.autograd_nodes if f"{n.module}.".startswith(f"{module}.")}
        drawing = graph_view(record, level, focus=module).drawing
        assert {number for box in drawing.boxes for number in box.nodes} == inside
        stubs = {box.id: box for box in drawing.boxes if box.kind == "outside"}
        arrows = [arrow for arrow in drawing.arrows if {arrow.source, arrow.target} & set(stubs)]
        found = Counter()
        for arrow in arrows:
            found["in" if arrow.source in stubs else "out"] += arrow.count
        if level != "fx":  # there sums are made on either side; tests/test_lowered_graph.py has its border
            assert found == crossing(record, inside)
        for stub in stubs.values():
            assert not stub.title.split(" ", 1)[1].startswith(f"{module}.")


@pytest.mark.dot
def test_what_lies_beyond_is_named_by_the_module_that_is_not_shared():
    drawing = graph_view(capture_of_model("tied").record, focus="layers.2.norm2").drawing
    titles = [box.title for box in drawing.boxes if box.kind == "outside"]
    assert "from layers.3" in titles
    assert any(title.startswith("to AddBackward0 #") for title in titles)  # the layer's own
    parsed = Parsed(graph_view(capture_of_model("tied").record, focus="layers.2.norm2").source)
    assert {"from_0"} <= set(parsed.nodes.values())


def test_depth_counts_from_the_module_in_focus():
    record = transformer(4)
    titles = {box.title for box in graph_view(record, focus="layers.2", depth=1).drawing.boxes}
    assert {"mlp", "attn", "norm1", "norm2"} <= titles
    deeper = {box.title for box in graph_view(record, focus="layers.2", depth=2).drawing.boxes}
    assert {"up", "down", "qkv", "proj"} <= deeper


def test_a_part_of_a_module_called_twice_can_be_cut_out():
    record = capture_of_model("twice").record
    both, last = drawn(record, focus="shared"), drawn(record, focus="shared@2")
    assert last < both
    visits = {record.by_number[n].visit for n in last if record.by_number[n].kind != "accumulate_grad"}
    assert visits == {0}


@pytest.mark.parametrize("level", LEVELS)
def test_cuts_go_together(level):
    record = capture_of_model("tied").record
    number = next(n.number for n in record.autograd_nodes if n.module == "layers.2.norm1")
    parts = {"focus": "layers.2", "around": number, "hops": 6, "path_to": "layers.1.norm1.weight"}
    alone = [
        drawn(record, focus="layers.2"),
        drawn(record, around=number, hops=6),
        drawn(record, path_to=parts["path_to"]),
    ]
    together = set.intersection(*alone)
    assert together
    assert drawn(record, level, **parts) == together
    with pytest.raises(CabwError, match=r"(?s)no autograd node is left: only layers\.0.*one of them at a time"):
        graph_view(record, focus="layers.0", around=0, hops=1)


@pytest.mark.dot
@pytest.mark.parametrize("level", LEVELS)
def test_parts_are_drawn(level):
    record = capture_of_model("rows").record
    for options in ({"focus": "inner"}, {"around": 4}, {"path_to": "inner.bias"}):
        view = graph_view(record, level, **options)
        assert len(Parsed(view.source).nodes) == len(view.drawing.boxes)


def test_nothing_is_cut_where_nothing_is_asked_for(record):
    whole = cut(record)
    assert whole.record is record
    assert whole.notes == ()
    assert not list(whole.crossings())
