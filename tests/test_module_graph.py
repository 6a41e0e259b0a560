"""The drawing by modules against the autograd nodes of the record, counted the long way round."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabw_viz.analysis.module_tree import MAX_PARTS, ModuleTree, module_tree
from cabw_viz.errors import CabwError
from cabw_viz.record.model import AutogradNode, BackwardCall, CaptureRecord, Edge, Failure
from cabw_viz.record.source_line import SourceLine
from cabw_viz.views.render import MAX_BOXES, graph_view
from tests import records
from tests.inspector.blocks import Model, _record, transformer
from tests.module_models import MODELS, capture_of_model
from tests.test_dot import Parsed, outputs_of_two_processes

OPTIONS = [{}, {"depth": 1}, {"depth": 2}, {"depth": 9}]


def edges_of(record):
    return [(n.number, e.target) for n in record.autograd_nodes for e in n.edges if e.target in record.by_number]


def box_of(drawing):
    return {number: box.id for box in drawing.boxes for number in box.nodes}


@pytest.fixture(params=MODELS)
def record(request):
    return capture_of_model(request.param).record


# ------------------------------------------------------------------------------------------- what any drawing must keep


def check(record, drawing):
    """Each node in one box, each gradient on one arrow or inside a box, and no circle but those that are drawn so."""
    where = box_of(drawing)
    assert sum(len(box.nodes) for box in drawing.boxes) == len(where) == len(record.autograd_nodes)
    crossing = Counter((where[a], where[b]) for a, b in edges_of(record) if where[a] != where[b])
    assert {(arrow.source, arrow.target): arrow.count for arrow in drawing.arrows} == dict(crossing)
    assert len(drawing.arrows) == len(crossing)
    staying = Counter(where[a] for a, b in edges_of(record) if where[a] == where[b])
    assert {box.id: box.inside for box in drawing.boxes if box.inside} == dict(staying)
    total = sum(arrow.count for arrow in drawing.arrows) + sum(box.inside for box in drawing.boxes)
    assert total == len(edges_of(record))
    ways = nx.DiGraph([(arrow.source, arrow.target) for arrow in drawing.arrows])
    onward = nx.DiGraph([(arrow.source, arrow.target) for arrow in drawing.arrows if not arrow.back])
    assert nx.is_directed_acyclic_graph(onward)
    circles = [c for c in nx.strongly_connected_components(ways) if len(c) > 1]
    for arrow in drawing.arrows:
        if arrow.back:
            assert any({arrow.source, arrow.target} <= circle for circle in circles)
    ids = {cluster.id for cluster in drawing.clusters}
    assert {box.cluster for box in drawing.boxes} | {c.parent for c in drawing.clusters} <= ids | {None}
    assert len({box.id for box in drawing.boxes} | ids) == len(drawing.boxes) + len(ids)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_gradient_is_counted_once(record, options):
    check(record, graph_view(record, **options).drawing)


def test_every_module_can_be_opened(record):
    modules = {".".join(part) for n in record.autograd_nodes if n.module for part in prefixes(n.module.split("."))}
    for module in sorted(modules):
        drawing = graph_view(record, depth=1, expand=[module]).drawing
        check(record, drawing)
        own = [n.number for n in record.autograd_nodes if n.module == module]
        single = {box.nodes[0] for box in drawing.boxes if len(box.nodes) == 1}
        assert set(own) <= single, module


def prefixes(path):
    return [path[: count + 1] for count in range(len(path))]


def test_at_depth_one_a_box_is_what_the_table_says(record):
    """The table of nodes gives the modules, `to` the edges; parts of one module are put together again."""
    frame = captured_frame(record)
    drawing = graph_view(record, depth=1, expand=()).drawing
    top = {number: (row.module or "").split(".")[0] for number, row in frame.iterrows()}
    of = {}
    for box in drawing.boxes:
        tops = {top[number] for number in box.nodes}
        if box.kind == "group":
            assert len(tops) == 1 or box.times > 1
        of[box.id] = frozenset(tops)
    wanted = {(frozenset({top[a]}), frozenset({top[b]})) for a, row in frame.iterrows() for b in row.to}
    if all(len(tops) == 1 for tops in of.values()):
        drawn = {(of[arrow.source], of[arrow.target]) for arrow in drawing.arrows}
        assert {pair for pair in wanted if pair[0] != pair[1]} == {pair for pair in drawn if pair[0] != pair[1]}


def captured_frame(record):
    return next(capture_of_model(name).nodes for name in MODELS if capture_of_model(name).record is record)


@st.composite
def backwards(draw):
    """A record of a random backward, in modules that mean nothing."""
    count = draw(st.integers(2, 40))
    path = st.lists(st.sampled_from(["a", "b", "0", "1", "2"]), max_size=3).map(".".join)
    nodes = []
    for number in range(count):
        below = st.integers(number + 1, count - 1) if number + 1 < count else st.nothing()
        targets = draw(st.lists(below, max_size=3)) if number + 1 < count else []
        edges = tuple(Edge(output, target, 0) for output, target in enumerate(targets))
        module = draw(path)
        kind = "graph_root" if number == 0 else "builtin"
        name = draw(st.sampled_from(["MulBackward0", "AddBackward0"]))
        nodes.append(
            AutogradNode(number, name, kind, 1, len(edges), edges, module=module, module_class="M" * bool(module))
        )
    return CaptureRecord(BackwardCall(0, "backward", "train.py:1"), "2.13.0", "eager", tuple(nodes))


@settings(max_examples=150, deadline=None)
@given(backwards(), st.sampled_from([1, 2, 3]))
def test_any_backward_at_all_is_drawn_whole(record, depth):
    if any(node.module for node in record.autograd_nodes):
        check(record, graph_view(record, depth=depth).drawing)
        check(record, graph_view(record).drawing)


# --------------------------------------------------------------------------------------------------------- what is seen


@pytest.mark.dot
def test_a_transformer_of_48_layers_is_a_picture_for_people():
    view = graph_view(encoder(48))
    assert len(view.drawing.boxes) <= 30
    assert [c.title for c in view.drawing.clusters if "48" in c.title] == ["layers.0 … layers.47 ×48"]
    parsed = Parsed(view.source)
    assert len(parsed.nodes) == len(view.drawing.boxes)
    inside = {parsed.attributes[name]["tooltip"] for name in parsed.nodes.values()}
    assert any("layers.0.norm1" in text and "layers.7.norm1" in text for text in inside)


@pytest.mark.dot
def test_frames_stand_in_frames_as_modules_stand_in_modules():
    view = graph_view(capture_of_model("tied").record, expand=["layers.2"])
    parsed = Parsed(view.source)
    titles = {c.title: c.id for c in view.drawing.clusters}
    inner = {parsed.nodes[n] for n in parsed.clusters[titles["layers.2"]]["nodes"]}
    outer = {parsed.nodes[n] for n in parsed.clusters[titles["layers"]]["nodes"]}
    assert inner < outer
    boxes = {box.id: box for box in view.drawing.boxes}
    modules = {capture_of_model("tied").record.by_number[n].module for name in inner for n in boxes[name].nodes}
    assert all(f"{module}.".startswith("layers.2.") for module in modules)


def test_a_module_called_twice_is_drawn_twice():
    drawing = graph_view(capture_of_model("twice").record, depth=1).drawing
    titles = [box.title for box in drawing.boxes if box.kind == "group"]
    assert titles == ["shared (call 2)", "between", "shared (call 1)"]
    record = capture_of_model("twice").record
    for box, visit in [(box, int(box.title[-2]) - 1) for box in drawing.boxes if "call" in box.title]:
        visits = {record.by_number[n].visit for n in box.nodes if record.by_number[n].kind != "accumulate_grad"}
        assert visits == {visit}
    second = graph_view(record, expand=["shared@2"], depth=1).drawing
    assert [c.title for c in second.clusters] == ["shared (call 1)"]


def test_a_cell_of_an_unrolled_loop_stays_whole_and_says_how_often_it_was_called():
    drawing = graph_view(capture_of_model("unrolled").record, depth=1).drawing
    cell = next(box for box in drawing.boxes if box.title == "cell")
    assert "6 calls" in cell.details
    assert not any(arrow.back for arrow in drawing.arrows)


def test_modules_called_in_turn_make_a_circle_that_is_drawn_as_one():
    drawing = graph_view(capture_of_model("turns").record, depth=1).drawing
    first, second = (next(box.id for box in drawing.boxes if box.title == title) for title in ("first", "second"))
    arrows = {(arrow.source, arrow.target): arrow for arrow in drawing.arrows}
    assert (arrows[second, first].count, arrows[second, first].back) == (6, False)
    assert (arrows[first, second].count, arrows[first, second].back) == (5, True)
    assert "constraint=false" in graph_view(capture_of_model("turns").record, depth=1).source


def test_a_list_of_modules_is_one_thing_even_if_something_is_done_between_them():
    drawing = graph_view(capture_of_model("checkpointed").record, depth=1).drawing
    titles = [box.title for box in drawing.boxes]
    assert titles.count("blocks") == 1
    assert not any("of 3" in title for title in titles)
    assert [arrow.back for arrow in drawing.arrows].count(True) == 1


def encoder(layers):
    """A transformer of blocks that all pass on one gradient."""
    model = Model()
    at = model.norm("norm", model.op("SumBackward0", model.op("GraphRoot")))
    for layer in reversed(range(layers)):
        at = model.block(f"layers.{layer}", at)
    embedding = model.op("EmbeddingBackward0", at, module="tok", cls="Embedding", line=60)
    model.leaf("tok.weight", embedding, "Embedding")
    return _record(model.rows)


def calls_in_turn(count):
    """`a` and `b` called in turn, each `count` times, in the forward; a record of that backward."""
    b = records.Backward()
    for number in range(2 * count):
        b.node("SinBackward0", *([(0, number + 1, 0)] if number + 1 < 2 * count else []))
    record = b.record()
    nodes = [
        replace(node, module="ab"[node.number % 2], module_class="Sin", visit=count - 1 - node.number // 2)
        for node in record.autograd_nodes
    ]
    return replace(record, autograd_nodes=tuple(nodes))


@pytest.mark.parametrize("count", [2, MAX_PARTS, MAX_PARTS + 1])
def test_few_calls_are_drawn_one_by_one_and_many_as_a_circle(count):
    drawing = graph_view(calls_in_turn(count), depth=1).drawing
    if count > MAX_PARTS:
        assert [box.title for box in drawing.boxes] == ["a", "b"]
        assert [arrow.count for arrow in drawing.arrows] == [count, count - 1]
    else:
        calls = [f"{name} (call {call})" for call in range(count, 0, -1) for name in "ab"]
        assert [box.title for box in drawing.boxes] == calls


def test_a_parameter_shared_between_modules_joins_them():
    record = capture_of_model("tied").record
    drawing = graph_view(record, depth=1).drawing
    ids = {box.title: box.id for box in drawing.boxes}
    assert any((arrow.source, arrow.target) == (ids["head"], ids["embed"]) for arrow in drawing.arrows)


def test_what_is_worth_knowing_is_said_of_a_closed_module():
    drawing = graph_view(capture_of_model("rows").record, depth=1).drawing
    assert any("3 calls" in box.details for box in drawing.boxes if box.title == "inner")
    (around,) = [box for box in drawing.boxes if box.title == "CopySlices · DoubleBackward"]
    assert around.details == ("6 nodes",)
    nested = replace(
        capture_of_model("rows").record,
        autograd_nodes=tuple(
            replace(n, module=f"m.{n.module}".rstrip("."), module_class=n.module_class or "M") if n.number else n
            for n in capture_of_model("rows").record.autograd_nodes
        ),
    )
    (box,) = [box for box in graph_view(nested, depth=1).drawing.boxes if box.title == "m"]
    assert "3 custom Functions" in box.details
    assert "3 in-place writes to views" in box.details


def test_hooks_are_counted_on_the_boxes_that_have_them():
    record = capture_of_model("hooked").record
    drawing = graph_view(record, depth=1, expand=["2"]).drawing
    hooked = {node.number for node in record.autograd_nodes if node.hooks}
    assert len(hooked) == 1
    assert [box.hooks for box in drawing.boxes if set(box.nodes) & hooked] == [1]
    assert sum(box.hooks for box in drawing.boxes) == 1


def test_touches_are_marked_on_the_module_in_which_they_happened():
    record = transformer(3)
    (touch,) = [touch for touch in record.touches if touch.phase == "initial_trace"]
    drawing = graph_view(record).drawing
    (box,) = [box for box in drawing.boxes if box.touched]
    assert touch.autograd_node in box.nodes
    assert "size" in box.touched


def test_a_failed_trace_is_shown_in_the_module_where_it_stopped():
    whole = transformer(2)
    stop = next(node.number for node in whole.autograd_nodes if node.module == "layers.1.mlp.up")
    record = replace(whole, failure=Failure("NotImplementedError", "no fake", stop, "AddmmBackward0"))
    drawing = graph_view(record, depth=2).drawing
    failed = [box for box in drawing.boxes if box.state == "failed"]
    assert [stop in box.nodes for box in failed] == [True]
    assert any("stopped here: NotImplementedError" in line for line in failed[0].details)
    for box in drawing.boxes:
        assert (box.state == "unreached") == (min(box.nodes) > stop)


# -------------------------------------------------------------------------------------------------- without any modules


def test_without_modules_a_small_backward_is_drawn_by_nodes():
    drawing = graph_view(records.mlp()).drawing
    assert drawing.level == "autograd"
    assert drawing.notes == ("No module made any of these nodes: each has a box of its own",)
    with pytest.raises(CabwError, match=r"(?s)depth=2 was given, and no module.*level='autograd'"):
        graph_view(records.mlp(), depth=2)
    with pytest.raises(CabwError, match="no module made any of these nodes"):
        graph_view(records.mlp(), expand=["layers"])


def test_without_modules_a_long_backward_is_drawn_by_lines():
    record = records.chain(60)
    lines = [SourceLine("/home/ada/train.py", 10 + number % 3, f"x = step{number % 3}(x)") for number in range(62)]
    nodes = [replace(n, line=lines[n.number]) if n.kind == "builtin" else n for n in record.autograd_nodes]
    drawing = graph_view(replace(record, autograd_nodes=tuple(nodes))).drawing
    check(replace(record, autograd_nodes=tuple(nodes)), drawing)
    titles = {box.title: box for box in drawing.boxes}
    assert set(titles) == {"GraphRoot", "train.py:10", "train.py:11", "train.py:12"}
    assert titles["train.py:11"].details == ("x = step1(x)", "20 nodes")
    assert any(arrow.back for arrow in drawing.arrows)
    assert "a box is what one line of your code made" in drawing.notes[0]


# --------------------------------------------------------------------------------------------------------------- limits


def test_depth_goes_as_far_as_can_be_read():
    record = capture_of_model("tied").record
    counts = [len(graph_view(record, depth=depth).drawing.boxes) for depth in range(1, 6)]
    assert counts == sorted(counts)
    assert len(graph_view(record).drawing.boxes) == max(count for count in counts if count <= 30)


@pytest.mark.parametrize("depth", [0, -1, 1.5, True, "2"])
def test_a_depth_that_is_none(depth):
    with pytest.raises(CabwError, match=r"depth=.* is no depth"):
        graph_view(capture_of_model("tied").record, depth=depth)


def test_names_that_are_not_there_are_answered_with_names_that_are():
    with pytest.raises(CabwError, match=r"(?s)expand names 'layers\.7'.*'layers\.3'"):
        graph_view(capture_of_model("tied").record, expand=["layers.7"])
    with pytest.raises(CabwError, match=r"expand=\['layers\.3'\]"):
        graph_view(capture_of_model("tied").record, expand="layers.3")


@pytest.mark.parametrize(
    ("level", "options"),
    [
        ("autograd", {"depth": 2}),
        ("fx", {"expand": ["layers"]}),
        ("module", {"plumbing": True}),
        ("aten", {"depth": 1}),
    ],
)
def test_options_of_another_level_are_refused(level, options):
    with pytest.raises(CabwError, match=f"was given for level='{level}', where it means nothing"):
        graph_view(capture_of_model("tied").record, level, **options)


def test_too_many_boxes_are_answered_with_what_to_ask_for():
    record = transformer(60)
    assert len(record.autograd_nodes) > MAX_BOXES
    boxes = len(graph_view(record).drawing.boxes)
    with pytest.raises(CabwError) as caught:
        graph_view(record, "autograd").svg()
    assert f"level='module', depth=4 ({boxes} boxes)" in caught.value.try_
    assert "focus='layers." in caught.value.try_
    with pytest.raises(CabwError, match=r"level='autograd' \(3,6\d\d nodes\)"):
        graph_view(record, "fx").svg()
    name = caught.value.try_.split("focus='")[1].split("'")[0]
    inside = sum(f"{node.module}.".startswith(f"{name}.") for node in record.autograd_nodes)
    assert f"({inside} autograd nodes)" in caught.value.try_
    graph_view(record, "autograd", focus=name).svg()


def test_a_large_backward_is_grouped_in_linear_time():
    import time

    seconds = []
    for layers in (60, 240):
        record = transformer(layers)
        start = time.process_time()
        graph_view(record)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 12 * seconds[0] + 1


def test_the_same_record_gives_the_same_bytes_in_another_process():
    code = (
        "from tests.inspector.blocks import transformer; from cabw_viz.views.render import graph_view;"
        "print(graph_view(transformer(3), expand=['layers.1'], color_by='bytes').source)"
    )
    one, other = outputs_of_two_processes(code)
    assert one == other != b""


@pytest.mark.dot
def test_names_of_modules_do_not_get_out_of_their_labels():
    names = [name.replace(".", "·") or "empty" for name in records.HOSTILE]
    b = records.Backward()
    b.node("GraphRoot", *[(i, i + 1, 0) for i in range(len(names))], kind="graph_root", inputs=0)
    for _ in names:
        b.node("SinBackward0", inputs=1)
    record = b.record()
    nodes = [
        replace(n, module=f"{names[n.number - 1]}.{names[n.number - 2]}", module_class=names[0]) if n.number else n
        for n in record.autograd_nodes
    ]
    record = replace(record, autograd_nodes=tuple(nodes))
    for options in ({"depth": 1}, {"depth": 2}, {"focus": names[0]}, {"expand": [names[1], names[5]]}):
        view = graph_view(record, **options)
        assert len(Parsed(view.source).nodes) == len(view.drawing.boxes)
        assert "<script" not in view.svg()


def test_a_tree_holds_every_node_at_every_depth():
    for name in MODELS:
        record = capture_of_model(name).record
        tree = module_tree(record).root
        todo = [tree]
        while todo:
            part = todo.pop()
            todo += part.children
            if part.children:
                assert sorted(n for child in part.children for n in child.nodes) == sorted(part.nodes)
        assert sorted(tree.nodes) == [node.number for node in record.autograd_nodes]


def test_paths_of_a_thousand_segments_are_cut():
    record = records.chain(3)
    deep = ".".join(["m"] * 1000)
    nodes = tuple(replace(n, module=deep, module_class="M") if n.number == 1 else n for n in record.autograd_nodes)
    drawing = graph_view(replace(record, autograd_nodes=nodes)).drawing
    assert sum(len(box.nodes) for box in drawing.boxes) == 5
    assert ModuleTree(record, {n.number: () for n in record.autograd_nodes}).root.nodes == [0, 1, 2, 3, 4]
