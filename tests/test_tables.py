import math
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from cabw_viz.record.comparison import Comparison, Element, GradientComparison
from cabw_viz.record.kinds import GOOD, SEVERITY
from cabw_viz.record.model import BackwardCall, Baked, Event, LiftedUse, Touch
from cabw_viz.record.results import Results
from cabw_viz.views.parity_table import parity_frame, parity_styler, parity_text
from cabw_viz.views.tables import event_frame, node_frame, touch_frame
from tests import records

NAN = math.nan
ROWS = (
    GradientComparison("0.weight", "bitwise", 0.0, 0.0, (8, 4), "torch.float32", 32),
    GradientComparison("0.bias", "mismatch", 1e-3, 1.234e-3, (8,), "torch.float32", 8, 3, "largest at (3,)"),
    GradientComparison("重み", "missing", None, None, (), "torch.bfloat16"),
    GradientComparison("norm", "within_tolerance", 1e-9, 2e-8, (2,), "torch.bfloat16", 2),
    GradientComparison("head", "nonfinite", NAN, NAN, (2,), "torch.bfloat16", 2, 1, "nan in the candidate"),
)
COMPARISON = Comparison(
    "your own eager run",
    "the captured graph, run again",
    ROWS,
    (("float32", 1.3e-6, 1e-5), ("bfloat16", 1.6e-2, 1e-5)),
    ("2 hooks ran again",),
)
NOTHING = Comparison("your own eager run", "the captured graph, run again", ())

TEXT = """\
candidate: the captured graph, run again
reference: your own eager run
tolerance: float32 rtol=1.3e-06 atol=1e-05
tolerance: bfloat16 rtol=0.016 atol=1e-05
note: 2 hooks ran again

parameter  verdict             max abs err  max rel err  outside  shape   dtype     note
0.weight   ✓ bitwise                     0            0           (8, 4)  float32
0.bias     ✗ mismatch             1.00e-03     1.23e-03   3 of 8  (8,)    float32   largest at (3,)
重み       ∅ missing                     -            -           ()      bfloat16
norm       ≈ within_tolerance     1.00e-09     2.00e-08           (2,)    bfloat16
head       ∞ nonfinite                   -            -   1 of 2  (2,)    bfloat16  nan in the candidate

3 of 5 gradients differ, worst head: 1 bitwise, 1 within_tolerance, 1 mismatch, 1 missing, 1 nonfinite."""


def test_node_frame():
    frame = node_frame(records.hooked())
    assert frame.index.name == "number"
    assert list(frame.index) == list(range(9))
    columns = ["name", "kind", "inputs", "outputs", "parameter", "hooks", "graph_nodes", "to", "lifted", "baked"]
    assert list(frame.columns) == [*columns, "module", "line", "backward_of", "saved_bytes"]
    assert frame.loc[5].to_dict() == {
        "name": "AddmmBackward0",
        "kind": "builtin",
        "inputs": 1,
        "outputs": 3,
        "parameter": None,
        "hooks": "post_hook log_outputs, pre_hook clip, tensor_pre_hook double",
        "graph_nodes": 11,  # two sums, three hooks, the call, its check, four results picked
        "to": (8, 6),
        "lifted": "",
        "baked": "",
        "module": None,
        "line": None,
        "backward_of": None,
        "saved_bytes": 0,
    }
    assert frame[frame.kind == "accumulate_grad"].parameter.to_dict() == {7: "lin.weight = tied.weight", 8: "lin.bias"}
    assert frame.parameter.notna().sum() == 2


def test_node_frame_counts_the_graph_nodes_of_the_record():
    record = records.copy_slices()
    owners = [node.autograd_node for node in record.graph_nodes]
    assert node_frame(record).graph_nodes.to_dict() == {n.number: owners.count(n.number) for n in record.autograd_nodes}


def test_node_frame_shows_metadata():
    record = records.copy_slices()
    uses = (LiftedUse(0, "self_sym_sizes[0]", 5), LiftedUse(1, "self_sym_sizes[1]", 3), LiftedUse(2, "numel", 15))
    constants = (
        Baked("scalar", "2.0", "exponent"),
        Baked("device", "cpu", "gradient 0"),
        Baked("dtype", "torch.float32", "gradient 0"),
    )
    nodes = (replace(record.autograd_nodes[0], lifted=uses, baked=constants), *record.autograd_nodes[1:])
    row = node_frame(replace(record, autograd_nodes=nodes)).loc[0]
    assert row.lifted == "self_sym_sizes = [5, 3] (sizes[0], sizes[1]); numel = 15 (sizes[2])"
    assert row.baked == "exponent = 2.0; gradient 0 = cpu, torch.float32"


def test_touch_frame():
    record = records.hooked()
    node = record.by_number[5]
    execution = Touch("execution", "size", 5, node.graph_nodes[-1], "kernel", "C++", 3)
    graph_pass = Touch("graph_pass", "val", None, None, "pass", "mine.py:7")
    frame = touch_frame(replace(record, touches=(graph_pass,)), Results(execution=(execution,)))
    assert list(frame.columns) == ["phase", "attribute", "autograd_node", "name", "node", "by", "where", "count"]
    graph_node = record.graph_nodes[node.graph_nodes[-1]].name
    assert frame.loc[1].to_list() == ["execution", "size", 5, "AddmmBackward0", graph_node, "kernel", "C++", 3]
    assert frame.loc[0, ["name", "node"]].to_list() == [None, None]
    assert frame.autograd_node.isna().to_list() == [True, False]
    assert frame.dtypes["autograd_node"] == "Int64"
    assert touch_frame(record).empty


def test_event_frame():
    call = BackwardCall(0, "backward", "train.py:12")
    frame = event_frame(
        [
            Event(call, "captured", capture=0, seconds=0.5),
            Event(BackwardCall(None, "grad", "hook.py:3"), "bypassed", "another backward is in flight", seconds=0.1),
        ]
    )
    assert list(frame.columns) == ["call", "function", "where", "outcome", "reason", "capture", "seconds"]
    assert frame.capture.dtype == frame.call.dtype == "Int64"  # whole numbers, though one is missing
    assert frame.loc[0].tolist() == [0, "backward", "train.py:12", "captured", "", 0, 0.5]
    assert frame.capture.isna().tolist() == frame.call.isna().tolist() == [False, True]
    assert frame.loc[1, "reason"] == "another backward is in flight"


def test_parity_frame():
    frame = parity_frame(COMPARISON)
    expected = [
        "parameter",
        "verdict",
        "max_abs_err",
        "max_rel_err",
        "shape",
        "dtype",
        "elements",
        "mismatched",
        "note",
        "reference_err",
        "candidate_err",
        "first",
        "reference",
        "candidate",
    ]
    assert list(frame.columns) == expected
    assert frame.loc[1].tolist()[:9] == [
        "0.bias",
        "mismatch",
        1e-3,
        1.234e-3,
        (8,),
        "torch.float32",
        8,
        3,
        "largest at (3,)",
    ]
    assert frame.max_abs_err.isna().tolist() == [False, False, True, False, True]
    assert frame.loc[0, "shape"] == (8, 4)
    assert frame.reference_err.isna().all()
    assert frame.loc[1, "first"] is None


def test_parity_frame_has_what_was_measured_beside():
    row = replace(
        ROWS[1],
        reference_err=1e-7,
        candidate_err=1.2e-3,
        first=Element((3,), 0.5, 0.5000001),
        measures=(("cosine", 0.25), ("ulp", 3.0)),
    )
    comparison = replace(COMPARISON, rows=(ROWS[0], row))
    frame = parity_frame(comparison)
    assert list(frame.columns[-2:]) == ["cosine", "ulp"]
    assert frame.loc[1].tolist()[9:] == [1e-7, 1.2e-3, (3,), 0.5, 0.5000001, 0.25, 3.0]
    assert frame.loc[0, ["cosine", "ulp"]].isna().all()
    for shown in (parity_text(comparison), parity_styler(comparison).to_html()):
        assert "reference err" in shown
        assert "[3]: 0.5 | 0.5000001" in shown  # as many digits as tell the two apart
        assert "cosine" in shown


@pytest.mark.parametrize(
    ("empty", "full"),
    [
        (event_frame([]), event_frame([Event(records.CALL, "captured", capture=0)])),
        (parity_frame(NOTHING), parity_frame(COMPARISON)),
    ],
)
def test_empty_frames_have_the_columns_and_types_of_full_ones(empty, full):
    assert len(empty) == 0
    assert empty.dtypes.to_dict() == full.dtypes.to_dict()


def test_parity_text():
    assert parity_text(COMPARISON) == TEXT
    assert parity_text(NOTHING) == (
        "candidate: the captured graph, run again\nreference: your own eager run\n\n"
        "No gradients were compared, so nothing is shown."
    )


def test_parity_text_keeps_hostile_names_in_their_line():
    rows = tuple(GradientComparison(name, "bitwise", 0.0, 0.0, (2,), "float32", note=name) for name in records.HOSTILE)
    text = parity_text(Comparison("a", "b\nc", rows, notes=("d\x1b[31m",)))
    assert all(char == "\n" or char.isprintable() or char in "\u2068\u2069" for char in text)
    assert len(text.splitlines()) == 3 + 1 + 1 + len(rows) + 1 + 1  # head, blank, headings, rows, blank, outcome


class Table(HTMLParser):
    """The tags and the cells of an HTML text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells, self.classes, self.inside = set(), [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.inside = tag == "td"
        if self.inside:
            self.cells.append("")
            self.classes.append(dict(attrs)["class"].split())

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.cells[-1] += data


def test_the_coloured_table_tells_verdicts_by_mark_and_colour():
    rows = [GradientComparison(verdict, verdict, 0.0, 0.0, (2,), "torch.float32") for verdict in SEVERITY]
    table = Table(parity_styler(Comparison("a", "b", tuple(rows))).to_html())
    shown, classes = table.cells[1::7], table.classes[1::7]
    assert [text.split(" ")[1] for text in shown] == list(SEVERITY)
    assert len({text.split(" ")[0] for text in shown}) == len(SEVERITY)
    for verdict, names in zip(SEVERITY, classes, strict=True):
        assert (f"cabw-{verdict}" if verdict in GOOD else "cabw-bad") in names


def test_the_coloured_table_shows_hostile_names_as_text():
    rows = tuple(GradientComparison(name, "bitwise", 0.0, 0.0, (2,), "x", note=name) for name in records.HOSTILE)
    table = Table(parity_styler(Comparison("a", "b", rows)).to_html())
    assert table.tags == {"style", "table", "thead", "tbody", "tr", "th", "td"}
    assert table.cells[0] == records.HOSTILE[0]
    assert table.cells[6] == records.HOSTILE[0]
    assert max(map(len, table.cells)) <= 122


def test_the_coloured_table_has_the_same_bytes_each_time_and_no_colour_of_its_own_for_text():
    pages = [parity_styler(COMPARISON).to_html() for _ in range(2)]
    assert pages[0] == pages[1]
    assert " color:" not in pages[0]  # the theme's stays, light or dark
    assert "mathjax_ignore" in pages[0]


def test_the_coloured_table_of_nothing_has_headings():
    table = parity_styler(NOTHING).to_html()
    assert "max rel err" in table
    assert Table(table).cells == []
