"""Which blocks fold into one, on records in which one block is made to differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cabw_viz.analysis.folding import Structure
from cabw_viz.analysis.module_tree import module_tree
from cabw_viz.record.model import Edge, GradientSpec, Hook, Touch
from cabw_viz.views.render import graph_view
from tests import records
from tests.module_models import capture_of_model
from tests.test_module_graph import check
from tests.test_module_graph import encoder as with_hooks

LAYERS = 7


def encoder(layers):
    """A transformer whose blocks differ in nothing."""
    record = with_hooks(layers)
    return replace(record, touches=(), autograd_nodes=tuple(replace(n, hooks=()) for n in record.autograd_nodes))


def closed(record, **options):
    """The titles of the blocks' boxes, in order, and the boxes by title."""
    drawing = graph_view(record, depth=2, **options).drawing
    check(record, drawing)
    boxes = {box.title: box for box in drawing.boxes if box.title not in {"norm", "tok"} and box.kind == "group"}
    return list(boxes), boxes


def changed(layer, change, where=lambda node: node.name.startswith("Gelu"), layers=LAYERS):
    """The record of an encoder in which one node of one block is another."""
    record = encoder(layers)
    inside = f"layers.{layer}."
    (number,) = [n.number for n in record.autograd_nodes if f"{n.module}.".startswith(inside) and where(n)]
    nodes = tuple(change(n) if n.number == number else n for n in record.autograd_nodes)
    return replace(record, autograd_nodes=nodes), number


def test_blocks_that_are_built_alike_are_one_box():
    record = encoder(LAYERS)
    titles, boxes = closed(record)
    assert titles == ["layers.0 … layers.6 ×7"]
    box = boxes[titles[0]]
    assert box.times == LAYERS
    assert box.details == ("Block · 60 nodes each",)
    modules = {n.number for n in record.autograd_nodes if n.module.startswith("layers.")}
    assert set(box.nodes) == modules
    assert len(modules) == 60 * LAYERS


@pytest.mark.parametrize("layer", [0, 3, 6])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda n: replace(n, name="SiluBackward0"), "without Gelu and with Silu"),
        (lambda n: replace(n, edges=(*n.edges, Edge(1, n.edges[0].target, 0))), "other edges between the same nodes"),
        (lambda n: replace(n, edges=(replace(n.edges[0], input=1),)), "other edges between the same nodes"),
    ],
    ids=["op", "edge", "input"],
)
def test_a_block_that_differs_is_drawn_by_itself_and_says_why(layer, change, why):
    record, _ = changed(layer, change)
    titles, boxes = closed(record)
    name = f"layers.{layer}"
    assert name in titles
    assert any(line.startswith("unlike layers.") and line.endswith(f": {why}") for line in boxes[name].details)
    others = [title for title in titles if title != name]
    assert sum(boxes[title].times for title in others) == LAYERS - 1
    assert len(others) == (1 if layer in (0, LAYERS - 1) else 2)


def test_a_block_of_another_class_is_drawn_by_itself():
    record = encoder(LAYERS)
    nodes = [replace(n, module_class="Odd") if n.module == "layers.3" else n for n in record.autograd_nodes]
    titles, _ = closed(replace(record, autograd_nodes=tuple(nodes)))
    assert titles == ["layers.4 … layers.6 ×3", "layers.3", "layers.0 … layers.2 ×3"]


SPEC = GradientSpec((7, 7), "torch.float64")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda n: replace(n, hooks=(Hook("pre_hook", "f"),)), "hooks"),
        (lambda n: replace(n, kind="cpp_function"), "kinds of nodes"),
        (lambda n: replace(n, gradients_in=(replace(n.gradients_in[0], shape=(1, 2)),)), "shapes"),
        (lambda n: replace(n, saved=(replace(n.saved[0], shape=(1, 2)),)), "shapes"),
        (lambda n: replace(n, gradients_out=(replace(n.gradients_out[0], dtype="torch.bfloat16"),)), "dtypes"),
        (lambda n: replace(n, saved=(replace(n.saved[0], dtype="torch.int8"),)), "dtypes"),
    ],
    ids=["hooks", "kind", "gradient shape", "saved shape", "gradient dtype", "saved dtype"],
)
def test_what_differs_between_folded_blocks_is_told(change, what):
    record, number = changed(2, change)
    titles, boxes = closed(record)
    box = boxes[titles[0]]
    assert titles == ["layers.0 … layers.6 ×7"]
    assert [line for line in box.details if line.startswith("other")] == [f"other {what} in layers.2"]
    assert f"other {what} in layers.2" in box.tooltip
    frames = graph_view(record, depth=3).drawing.clusters
    assert any(f"other {what} in layers.2" in frame.details for frame in frames)
    assert number in box.nodes


def test_touches_that_differ_are_told():
    record = encoder(LAYERS)
    number = next(n.number for n in record.autograd_nodes if n.module == "layers.5")
    plain = replace(record, touches=())
    touched = replace(record, touches=(Touch("initial_trace", "size", number, None, "user", "train.py:1"),))
    assert not [line for line in closed(plain)[1]["layers.0 … layers.6 ×7"].details if "touches" in line]
    box = closed(touched)[1]["layers.0 … layers.6 ×7"]
    assert "other touches in layers.5" in box.details
    assert box.touched == "size; user" or f"#{number} size; user" in box.touched


def test_open_blocks_show_one_block_that_stands_for_all():
    record = encoder(LAYERS)
    drawing = graph_view(record, depth=4).drawing
    check(record, drawing)
    frame = next(cluster for cluster in drawing.clusters if cluster.title == "layers.0 … layers.6 ×7")
    frames = {frame.id} | {c.id for c in drawing.clusters if c.parent == frame.id}
    inside = [box for box in drawing.boxes if box.cluster in frames]
    for box in inside:
        layers = [record.by_number[n].module.split(".")[1] for n in box.nodes]
        assert {layers.count(layer) for layer in map(str, range(LAYERS))} == {len(box.nodes) // LAYERS}
        rests = {record.by_number[n].module.split(".", 2)[2:] == [] for n in box.nodes}
        assert len(rests) == 1
    back = [arrow for arrow in drawing.arrows if arrow.back]
    assert {arrow.count for arrow in back} == {LAYERS - 1}
    assert {arrow.label for arrow in back} == {f"to the next ×{LAYERS - 1}"}
    ids = {box.id for box in inside}
    within = [a for a in drawing.arrows if a.source in ids and a.target in ids and not a.back]
    assert all(arrow.count % LAYERS == 0 for arrow in within)
    assert {arrow.label for arrow in within} <= {"", "×2", "×3"}


@pytest.mark.parametrize("layer", [0, 3, 6])
def test_opening_one_block_leaves_the_others_folded(layer):
    record = encoder(LAYERS)
    titles, boxes = closed(record, expand=[f"layers.{layer}.mlp"])
    blocks = [title for title in titles if title.startswith("layers")]
    assert sum(boxes[title].times for title in blocks) == LAYERS - 1
    drawing = graph_view(record, depth=2, expand=[f"layers.{layer}.mlp"]).drawing
    single = {box.nodes[0] for box in drawing.boxes if len(box.nodes) == 1}
    own = {n.number for n in record.autograd_nodes if n.module == f"layers.{layer}.mlp"}
    assert own <= single


def test_opening_the_list_shows_each_block():
    titles, boxes = closed(encoder(LAYERS), expand=["layers"])
    assert titles == [f"layers.{layer}" for layer in reversed(range(LAYERS))]
    assert {box.times for box in boxes.values()} == {1}


def test_layers_of_a_sequential_fold_and_two_norms_do_not():
    drawing = graph_view(capture_of_model("tied").record, depth=2).drawing
    assert any(box.title == "layers.0 … layers.3 ×4" for box in drawing.boxes)
    inside = graph_view(capture_of_model("tied").record, focus="layers.2", depth=1).drawing
    titles = [box.title for box in inside.boxes]
    assert {"norm1", "norm2", "linear1", "linear2"} <= set(titles)


def test_stages_fold_where_their_first_block_is_another():
    drawing = graph_view(capture_of_model("residual").record, depth=2).drawing
    titles = {box.title: box for box in drawing.boxes}
    assert {"stage2.1 … stage2.2 ×2", "stage2.0", "stage1.1 … stage1.2 ×2", "stage1.0"} <= set(titles)
    assert any(line.startswith("unlike stage2.2: with also Convolution") for line in titles["stage2.0"].details)


def test_two_blocks_that_differ_say_so_and_two_layers_of_a_sequential_do_not():
    record, _ = changed(0, lambda n: replace(n, name="SiluBackward0"), layers=2)
    titles, boxes = closed(record)
    assert titles == ["layers.1", "layers.0"]
    assert boxes["layers.0"].details[-1] == "unlike layers.1: without Gelu and with Silu"
    assert not any("unlike" in line for line in boxes["layers.1"].details)
    drawing = graph_view(capture_of_model("twice").record, depth=2).drawing
    assert not any("unlike" in line for box in (*drawing.boxes, *drawing.clusters) for line in box.details)


def test_numbered_names_fold_from_three():
    record = encoder(LAYERS)

    def renamed(stem, only=99):
        nodes = []
        for node in record.autograd_nodes:
            head, _, rest = node.module.partition(".")
            if head == "layers" and int(rest.split(".")[0]) < only:
                node = replace(node, module=f"{head}.{stem}{rest}")  # noqa: PLW2901  # the same node, renamed
            nodes.append(node)
        return replace(record, autograd_nodes=tuple(nodes))

    assert closed(renamed("block"))[0] == ["layers.block0 … layers.block6 ×7"]
    assert len(closed(renamed("block", 2))[0]) == 3
    assert [box.times for box in closed(renamed("block", 3))[1].values()] == [4, 3]
    assert list(closed(renamed("block", 3))[1]) == ["layers.3 … layers.6 ×4", "block0 … block2 ×3"]


def test_blocks_between_which_a_gradient_takes_a_way_around_do_not_fold():
    """Two blocks that are built alike, and a third module through which a gradient goes from one to the other."""
    b = records.Backward()
    b.node("GraphRoot", (0, 1, 0), (1, 3, 0), kind="graph_root", inputs=0)
    b.node("SinBackward0", (0, 2, 0))
    b.node("CosBackward0", (0, 4, 0))
    b.node("SinBackward0", (0, 5, 0))
    b.node("NegBackward0", (0, 5, 0))
    b.node("CosBackward0", (0, 6, 0))
    b.leaf("w")
    modules = {1: "blocks.1", 2: "blocks.1", 3: "blocks.0", 4: "blocks.bridge", 5: "blocks.0"}

    def drawn(record):
        nodes = [replace(n, module=modules.get(n.number, ""), module_class="M") for n in record.autograd_nodes]
        record = replace(record, autograd_nodes=tuple(nodes))
        drawing = graph_view(record, depth=2).drawing
        check(record, drawing)
        assert not any(arrow.back for arrow in drawing.arrows)
        return {box.title for box in drawing.boxes}

    record = b.record()
    assert {"blocks.0", "blocks.1", "bridge"} <= drawn(record)
    around = {2: (Edge(0, 5, 0),), 4: (Edge(0, 6, 0),)}  # without that way they do
    nodes = [replace(n, edges=around.get(n.number, n.edges)) for n in record.autograd_nodes]
    assert {"blocks.0 … blocks.1 ×2", "bridge"} <= drawn(replace(record, autograd_nodes=tuple(nodes)))


def test_the_order_of_accumulations_does_not_matter():
    """The engine runs them when it likes: in one block, weight and bias may change places."""
    record = encoder(2)
    tree = module_tree(record)
    structure = Structure(tree)
    todo, blocks = [tree.root], []
    while todo:
        part = todo.pop()
        blocks += [part] if part.name in {"layers.0", "layers.1"} and not part.own else []
        todo += part.children
    one, two = blocks
    assert structure.signature(one) == structure.signature(two)
    names = [[record.by_number[n].name for n in structure.order(part)] for part in blocks]
    assert names[0] == names[1]
    leaf = [
        record.leaves[record.by_number[n].leaf].names[0]
        for n in structure.order(one)
        if record.by_number[n].leaf is not None
    ]
    other = [
        record.leaves[record.by_number[n].leaf].names[0]
        for n in structure.order(two)
        if record.by_number[n].leaf is not None
    ]
    assert [name.split(".", 2)[2] for name in leaf] == [name.split(".", 2)[2] for name in other]


def test_parts_of_a_block_are_those_that_it_would_be_cut_into_itself():
    structure = Structure(module_tree(encoder(LAYERS)))
    (stack,) = structure.tree.named("layers")
    head, *others = stack.modules

    def described(groups):
        return [(group.key, group.own, group.cls, group.part, group.parts, group.nodes) for group in groups]

    assert any(group.own for group in head.children)
    for other in others:
        assert described(structure.children(other, head)) == described(other.children)
        assert all(group.parent is other for group in structure.children(other, head))
