"""DOT text, read back by `dot` itself, against the record it was made of."""

import base64
import html
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cabw_viz.analysis.drawing import Box, Drawing
from cabw_viz.errors import CabwError
from cabw_viz.record.kinds import PLUMBING
from cabw_viz.record.model import Failure, Leaf
from cabw_viz.views.dot import dot_source
from cabw_viz.views.palette import FAINT, LOOKS
from cabw_viz.views.render import MAX_BOXES, GraphView, graph_view, run_dot
from tests import records

NODE = re.compile(r"n\d+$")


def run(source, format_):
    done = subprocess.run(["dot", f"-T{format_}"], input=source.encode(), capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout.decode()


class Parsed:
    """A graph as Graphviz understands its DOT text."""

    def __init__(self, source):
        found = json.loads(run(source, "dot_json"))
        self.clusters = {o["name"]: o for o in found.get("objects", []) if "nodes" in o or "subgraphs" in o}
        self.nodes = {o["_gvid"]: o["name"] for o in found.get("objects", []) if o["name"] not in self.clusters}
        self.attributes = {o["name"]: o for o in found.get("objects", [])}
        self.edges = Counter((self.nodes[e["tail"]], self.nodes[e["head"]]) for e in found.get("edges", []))

    def inside(self, cluster):
        return {self.nodes[node] for node in self.clusters[cluster]["nodes"]}

    def into(self, node):
        return sum(count for (_, head), count in self.edges.items() if head == node)

    def leads(self, is_stop):
        """Pairs of stops between which a path leads over no other stop; the parts of CopySlices are one."""
        after = {}
        for edge in self.edges:
            tail, head = (re.sub("_(prologue|epilogue)$", "", name) for name in edge)
            after.setdefault(tail, []).append(head)
        pairs = set()
        for stop in filter(is_stop, self.nodes.values()):
            todo = list(after.get(stop, []))
            while todo:
                node = todo.pop()
                if is_stop(node):
                    pairs.add((stop, node))
                else:
                    todo += after.get(node, [])
        return pairs


@pytest.fixture(params=[*records.SAMPLES])
def record(request):
    return records.SAMPLES[request.param]()


@pytest.mark.dot
def test_autograd_level_has_the_nodes_and_edges_of_the_record(record):
    parsed = Parsed(graph_view(record).source)
    assert {n for n in parsed.nodes.values() if NODE.match(n)} == {f"n{n.number}" for n in record.autograd_nodes}
    edges = {(f"n{n.number}", f"n{e.target}") for n in record.autograd_nodes for e in n.edges}
    assert {(a, b) for a, b in parsed.leads(NODE.match) if a != b} == edges
    sums = Counter((e.target, e.input) for n in record.autograd_nodes for e in n.edges)
    drawn = {name: parsed.into(name) for name in parsed.nodes.values() if "_sum_" in name}
    assert drawn == {f"n{target}_sum_{index}": count for (target, index), count in sums.items() if count > 1}
    assert sum("_hook_" in name for name in parsed.nodes.values()) == sum(len(n.hooks) for n in record.autograd_nodes)


def sources_of(record, ordinal):
    """The graph nodes that compute something from which a node's arguments come, found the long way round."""
    found = set()
    for source in record.graph_nodes[ordinal].inputs:
        kind = record.graph_nodes[source].kind
        found |= sources_of(record, source) if kind == "getitem" else set() if kind in PLUMBING else {source}
    return found


@pytest.mark.dot
def test_fx_level_leads_through_the_folded_plumbing(record):
    parsed = Parsed(graph_view(record, "fx").source)
    shown = {n.ordinal for n in record.graph_nodes if n.kind not in PLUMBING}
    assert {n for n in parsed.nodes.values() if n.startswith("g")} == {f"g{ordinal}" for ordinal in shown}
    edges = {(f"g{source}", f"g{ordinal}") for ordinal in shown for source in sources_of(record, ordinal)}
    for node in record.autograd_nodes:  # a post-accumulate hook reads the leaf only; it is drawn after its accumulation
        edges |= {
            (f"g{node.graph_nodes[0]}", f"g{hook.graph_node}")
            for hook in node.hooks
            if hook.kind == "post_acc_grad_hook"
        }
    assert {edge for edge in parsed.edges if edge[1].startswith("g")} == edges
    for node in record.graph_nodes:
        if node.kind == "gradient_sum":
            assert parsed.into(f"g{node.ordinal}") == 2


@pytest.mark.dot
def test_fx_level_with_plumbing_is_the_whole_graph(record):
    parsed = Parsed(graph_view(record, "fx", plumbing=True).source)
    stopped = set() if record.failure is None else {f"n{record.failure.autograd_node}"}
    assert set(parsed.nodes.values()) == {f"g{n.ordinal}" for n in record.graph_nodes} | stopped
    edges = {(f"g{source}", f"g{n.ordinal}") for n in record.graph_nodes for source in n.inputs}
    into_stopped = {edge for edge in parsed.edges if edge[1] in stopped}
    assert set(parsed.edges) - into_stopped == edges


@pytest.mark.dot
def test_hooks_stand_in_the_order_in_which_they_run():
    parsed = Parsed(graph_view(records.hooked()).source)
    chain = ["n5_sum_0", "n5_hook_2", "n5_hook_1", "n5", "n5_hook_0"]  # tensor_pre_hook, pre_hook, node, post_hook
    assert all(parsed.edges[pair] == 1 for pair in pairwise(chain))
    assert {head for tail, head in parsed.edges if tail == "n5_hook_0"} == {"n8_hook_0", "n6"}
    assert {head for tail, head in parsed.edges if tail == "n7"} == {"n7_hook_0"}
    assert {tail for tail, head in parsed.edges if head == "n8"} == {"n8_hook_0"}


@pytest.mark.dot
def test_a_hook_on_one_of_several_gradients_stands_on_that_one():
    b = records.Backward()
    b.node("GraphRoot", (0, 1, 0), kind="graph_root", inputs=0)
    b.node("MulBackward0", (0, 3, 0), (1, 2, 0))
    b.node("NegBackward0", (0, 3, 1))
    b.node("SplitBackward0", (0, 4, 0), inputs=2)
    b.leaf("w")
    record = b.record()
    value = max(n.ordinal for n in record.graph_nodes if n.autograd_node == 2)  # what NegBackward0 hands on
    hook = records.GraphNode(
        len(record.graph_nodes), "call_hook", "call_function", "call_hook", "()", "hook", (value,), (), 3
    )
    on_second = records.Hook("tensor_pre_hook", "watch", "", hook.ordinal)
    nodes = [replace(n, hooks=(on_second,)) if n.number == 3 else n for n in record.autograd_nodes]
    record = replace(record, autograd_nodes=tuple(nodes), graph_nodes=(*record.graph_nodes, hook))
    parsed = Parsed(graph_view(record).source)
    assert {tail for tail, head in parsed.edges if head == "n3_hook_0"} == {"n2"}
    assert {tail for tail, head in parsed.edges if head == "n3"} == {"n1", "n3_hook_0"}


@pytest.mark.dot
def test_copy_slices_is_a_frame_with_three_parts():
    parsed = Parsed(graph_view(records.copy_slices()).source)
    assert set(parsed.clusters) == {"cluster_n2", "cluster_n4"}
    assert parsed.inside("cluster_n2") == {"n2_prologue", "n2", "n2_epilogue"}
    inner = {pair for pair in parsed.edges if set(pair) <= parsed.inside("cluster_n2")}
    assert inner == {("n2_prologue", "n2"), ("n2", "n2_epilogue"), ("n2_prologue", "n2_epilogue")}
    assert "CopyBackwards" in parsed.attributes["n2"]["label"]
    fx = Parsed(graph_view(records.copy_slices(), "fx").source)
    kinds = {records.copy_slices().graph_nodes[int(name[1:])].kind for name in fx.inside("cluster_n2")}
    assert kinds == {"copy_slices_prologue", "backward_call", "copy_slices_epilogue", "validate_outputs"}


@pytest.mark.dot
def test_all_arrows_point_down_in_a_loop_of_writes_to_views():
    b = records.Backward()
    b.node("GraphRoot", (0, 1, 0), kind="graph_root", inputs=0)
    rows = 12
    for row in range(rows):  # each write reads the row before, so that two ways lead to the next
        number = 1 + 4 * row
        b.node("CopySlices", (0, number + 4, 0), (1, number + 1, 0), kind="copy_slices")
        b.node("TanhBackward0", (0, number + 2, 0))
        b.node("MmBackward0", (0, number + 3, 0), (1, 2 + 4 * rows, 0))
        b.node("SelectBackward0", (0, number + 4, 0))
    b.node("ZerosBackward0")
    b.leaf("w")
    objects = json.loads(run(graph_view(b.record()).source, "json"))
    height = {o["_gvid"]: float(o["pos"].split(",")[1]) for o in objects["objects"] if "pos" in o}
    assert all(height[edge["tail"]] > height[edge["head"]] for edge in objects["edges"])


@pytest.mark.dot
def test_a_compiled_region_is_one_box_or_a_frame():
    assert "3 ops of a compiled region" in Parsed(graph_view(records.kinds()).source).attributes["n2"]["label"]
    assert len(Parsed(graph_view(records.kinds(), "fx").source).inside("cluster_n2")) == 4


@pytest.mark.dot
def test_lifted_inputs_are_named_where_they_are_read():
    parsed = Parsed(graph_view(records.mlp(), "fx").source)
    labels = [html.unescape(re.sub("<.*?>", "|", a["label"])) for n, a in parsed.attributes.items() if n[0] == "g"]
    addmm = next(label for label in labels if "Addmm" in label)
    assert "inputs[1] (3, 8)" in addmm
    assert "inputs[2] (8, 2)" in addmm


@pytest.mark.dot
def test_returned_gradients_have_boxes():
    record = records.mlp()
    h = Leaf(("h",), (3, 8), "float32", autograd_node=5, input=0, output=0)
    names = {node.name: node.ordinal for node in record.graph_nodes}
    output = replace(record.graph_nodes[-1], arguments="([getitem_22, None],)", inputs=(names["getitem_22"],))
    record = replace(record, leaves=(*record.leaves, h), graph_nodes=(*record.graph_nodes[:-1], output))
    parsed = Parsed(graph_view(record).source)
    assert parsed.edges["n2", "returned_0"] == parsed.edges["n2", "n5"] == 1
    fx = Parsed(graph_view(record, "fx").source)
    (source,) = sources_of(record, output.ordinal)
    assert fx.edges[f"g{source}", "returned_0"] == 1
    assert "h" in fx.attributes["returned_0"]["label"]


@pytest.mark.dot
def test_a_failed_trace_shows_where_it_stopped():
    parsed = Parsed(graph_view(records.failed()).source)
    assert "stopped here: NotImplementedError" in parsed.attributes["n5"]["label"]
    assert parsed.attributes["n5"]["color"] == "#b3370a"
    dashed = {name for name, a in parsed.attributes.items() if "dashed" in a.get("style", "")}
    assert dashed == {"n6", "n7", "n8", "n9", "n10"}
    fx = Parsed(graph_view(records.failed(), "fx").source)
    assert "stopped here" in fx.attributes["n5"]["label"]
    assert fx.into("n5") == 1


@pytest.mark.dot
@pytest.mark.parametrize("level", ["autograd", "fx"])
def test_a_failed_trace_of_which_little_is_known_is_drawn(level):
    bare = replace(records.failed(), graph_nodes=(), inputs=(), sizes=(), leaves=())
    bare = replace(bare, autograd_nodes=tuple(replace(n, graph_nodes=(), leaf=None) for n in bare.autograd_nodes))
    assert "n5" in Parsed(graph_view(bare, level).source).nodes.values()
    nothing = replace(bare, autograd_nodes=(), failure=Failure("RuntimeError", "at once"))
    assert "RuntimeError: at once" in graph_view(nothing, level).svg()


@pytest.mark.dot
def test_the_legend_has_only_the_kinds_that_occur():
    svg = graph_view(records.hooked()).svg()
    texts = [element.text for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}tspan")]
    words = {look.words for look in LOOKS.values()}
    assert words & set(texts) == {"graph root", "built-in node", "accumulates into .grad", "gradient sum", "hook"}


def test_no_two_kinds_share_a_mark():
    assert len({look.mark for look in LOOKS.values()}) == len(LOOKS)


def contrast(a, b):
    def luminance(color):
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    bright, dark = sorted([luminance(a), luminance(b)], reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_marks_and_text_can_be_read_on_their_boxes(look):
    assert contrast(look.color, look.tint) >= 4.5
    assert contrast(FAINT, look.tint) >= 4.5


def drawn(texts):
    """What `dot` draws into a box with each of these titles, and the tooltip that the browser will show."""
    boxes = tuple(
        Box(f"b{i}", "custom_function", text, (text,), tooltip=text, number=7) for i, text in enumerate(texts)
    )
    source = dot_source(Drawing("fx", texts[0], ("3 graph nodes",), boxes, (), problem=texts[0]))
    objects = json.loads(run(source, "json"))["objects"]
    labels = ["".join(op["text"] for op in o["_ldraw_"] if op["op"] == "T") for o in objects]
    root = ET.fromstring(run(source, "svg"))
    groups = [g for g in root.iter("{http://www.w3.org/2000/svg}g") if g.get("class") == "node"]
    links = [g.find(".//{http://www.w3.org/2000/svg}a") for g in groups]
    return labels, ["" if link is None else link.get("{http://www.w3.org/1999/xlink}title") for link in links]


def printable(text):
    return text.isprintable() and not text.endswith("Backward0")


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(printable)
NASTY = st.text(st.sampled_from("\\\"<>&;N GEnlr{}[]|/*#'=amplt"), min_size=1, max_size=60)


@pytest.mark.dot
@settings(max_examples=25, deadline=None)
@example(["]", "]]>", "a]", "[", "\\", "&", "<", ">", '"', "'", " ", "  ", "%", "-", "#", "{|}"])
@given(st.lists(NAMES | NASTY, min_size=1, max_size=12))
def test_any_printable_text_is_drawn_as_it_is(texts):
    labels, tooltips = drawn(texts)
    assert labels == [f"● {text}  #7 {text} " for text in texts]
    # dot writes the second of two blanks as one that does not collapse
    shown = [tooltip.replace("\N{NO-BREAK SPACE}", " ") for tooltip in tooltips]
    assert shown == [text.replace("\\", "\N{SET MINUS}") for text in texts]


@pytest.mark.dot
@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=80), min_size=1, max_size=12))
def test_any_text_at_all_can_be_drawn(texts):
    labels, _ = drawn(texts)
    assert len(labels) == len(texts)


@pytest.mark.dot
@pytest.mark.parametrize("char", ["x", '"', "&", "\\", "重", "\x00"])
def test_long_names_are_cut_in_the_box_and_kept_in_the_tooltip(char):
    (label,), (tooltip,) = drawn([char * 10_000])
    assert "…" in label
    assert len(label) < 150
    assert len(tooltip) > 2_900
    if char == "x":
        assert tooltip == char * 10_000


@pytest.mark.dot
def test_hostile_names_do_not_get_out_of_their_labels():
    view = graph_view(records.hostile())
    count = len(records.HOSTILE)
    assert len(Parsed(view.source).nodes) == 1 + 3 * count
    for element in ET.fromstring(view.svg()).iter():
        assert element.tag.rpartition("}")[2] in {
            *("svg", "g", "title", "polygon", "path", "text", "tspan", "a", "ellipse")
        }


def outputs_of_two_processes(code):
    """What a program prints, with two seeds of Python's hashes."""
    return [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            cwd=Path(__file__).parents[1],
        ).stdout
        for seed in ("1", "2")
    ]


@pytest.mark.parametrize("level", ["autograd", "fx"])
def test_the_same_record_gives_the_same_bytes_in_another_process(level):
    code = (
        "from tests import records; from cabw_viz.views.render import graph_view;"
        f"print(graph_view(records.hooked(), {level!r}).source)"
    )
    one, other = outputs_of_two_processes(code)
    assert one == other == (graph_view(records.hooked(), level).source + "\n").encode()


@pytest.mark.dot
@pytest.mark.parametrize(
    ("suffix", "beginning"), [(".svg", b"<svg"), (".pdf", b"%PDF"), (".png", b"\x89PNG"), (".dot", b"digraph")]
)
def test_save_goes_by_the_suffix(tmp_path, suffix, beginning):
    path = graph_view(records.mlp()).save(tmp_path / f"graph{suffix}")
    assert path == tmp_path / f"graph{suffix}"
    assert beginning in path.read_bytes()[:600]


def test_save_refuses_what_it_cannot_write(tmp_path):
    with pytest.raises(CabwError, match=r"(?s)'graph\.jpeg'.*\.svg, \.pdf, \.png, \.dot, \.gv"):
        graph_view(records.mlp()).save(tmp_path / "graph.jpeg")
    assert not list(tmp_path.iterdir())


def test_unknown_levels_are_refused():
    with pytest.raises(CabwError, match=r"(?s)level='nonsense'.*'module' or 'autograd' or 'fx' or 'aten'"):
        graph_view(records.mlp(), "nonsense")
    with pytest.raises(CabwError, match=r"(?s)plumbing=True.*level='fx'"):
        graph_view(records.mlp(), plumbing=True)


@pytest.mark.dot
def test_a_notebook_gets_a_picture():
    view = graph_view(records.mlp())
    bundle = view._repr_mimebundle_(include=None, exclude=None)
    picture = base64.b64decode(re.search('base64,([^"]+)', bundle["text/html"]).group(1))
    assert picture.decode() == view.svg()
    assert "<svg" not in bundle["text/html"]  # JupyterLab would take it out of a notebook that it does not trust
    assert view.svg() in view.html()
    linked = graph_view(records.mlp(), links="vscode://file/{file}:{line}")
    assert linked.svg() in linked._repr_mimebundle_()["text/html"]
    assert (
        bundle["text/plain"]
        == repr(view)
        == "<graph of backward at train.py:12 at level 'autograd': 11 nodes, 10 edges>"
    )


def test_without_dot_the_source_is_there_and_the_picture_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    view = graph_view(records.mlp())
    with pytest.raises(CabwError, match=r"(?s)`dot` was not found.*apt-get install.*conda install.*brew install"):
        view.svg()
    assert list(view._repr_mimebundle_()) == ["text/plain"]
    assert "apt-get install graphviz" in view.html()
    assert "apt-get install graphviz" in view._repr_mimebundle_()["text/plain"]
    assert view.save(tmp_path / "g.dot").read_text() == view.source


def fake_dot(folder, script):
    program = folder / "dot"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_dot_is_stopped_when_it_takes_too_long(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", fake_dot(tmp_path, "exec sleep 30"))
    start = time.perf_counter()
    with pytest.raises(CabwError, match=r"(?s)not done after 0\.2 seconds.*focus=.*level='module'"):
        GraphView(graph_view(records.mlp(), "fx").drawing, timeout=0.2).svg()
    assert time.perf_counter() - start < 5


def test_what_dot_complains_of_is_passed_on(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", fake_dot(tmp_path, "cat >/dev/null; echo 'no such renderer' >&2; exit 3"))
    with pytest.raises(CabwError, match="exit status 3: no such renderer"):
        run_dot("digraph {}", "svg")


def test_too_large_a_graph_has_a_source_and_no_picture():
    view = graph_view(records.chain(MAX_BOXES))
    with pytest.raises(CabwError, match=r"2,002 nodes(?s:.*)at most 2,000(?s:.*)save\('graph\.dot'\)") as caught:
        view.svg()
    assert "level='autograd'" not in caught.value.try_
    with pytest.raises(CabwError, match="level='autograd'"):
        graph_view(records.chain(MAX_BOXES), "fx").svg()
    assert f"n{MAX_BOXES}" in view.source
    assert "2,002 nodes" in view._repr_mimebundle_()["text/plain"]


@pytest.mark.parametrize("level", ["autograd", "fx"])
def test_a_deep_backward_is_written_in_linear_time(level):
    record = records.chain(10_000)  # 70,012 graph nodes
    start = time.perf_counter()
    assert graph_view(record, level).source.count("Backward0") >= 10_000
    assert time.perf_counter() - start < 10  # 1 s here
