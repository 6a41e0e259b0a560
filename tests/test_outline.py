import re
import time
from dataclasses import replace

from cabw_viz.record.model import BackwardCall, Event, Failure, Leaf
from cabw_viz.record.source_line import SourceLine
from cabw_viz.views.outline import outline, outline_session
from tests import records

HOOKED = """\
backward at train.py:12, run in eager, torch 2.13.0
9 autograd nodes, 72 graph nodes (50 of them plumbing), 7 lifted inputs, 6 lifted sizes, 5 hooks, 1 gradient sum
◆ graph root  ■ built-in node  ► accumulates into .grad

#0 ◆ GraphRoot                                → #1
#1 ■ SumBackward0                             → #2
#2 ■ AddBackward0                             → #3, #5
#3 ■ MulBackward0                             → #5, #4
#4 ■ SigmoidBackward0                         → #5
#5 ■ AddmmBackward0                           → #8, #6  ⊕ sums 3 gradients
     ↪ tensor_pre_hook double at train.py:21
     ↪ pre_hook clip at train.py:22
     ↪ post_hook log_outputs at train.py:31
#6 ■ TBackward0                               → #7
#7 ► AccumulateGrad lin.weight = tied.weight
     ↪ post_acc_grad_hook step at train.py:40
#8 ► AccumulateGrad lin.bias
     ↪ tensor_pre_hook <C++>"""

FAILED = """\
 #4 ► AccumulateGrad 2.weight
 #5 ■ ReluBackward0            → #6
      ✗ The trace stopped: NotImplementedError at ReluBackward0 (#5): no <fake> for this & that
 #6 ■ AddmmBackward0           → #10, #7  (not reached)
 #7 ■ TBackward0               → #8  (not reached)
 #8 ► AccumulateGrad 0.weight  (not reached)
 #9 ► AccumulateGrad 2.bias    (not reached)
#10 ► AccumulateGrad 0.bias    (not reached)"""


PLACED = """\
backward at train.py:12, run in eager, torch 2.13.0
9 autograd nodes, 72 graph nodes (50 of them plumbing), 7 lifted inputs, 6 lifted sizes, 5 hooks, 1 gradient sum
◆ graph root  ■ built-in node  ► accumulates into .grad

#0 ◆ GraphRoot                                                                             → #1
#1 ■ SumBackward0                                                             train.py:12  → #2
#2 ■ AddBackward0                             (Net)                           net.py:30    → #3, #5
#3 ■ MulBackward0                             act, call 2                     net.py:31    → #5, #4
#4 ■ SigmoidBackward0                         …11.attention.self.query.dense               → #5
#5 ■ AddmmBackward0                           lin                             net.py:29    → #8, #6  ⊕ sums 3 gradients
     ↪ tensor_pre_hook double at train.py:21
     ↪ pre_hook clip at train.py:22
     ↪ post_hook log_outputs at train.py:31
#6 ■ TBackward0                               lin                             net.py:29    → #7
#7 ► AccumulateGrad lin.weight = tied.weight
     ↪ post_acc_grad_hook step at train.py:40
#8 ► AccumulateGrad lin.bias
     ↪ tensor_pre_hook <C++>"""


def placed():
    """`records.hooked()` with what provenance knows of some of its nodes."""
    record = records.hooked()
    origins = {
        1: {"line": SourceLine("/home/ada/train.py", 12)},
        2: {"module_class": "Net", "line": SourceLine("/home/ada/net.py", 30)},
        3: {"module": "act", "module_class": "GELU", "visit": 1, "line": SourceLine("/home/ada/net.py", 31)},
        4: {"module": "encoder.layers.11.attention.self.query.dense", "module_class": "Linear"},
        5: {"module": "lin", "module_class": "Linear", "line": SourceLine("/home/ada/net.py", 29)},
        6: {"module": "lin", "module_class": "Linear", "line": SourceLine("/home/ada/net.py", 29)},
        7: {"module": "lin", "module_class": "Linear"},
    }
    nodes = tuple(replace(node, **origins.get(node.number, {})) for node in record.autograd_nodes)
    return replace(record, autograd_nodes=nodes)


def test_sums_hooks_and_tied_parameters():
    assert outline(records.hooked()) == HOOKED


def test_modules_and_lines_stand_in_columns():
    assert outline(placed()) == PLACED


def test_why_there_are_no_lines_stands_at_the_head():
    text = outline(replace(records.mlp(), lines_off="something was compiled"))
    assert text.splitlines()[2] == "no forward lines: something was compiled"


def test_hostile_modules_and_lines_stay_in_their_columns():
    record = records.hostile()
    nodes = tuple(
        replace(node, module=name, module_class="M", line=SourceLine(name, 1))
        for node, name in zip(record.autograd_nodes[1:], records.HOSTILE * 2, strict=True)
    )
    text = outline(replace(record, autograd_nodes=(record.autograd_nodes[0], *nodes)))
    assert all(char == "\n" or char.isprintable() or char in "\u2068\u2069" for char in text)
    assert max(map(len, text.splitlines())) < 300


def test_what_is_inside_a_node_stands_under_it():
    text = outline(records.copy_slices())
    assert "#2 ▼ CopySlices        → #4, #3\n     prologue, CopyBackwards, epilogue\n" in text
    assert text.endswith("#5 ► AccumulateGrad w  ⊕ sums 2 gradients")
    text = outline(records.kinds())
    assert "#2 ★ CompiledFunctionBackward      → #3, #4\n     3 ops of a compiled region\n" in text


def test_a_failure_stands_at_its_place():
    assert outline(records.failed()).endswith(FAILED)


def test_a_failure_outside_of_any_node_stands_at_the_head():
    record = replace(records.failed(), failure=Failure("RuntimeError", "nested"))
    assert outline(record).splitlines()[2] == "✗ The trace stopped: RuntimeError: nested"
    assert "not reached" not in outline(record)


def test_nothing_known_but_the_failure():
    record = replace(records.failed(), autograd_nodes=(), graph_nodes=(), inputs=(), sizes=(), leaves=())
    assert outline(record).splitlines()[1].startswith("0 autograd nodes, 0 graph nodes (0 of them plumbing)")
    assert "The trace stopped: NotImplementedError at ReluBackward0 (#5)" in outline(record)


def test_returned_gradients():
    record = records.mlp()
    h = Leaf(("h",), (3, 8), "float32", autograd_node=5, input=0, output=0)
    leaves = (replace(record.leaves[0], output=1), *record.leaves[1:], h)
    text = outline(replace(record, leaves=leaves))
    assert " #4 ► AccumulateGrad 2.weight\n      ◁ returned as result 1\n" in text
    assert " #5 ■ ReluBackward0            → #6\n      ◁ the gradient of h, returned as result 0\n" in text


def test_sums_name_the_input_where_there_are_several():
    b = records.Backward()
    b.node("GraphRoot", (0, 1, 0), kind="graph_root", inputs=0)
    b.node("AddBackward0", (0, 2, 0), (1, 2, 1))
    b.node("MulBackward0", (0, 3, 1), (1, 3, 1))
    b.node("SplitBackward0", inputs=2)
    b.nodes[1] = replace(b.nodes[1], edges=(*b.nodes[1].edges, records.Edge(2, 3, 0)))
    assert "⊕ sums 2 gradients of input 1" in outline(b.record()).splitlines()[-1]


def test_long_outlines_are_shortened_in_the_middle():
    record = records.chain(900)
    lines = outline(record).splitlines()[4:]
    numbers = [int(found.group(1)) for line in lines if (found := re.match(r" *#(\d+)", line))]
    assert numbers == [*range(60), *range(882, 902)]
    assert lines[60] == "     … 822 more"
    full = outline(record, full=True).splitlines()[4:]
    assert [int(re.match(r" *#(\d+)", line).group(1)) for line in full] == list(range(902))


def test_shortened_outlines_show_the_failure_and_never_hide_a_single_node():
    record = replace(records.chain(900), failure=Failure("ValueError", "no", 450, "SinBackward0"))
    lines = outline(record).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("#450"))
    assert lines[at + 1] == "       ✗ The trace stopped: ValueError at SinBackward0 (#450): no"
    assert [line.strip() for line in lines if "more" in line] == ["… 385 more", "… 426 more"]
    assert "more" not in outline(records.chain(79))  # 81 nodes, 80 of them shown


def test_hostile_names_stay_in_their_line():
    text = outline(records.hostile())
    assert all(char == "\n" or char.isprintable() or char in "\u2068\u2069" for char in text)
    numbers = [int(found) for found in re.findall(r"^ *#(\d+)", text, re.MULTILINE)]
    assert numbers == list(range(1 + 2 * len(records.HOSTILE)))
    assert max(map(len, text.splitlines())) < 200
    for line in text.splitlines():  # what turns the direction of the text is kept to itself
        assert line.count("\u2068") == line.count("\u2069") == line.count("שלום")


def test_sessions():
    made = [
        Event(BackwardCall(0, "backward", "/home/ada/train.py:12"), "captured", capture=0),
        Event(BackwardCall(1, "backward", "/home/ada/train.py:12"), "cache_hit", capture=0),
        Event(BackwardCall(2, "grad", "/home/ada/train.py:20"), "failed", "NotImplementedError: no\nfake", capture=1),
        Event(BackwardCall(None, "backward", "hook.py:3"), "bypassed", "another backward is in flight"),
    ]
    assert outline_session(made, [records.mlp(), records.failed()]) == (
        "4 backward calls: 1 captured, 1 cache_hit, 1 failed, 1 bypassed\n"
        "  0  backward at train.py:12  captured  capture 0: 11 autograd nodes, 64 graph nodes\n"
        "  1  backward at train.py:12  cache_hit of capture 0\n"
        "  2  grad at train.py:20  failed  capture 1: 11 autograd nodes, 45 graph nodes"
        "  NotImplementedError: no\\nfake\n"
        "  -  backward at hook.py:3  bypassed  another backward is in flight"
    )
    assert outline_session([], []) == "0 backward calls: no backward ran in this block"


def test_a_deep_backward_is_outlined_in_linear_time():
    record = records.chain(10_000)
    start = time.perf_counter()
    assert outline(record, full=True).count("SinBackward0") == 10_000
    assert time.perf_counter() - start < 5  # 0.2 s here
