"""Colours by figures, against the figures added up here."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabw_viz.analysis.coloring import bytes_text, colorize, seconds_text
from cabw_viz.analysis.drawing import Box, Drawing
from cabw_viz.errors import CabwError
from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.record.divergence import Difference, Divergence, DivergenceRow
from cabw_viz.record.options import COLORS
from cabw_viz.record.results import Results
from cabw_viz.views.palette import AMOUNT, ERROR, FAMILY_TONES, UNKNOWN_TONE, WORSE_TONE
from cabw_viz.views.render import graph_view
from tests import records
from tests.captures import capture_of
from tests.inspector.blocks import audited, timed, transformer
from tests.module_models import capture_of_model
from tests.test_dot import Parsed, contrast

LEVELS = ["module", "autograd", "fx"]


def figures(view):
    """The figure of each box, read back from its tooltip; steps beside it."""
    drawing = view.drawing
    return {
        box.id: (box.tooltip.rpartition(f"{drawing.measure}: ")[2], drawing.shades[box.shade].step)
        for box in drawing.boxes
        if box.shade is not None
    }


# ------------------------------------------------------------------------------------------------------------- families


def test_a_box_has_the_family_of_most_of_its_nodes_that_compute():
    record = transformer(2)
    drawing = graph_view(record, "module", color_by="family").drawing
    assert drawing.boxes
    for box in drawing.boxes:
        if not box.nodes:
            continue
        counts = Counter(by_hand(record.by_number[number]) for number in box.nodes)
        others = {family: count for family, count in counts.items() if family not in ("view", "parameter")}
        family = drawing.shades[box.shade].text
        assert counts[family] == max((others or counts).values())
        assert box.tooltip.endswith(f"family: {family}")


def by_hand(node):
    """The family of a node of a transformer, said otherwise than the package says it."""
    if node.kind == "accumulate_grad":
        return "parameter"
    if node.kind == "graph_root":
        return "loss"
    name = node.name.rstrip("0123456789").removesuffix("Backward")
    if name in ("Addmm", "Mm", "Bmm") or "Attention" in name:
        return "matmul"
    if "Norm" in name or "Softmax" in name:
        return "norm"
    if name in ("View", "UnsafeView", "Reshape", "T", "Transpose", "Clone", "Expand", "Split"):
        return "view"
    return "loss" if "Loss" in name or "Index" in name or "Embedding" in name else "pointwise"


# -------------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["tied", "residual", "rows"])
def test_bytes_are_those_of_storages_beside_parameters(name, level):
    record = capture_of_model(name).record
    view = graph_view(record, level, color_by="bytes")
    seen = figures(view)
    for box in view.drawing.boxes:
        if box.nodes:
            storages = {}
            for number in box.nodes:
                for tensor in record.by_number[number].saved:
                    if not tensor.names and not tensor.view_of and not tensor.packed:
                        key = tensor.storage if tensor.storage is not None else (number, tensor.field)
                        storages[key] = tensor.storage_bytes if tensor.storage is not None else tensor.bytes
            total = sum(storages.values())
            assert seen[box.id][0] == (bytes_text(total) if total else "none")
            assert (seen[box.id][1] == 0) == (total == 0)


def test_reads_are_added_up():
    record = transformer(3)
    results = Results(execution=audited(record))
    counts = Counter()
    for touch in (*record.touches, *results.execution):
        counts[touch.autograd_node] += touch.count
    view = graph_view(record, results=results, color_by="touches")
    seen = figures(view)
    for box in view.drawing.boxes:
        assert seen[box.id][0] == f"{sum(counts[n] for n in box.nodes):,}"
    assert view.drawing.measure == "metadata reads (initial trace, execution)"


def test_times_are_added_up():
    record = transformer(3)
    results = Results(node_seconds=timed(record))
    seconds = dict(zip([n.number for n in record.autograd_nodes], results.node_seconds, strict=True))
    view = graph_view(record, results=results, color_by="time")
    seen = figures(view)
    for box in view.drawing.boxes:
        known = [seconds[n] for n in box.nodes if seconds[n] is not None]
        assert seen[box.id][0] == (seconds_text(sum(known)) if known else "not timed")
    assert [shade.step for shade in view.drawing.shades][-1] == -1
    part = graph_view(record, results=results, color_by="time", focus="layers.1.mlp")
    assert any(figure[0] == "64 ms" for figure in figures(part).values())


def compared(record, **verdicts):
    rows = []
    for leaf in record.leaves:
        verdict, error = verdicts.get(leaf.names[0].replace(".", "_"), ("bitwise", 0.0))
        rows.append(GradientComparison(leaf.label, verdict, error, error, leaf.shape, leaf.dtype))
    return Comparison("a", "b", tuple(rows))


def test_parity_is_the_worst_of_the_parameters_in_a_box():
    record = capture_of_model("tied").record
    comparison = compared(
        record,
        layers_0_norm1_weight=("mismatch", 3e-3),
        layers_0_norm1_bias=("within_tolerance", 1e-7),
        layers_2_linear1_weight=("missing", None),
        layers_3_norm2_bias=("nonfinite", math.nan),
    )
    view = graph_view(record, depth=2, expand=["layers"], color_by="parity", results=Results(comparison))
    by_title = {box.title: box for box in view.drawing.boxes}
    seen = figures(view)
    assert seen[by_title["layers.0"].id] == ("3.0e-03", 5)
    assert seen[by_title["layers.1"].id] == ("the same to the last bit", 0)
    assert seen[by_title["layers.2"].id] == ("missing, not finite, or not comparable", 6)
    assert seen[by_title["layers.3"].id] == ("missing, not finite, or not comparable", 6)
    assert seen[by_title["GraphRoot"].id] == ("not compared", -1)
    tied = graph_view(record, "autograd", color_by="parity", results=Results(comparison))
    (box,) = [box for box in tied.drawing.boxes if "embed.weight" in box.title]
    assert figures(tied)[box.id][1] == 0


def test_divergence_colours_nodes():
    record = records.mlp()
    out = Difference("mismatch", 0.5, 0.25)
    rows = (
        DivergenceRow(2, "builtin", "AddmmBackward0", out=out),
        DivergenceRow(3, "hook", "h", out=Difference("mismatch", 9.0, 9.0)),
        DivergenceRow(5, "builtin", "ReluBackward0", out=Difference("bitwise", 0.0, 0.0)),
        DivergenceRow(6, "builtin", "AddmmBackward0"),
    )
    view = graph_view(record, color_by="parity", results=Results(None, Divergence("a", "b", rows)))
    seen = {int(name[1:]): figure for name, figure in figures(view).items()}
    assert seen[2] == ("2.5e-01", 5)
    assert seen[5] == ("the same to the last bit", 0)
    assert seen[3][1] == seen[6][1] == -1


@pytest.mark.parametrize(
    ("by", "change", "call"),
    [
        ("parity", {}, r"cap\.parity\(\) first"),
        ("time", {}, r"cap\.times\(\) first"),
        ("touches", {"watched": ()}, "tripwire=True"),
        ("bytes", {"autograd_nodes": ()}, "no saved tensors are known"),
    ],
)
def test_what_was_not_measured_is_said_with_the_call_that_does_it(by, change, call):
    with pytest.raises(CabwError, match=f"(?s)color_by='{by}'.*{call}"):
        graph_view(replace(capture_of_model("tied").record, **change), color_by=by)


def test_a_colour_that_is_none():
    with pytest.raises(CabwError, match=r"color_by='taste' is nothing(?s:.)*'kind' or 'family' or 'touches'"):
        graph_view(records.mlp(), color_by="taste")
    assert graph_view(records.mlp(), color_by="kind").source == graph_view(records.mlp()).source


def test_any_column_will_do():
    cap = capture_of_model("tied")
    column = cap.nodes["graph_nodes"]
    view = cap.graph(color_by=column)
    seen = figures(view)
    for box in view.drawing.boxes:
        total = float(column[list(box.nodes)].sum())
        assert seen[box.id][0] == (f"{total:,.4g}" if total else "0")
    assert view.drawing.measure == "graph_nodes"
    some = {0: 3, 2: math.nan, 3: None, 4: 0.0, 5: math.inf}
    view = cap.graph("autograd", color_by=some)
    seen = {int(name[1:]): figure for name, figure in figures(view).items()}
    assert (seen[0][0], seen[1], seen[2], seen[3]) == ("3", ("none given", -1), ("none given", -1), ("none given", -1))
    assert (seen[4], seen[5]) == (("0", 0), ("infinite", 6))


@pytest.mark.parametrize(
    ("given_", "match"),
    [
        ({99999: 1.0}, "a figure for 99999, which is no autograd node"),
        ({1: -1.0}, r"has -1\.0 for #1"),
        ({1: "x"}, "has 'x' for #1"),
        ({1: True}, "has True for #1"),
        (3, r"color_by=3 is nothing to colour by"),
        (["bytes"], r"color_by=\['bytes'\] is nothing to colour by"),
    ],
)
def test_figures_that_are_none(given_, match):
    with pytest.raises(CabwError, match=match):
        capture_of_model("tied").graph(color_by=given_)


def test_a_capture_knows_what_it_was_compared_with():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    cap = capture_of(model, lambda: model(torch.randn(4, 3)).sum())
    with pytest.raises(CabwError, match=r"cap\.parity\(\)"):
        cap.graph(color_by="parity")
    cap.parity()
    assert "the same to the last bit" in cap.graph(color_by="parity").source
    cap.times(repeats=1)
    assert cap.graph(color_by="time").drawing.measure == "time"


# ---------------------------------------------------------------------------------------------------------------- steps

FIGURES = st.lists(st.none() | st.just(0.0) | st.floats(1e-12, 1e12) | st.just(math.inf), min_size=1, max_size=30)


@given(FIGURES)
def test_steps_rise_with_the_figures_and_the_legend_has_them_all(values):
    boxes = tuple(Box(f"n{i}", "builtin", "x", nodes=(i,)) for i in range(len(values)))
    known = [(i, v) for i, v in enumerate(values) if v is not None]
    rows = tuple(
        DivergenceRow(i, "builtin", "x", out=Difference("mismatch", v, v if math.isfinite(v) else None))
        for i, v in known
    )
    drawing = Drawing("autograd", "x", (), (*boxes, Box("s", "gradient_sum", "+")), ())
    record = SimpleNamespace(leaves=(), is_traced=True)
    found = colorize(drawing, record, "parity", Results(None, Divergence("a", "b", rows)))
    steps = {i: found.shades[box.shade].step for i, box in enumerate(found.boxes[:-1])}
    assert found.boxes[-1].shade is None
    for i, value in enumerate(values):
        assert (steps[i] == -1) == (value is None)
        assert (steps[i] == 0) == (value == 0)
        assert (steps[i] == 6) == (value == math.inf)
    finite = sorted((v, steps[i]) for i, v in known if 0 < v < math.inf)
    assert [step for _, step in finite] == sorted(step for _, step in finite)
    assert all(1 <= step <= 5 for _, step in finite)
    assert not finite or finite[-1][1] == 5
    assert {shade.step for shade in found.shades} == set(steps.values())
    for shade in found.shades:
        if 1 <= shade.step <= 5:
            own = [v for v, step in finite if step == shade.step]
            ends = dict.fromkeys((f"{min(own):.1e}", f"{max(own):.1e}"))
            assert shade.text == " to ".join(ends)


# ---------------------------------------------------------------------------------------------------------------- looks


@pytest.mark.parametrize("tones", [AMOUNT, ERROR], ids=["amount", "error"])
def test_steps_are_told_apart_in_grey_and_can_be_written_on(tones):
    lightness = [contrast(tone.fill, "#000000") for tone in tones.values()]
    assert lightness == sorted(lightness, reverse=True)
    assert all(a > 1.12 * b for a, b in pairwise(lightness))
    for tone in (*tones.values(), UNKNOWN_TONE, WORSE_TONE):
        assert contrast(tone.ink, tone.fill) >= 4.5
    for tone in FAMILY_TONES.values():
        assert contrast(tone.ink, tone.fill) >= 4.5
    assert [tone.bars.count("●") for tone in tones.values()] == [0, 1, 2, 3, 4, 5]


@pytest.mark.dot
@pytest.mark.parametrize("by", [by for by in COLORS if by not in ("kind", "family")])
def test_everything_on_a_dark_box_is_light_and_the_legend_is_there(by):
    record = transformer(2)
    comparison = compared(record, tok_weight=("mismatch", 0.5), norm_bias=("mismatch", 1e-6))
    results = Results(comparison, execution=audited(record), node_seconds=timed(record))
    view = graph_view(record, "module", color_by=by, results=results)
    parsed = Parsed(view.source)
    dark = {tone.fill for tone in (*AMOUNT.values(), *ERROR.values()) if tone.ink != "#1b2026"}
    filled = [parsed.attributes[name] for name in parsed.nodes.values()]
    shaded = [attributes for attributes in filled if attributes["fillcolor"] in dark]
    assert shaded
    for attributes in shaded:
        colours = {part.split('"')[1] for part in attributes["label"].split("COLOR=")[1:]}
        assert colours == {"#ffffff"}
    assert f"coloured by {view.drawing.measure.split('(')[0]}" in view.source


def test_figures_as_people_read_them():
    assert [bytes_text(n) for n in (0, 12, 999, 1000, 123_456, 1_500_000, 2.5e9, 4e12)] == [
        *("0 B", "12 B", "999 B", "1.0 kB", "123 kB", "1.5 MB", "2.5 GB", "4000 GB")
    ]
    assert [seconds_text(s) for s in (1e-6, 3.4e-4, 0.0123, 1.5, 90)] == ["1 µs", "340 µs", "12.3 ms", "1.5 s", "90 s"]
