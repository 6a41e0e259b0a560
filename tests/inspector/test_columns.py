"""What is packed for the browser is what the record says, in little room and little time."""

import gzip
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cabw_viz.analysis.module_tree import MAX_DEPTH
from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.record.divergence import Difference, Divergence, DivergenceRow, NonFinite, Range
from cabw_viz.record.model import BackwardCall, Baked, CaptureRecord, Event, LiftedUse, SavedTensor, Touch
from cabw_viz.record.results import NO_RESULTS, Results
from cabw_viz.record.source_line import SourceLine
from cabw_viz.views.inspector import columns, findings, sources
from cabw_viz.views.inspector.diverging import pack_divergence
from cabw_viz.views.inspector.page import inspector_page
from tests import records
from tests.inspector.blocks import audited, compared, lowered, results_of, timed, transformer
from tests.inspector.packed import unpack

EVERY = pytest.mark.parametrize("record", [make() for make in records.SAMPLES.values()], ids=list(records.SAMPLES))


@pytest.fixture(scope="module")
def large():
    return transformer(806)


@EVERY
def test_nodes_and_edges_are_those_of_the_record(record):
    part = unpack(columns.pack_graph(record, capture=3))
    names = [part.tables["names"][row] for row in part.columns["name"]]
    assert list(zip(part.columns["id"], names, strict=True)) == [(n.number, n.name) for n in record.autograd_nodes]
    ids = part.columns["id"]
    edges = {(ids[a], ids[b]) for a, b in zip(part.columns["edge_from"], part.columns["edge_to"], strict=True)}
    assert edges == {
        (n.number, e.target) for n in record.autograd_nodes for e in n.edges if e.target in record.by_number
    }
    assert part.facts["capture"] == 3
    leaves = [None if n.leaf is None else record.leaves[n.leaf].label or None for n in record.autograd_nodes]
    assert part.texts("parameter", "parameters") == leaves


@EVERY
def test_the_same_record_gives_the_same_bytes(record):
    for pack in (columns.pack_graph, findings.pack_touches, columns.pack_code):
        assert pack(record) == pack(replace(record))


@EVERY
def test_the_code_is_the_graph_without_its_plumbing(record):
    part = unpack(columns.pack_code(record))
    assert part.facts["lines"] == len(part.columns["line_node"]) == len(part.columns["reads_at"]) - 1
    lines = bytes(part.columns["text"]).decode().split("\n") if part.facts["lines"] else []
    assert len(lines) == part.facts["lines"]
    assert not any("getitem =" in line for line in lines)


def test_what_a_line_reads_is_found_behind_the_plumbing():
    part = unpack(columns.pack_code(records.mlp()))
    lines = bytes(part.columns["text"]).decode().split("\n")
    at = part.columns["reads_at"]
    reads = {
        line.split(" ")[0]: [lines[r].split(" ")[0] for r in part.columns["reads"][at[i] : at[i + 1]]]
        for i, line in enumerate(lines)
    }
    assert reads["validate_outputs_1"] == ["sumbackward0"]
    assert reads["addmmbackward0"] == ["validate_outputs_1"]


def test_metadata_hooks_saved_tensors_and_lines_are_packed():
    record = records.mlp()
    node = replace(
        record.autograd_nodes[2],
        lifted=(LiftedUse(4, "gradient 0, dimension 0", 2**40),),
        baked=(Baked("device", "cpu", "gradient 0"), Baked("scalar", "2.0", "alpha")),
        saved=(
            SavedTensor("mat1", (3, 8), "torch.float32", "cpu", 96, 0, 128, made_by=5),
            SavedTensor("mat2", (8, 2), "torch.float32", "cpu", 64, 1, 64, ("2.weight",)),
            SavedTensor("packed", packed=True),
        ),
        line=SourceLine("/home/ada/net.py", 12, "return self.b(x)"),
        module="b",
        module_class="Linear",
        visit=1,
        backward_of="TanhBackward0",
    )
    part = unpack(
        columns.pack_graph(
            replace(record, autograd_nodes=(*record.autograd_nodes[:2], node, *record.autograd_nodes[3:]))
        )
    )
    assert part.columns["lifted_value"] == [2**40]
    assert part.columns["lifted_at"][2:4] == [0, 1]
    assert [part.tables["baked_values"][row] for row in part.columns["baked_value"]] == ["cpu", "2.0"]
    assert part.columns["saved_bytes"] == [128, 64, 0]
    assert part.columns["saved_shared"] == [0, 1, 0]
    assert part.columns["saved_packed"] == [0, 0, 1]
    assert part.columns["saved_by"] == [6, 0, 0]
    assert part.texts("line", "lines")[2] == ["net.py:12", "/home/ada/net.py:12", "return self.b(x)"]
    assert modules_of(part)[2] == "b"
    assert part.columns["visit"][2] == 1
    assert part.texts("backward_of", "makers") == [
        None,
        None,
        "TanhBackward0",
        *[None] * (len(record.autograd_nodes) - 3),
    ]


def placed(record, modules):
    """The record with nodes in these modules, by number."""
    nodes = [
        replace(n, module=modules[n.number], module_class="Linear") if n.number in modules else n
        for n in record.autograd_nodes
    ]
    return replace(record, autograd_nodes=tuple(nodes))


def modules_of(part):
    """The path of each node's innermost group."""
    paths = []
    for row, parent in enumerate(part.columns["group_parent"]):
        name = part.tables["group_names"][part.columns["group_name"][row]]
        paths.append(f"{paths[parent]}.{name}" if paths and paths[parent] else name)
    return [paths[row] for row in part.columns["group"]]


def test_a_leaf_stands_in_its_module_if_a_node_was_made_there_or_around():
    record = records.mlp()  # leaves: 5 is 2.weight, 8 is 0.weight, 9 is 2.bias, 10 is 0.bias
    labels = {n.number: record.leaves[n.leaf].label for n in record.autograd_nodes if n.leaf is not None}
    inside = [n for n, label in labels.items() if label.startswith("0.")]

    def homes(modules):
        return modules_of(unpack(columns.pack_graph(placed(record, modules))))

    home = homes({6: "0", inside[0]: "0"})
    assert [home[n] for n in inside] == ["0", "0"]  # one by its module, the other by its name
    assert [home[n] for n in labels if n not in inside] == ["", ""]
    # Nothing of a module ran: its leaves stand where they are used.
    assert [home for home in homes(dict.fromkeys(inside, "0")) if home] == []
    # Only what is around it ran: the leaf stands in its own module, in that.
    assert homes({6: "net", inside[0]: "net.deep.0"})[inside[0]] == "net.deep.0"


def test_modules_of_a_thousand_levels_are_cut():
    record = records.mlp()
    nodes = (replace(record.autograd_nodes[0], module=".".join("a" * 1000)), *record.autograd_nodes[1:])
    part = unpack(columns.pack_graph(replace(record, autograd_nodes=nodes)))
    assert modules_of(part)[0].count(".") == MAX_DEPTH - 1


def test_touches_keep_phase_reader_and_place():
    touch = Touch("initial_trace", "size", 2, 6, "user", "train.py:4", 3)
    in_a_pass = Touch("graph_pass", "val", None, None, "pass", "fuse.py:1")
    part = unpack(
        findings.pack_touches(replace(records.mlp(), touches=(touch, in_a_pass), watched=("initial_trace",)), capture=1)
    )
    assert part.columns["touch_node"] == [3, 0]
    assert [part.tables["phases"][row] for row in part.columns["touch_phase"]] == ["initial_trace", "graph_pass"]
    assert part.columns["touch_count"] == [3, 1]
    assert part.facts == {"capture": 1, "watched": ["initial_trace"]}


def test_parity_keeps_what_does_not_exist_apart_from_zero():
    record = records.mlp()
    rows = (
        GradientComparison("2.weight", "bitwise", 0.0, 0.0, (2, 8), "torch.float32"),
        GradientComparison("0.weight", "missing", None, None, (8, 4), "torch.float32", note="only in eager"),
        GradientComparison("2.bias", "mismatch", 1e-300, 1e-300, (2,), "torch.float64"),
    )
    part = unpack(findings.pack_parity(record, Comparison("a", "b", rows), 2))
    assert part.columns["row_node"] == [5, 9, 10]
    errors = part.columns["row_rel"]
    assert errors[0] == 0
    assert math.isnan(errors[1])
    assert errors[2] == 1e-300
    assert findings.pack_parity(record, None) == b""


def test_a_divergence_is_packed_by_node_with_its_sums_and_hooks():
    record = records.mlp()
    same, off = Difference("bitwise", 0.0, 0.0), Difference("mismatch", 1e-4, 1e-3, "in double precision too")
    rows = (
        DivergenceRow(2, "builtin", "AddmmBackward0", into=same, out=same, own=same),
        DivergenceRow(5, "gradient_sum", "sum into ReluBackward0, input 0", into=same, out=off, own=off),
        DivergenceRow(5, "builtin", "ReluBackward0", into=off, out=Difference("missing"), own=same),
    )
    found = Divergence("a", "b", rows, (1,), (NonFinite("candidate", 2, (Range(-1.0, 2.0),), Range(0.0, math.inf)),))
    part = unpack(pack_divergence(record, found, 2))
    verdicts = part.texts("node_verdict", "verdicts")
    assert [verdicts[record.autograd_nodes.index(record.by_number[n])] for n in (2, 5)] == ["bitwise", "missing"]
    assert verdicts.count(None) == len(record.autograd_nodes) - 2
    assert part.columns["node_into"][5] == 1e-3
    assert part.columns["node_out"][5] == math.inf
    assert math.isnan(part.columns["node_out"][0])
    assert part.columns["culprit_node"] == [6]
    assert part.tables["culprit_names"] == ["sum into ReluBackward0, input 0"]
    assert part.facts["first"] == 5
    assert part.facts["capture"] == 2
    (made,) = part.facts["nonfinite"]
    assert made[0] == 5
    assert "-1 to 2" in made[1]
    assert "inf" in made[1]
    assert pack_divergence(record, None) == b""


def test_times_are_packed_by_node():
    results = Results(node_seconds=timed(records.mlp()))
    part = unpack(findings.pack_times(results, 1))
    assert math.isnan(part.columns["seconds"][0])
    assert part.columns["seconds"][1:] == list(results.node_seconds[1:])
    assert findings.pack_times(NO_RESULTS) == b""


def test_the_lowered_graph_is_packed_as_the_captured_one_is():
    record = records.mlp()
    results = Results(lowered=lowered(record))
    part = unpack(columns.pack_lowered(record, results))
    lines = bytes(part.columns["text"]).decode().split("\n")
    assert lines[:2] == ["mm_1 = aten.mm.default(arg0_1, 2)", "view_2 = aten.view.default(mm_1, 2)"]
    assert part.columns["ordinal"] == [node.ordinal for node in results.lowered[1:]]
    assert part.columns["line_node"] == [node.autograd_node + 1 for node in results.lowered[1:]]
    assert part.columns["reads"] == list(range(len(lines) - 1))
    assert unpack(columns.pack_graph(record, results)).facts["lowered"] == len(results.lowered)
    assert columns.pack_lowered(record, NO_RESULTS) == b""


MODULE = """class Net:
    def forward(self, x):
        x = self.a(x)
\ty = self.b(x)

        return x + y
"""


def with_line(line):
    record = records.mlp()
    node = replace(record.autograd_nodes[2], line=line)
    return replace(record, autograd_nodes=(*record.autograd_nodes[:2], node, *record.autograd_nodes[3:]))


def packed_line(line, files=None):
    return unpack(columns.pack_graph(with_line(line), files=files)).tables["lines"][0]


def test_the_code_around_a_line_is_packed_while_its_file_is_there(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(MODULE)
    line = SourceLine(str(path), 3, "x = self.a(x)")
    _, _, text, first, around = packed_line(line)
    assert (text, first) == ("x = self.a(x)", 1)
    assert around[2] == "        x = self.a(x)"
    assert around[3] == "    y = self.b(x)"
    assert len(around) == 6
    # Changed since, gone, beyond the end, or not known: the line alone.
    assert len(packed_line(replace(line, text="x = other(x)"))) == 3
    assert len(packed_line(replace(line, line=99))) == 3
    assert len(packed_line(replace(line, file=str(tmp_path / "gone.py")))) == 3
    assert len(packed_line(replace(line, text=""))) == 3


def test_the_code_around_a_line_of_a_cell_is_read_from_the_cells_file(tmp_path):
    path = tmp_path / "1234.py"
    path.write_text(MODULE)
    place, full, _, first, around = packed_line(SourceLine("In[3]", 6, "return x + y"), {"In[3]": str(path)})
    assert (place, full, first) == ("In[3]:6", "In[3]:6", 3)
    assert around[-1].strip() == "return x + y"


def test_a_hostile_file_cannot_blow_up_the_page(tmp_path):
    path = tmp_path / "wide.py"
    path.write_text("\n".join("x" * 10_000 for _ in range(1000)))
    lines = [SourceLine(str(path), n, "x" * 10_000) for n in range(1, 1000)]
    record = records.chain(999)
    nodes = [replace(node, line=line) for node, line in zip(record.autograd_nodes, lines, strict=False)]
    tables = unpack(columns.pack_graph(replace(record, autograd_nodes=tuple(nodes)))).tables
    around = [row[4] for row in tables["lines"] if len(row) > 3]
    assert len(around) == sources.MOST
    assert max(len(text) for rows in around for text in rows) <= sources.WIDEST


def test_events_of_a_session_are_packed():
    call = BackwardCall(0, "backward", "/home/ada/train.py:3")
    events = [
        Event(call, "captured", "nothing captured before", 0, 0.5),
        Event(BackwardCall(None, "grad", ""), "bypassed", "made inside another backward"),
        Event(replace(call, index=2), "cache_hit", "", 0),
    ]
    part = unpack(findings.pack_session([records.mlp(), records.failed()], events))
    assert part.columns["event_call"] == [1, 0, 3]
    assert part.columns["event_capture"] == [1, 0, 1]
    assert part.texts("event_reason", "reasons") == ["nothing captured before", "made inside another backward", None]
    assert [capture["failed"] for capture in part.facts["captures"]] == [False, True]


def test_a_record_without_anything_is_packed():
    empty = CaptureRecord(records.CALL, "2.13.0", "eager", ())
    part = unpack(columns.pack_graph(empty))
    assert part.columns["id"] == part.columns["edge_from"] == []
    assert part.columns["hook_at"] == [0]
    assert unpack(columns.pack_code(empty)).facts["lines"] == 0
    assert unpack(findings.pack_touches(empty)).columns["touch_node"] == []


def test_names_of_any_kind_survive():
    record = records.hostile(("a\ud800b", *records.HOSTILE))
    part = unpack(columns.pack_graph(record))
    assert part.tables["parameters"][0] == "a\ud800b"
    columns.pack_code(record)
    inspector_page("\ud800", [(record, NO_RESULTS)])


def test_fifty_thousand_nodes_stay_within_the_limits(large):
    assert len(large.autograd_nodes) > 48_000
    results = Results(compared(large), execution=audited(large))
    sent = [columns.pack_graph(large), *findings.pack_results(large, results).values()]
    assert sum(map(len, sent)) <= 8e6
    assert sum(len(gzip.compress(part, 9)) for part in sent) <= 0.6e6
    assert len(inspector_page("large", [(large, results)])) <= 2e6


def test_a_page_of_twelve_blocks_is_small():
    record = transformer(12)
    assert len(inspector_page("twelve", [(record, Results(compared(record), execution=audited(record)))])) <= 0.4e6


BY_SIDE = {f"{side}_{what}" for side in ("in", "out") for what in ("at", "spec")}
"""Columns whose names the browser puts together: `${side}_at`."""


def test_the_browser_reads_all_that_is_packed():
    sources = Path(columns.__file__).parent.joinpath("src").rglob("*.js")
    words = set(re.findall(r"\w+", "\n".join(path.read_text("utf-8") for path in sources)))
    record = transformer(4)
    results = results_of(record)
    rows = (DivergenceRow(9, "builtin", "MulBackward0", own=Difference("mismatch", 1.0, 1.0)),)
    parts = [columns.pack_graph(record, results), columns.pack_code(record), findings.pack_session([record], [])]
    parts += findings.pack_results(record, replace(results, divergence=Divergence("a", "b", rows, (0,)))).values()
    for part in map(unpack, filter(None, parts)):
        assert {*part.facts, *part.tables, *part.columns} - words <= BY_SIDE
