"""The picture of errors along the depth of a model."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import torch
from torch import nn

from cabw_viz.errors import CabwError
from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.surfaces.parity_report import ParityReport
from cabw_viz.views.depth_frame import groups, standalone
from cabw_viz.views.error_picture import error_picture, in_depth
from tests import records
from tests.captures import capture_of

SVG = "{http://www.w3.org/2000/svg}"


def row(name, error=1e-6, verdict="within_tolerance", **more):
    return GradientComparison(name, verdict, error, error, (4,), "torch.float32", 4, **more)


def comparison(*rows):
    return Comparison("a", "b", rows)


def marks(picture):
    """(tooltip, y of the mark of the verdict) of each parameter, from left to right."""
    found = []
    for group in ET.fromstring(picture).iter(f"{SVG}g"):
        title, *shapes = list(group)
        last = shapes[-1]
        found.append((title.text, float(last.get("cy") or last.get("y") or re.findall(r"[\d.]+", last.get("d"))[1])))
    return found


def test_parameters_stand_from_input_to_loss_and_errors_on_a_logarithmic_scale():
    rows = [row("head", 1e-3, depth=2), row("middle", 1e-5, depth=6), row("stem", 1e-7, depth=9)]
    found = marks(error_picture(comparison(*rows)))
    assert [title.split(":")[0] for title, _ in found] == ["stem", "middle", "head"]
    stem, middle, head = (y for _, y in found)
    assert stem - middle == pytest.approx(middle - head, abs=0.2)  # two decades each
    assert stem > middle > head


def test_no_error_and_no_figure_have_rails_of_their_own():
    rows = [
        row("large", 1e3),
        row("none", 0.0, "bitwise"),
        row("small", 1e-9),
        row("gone", None, "missing"),
        row("nan", math.nan, "nonfinite"),
        row("infinite", math.inf, "mismatch"),
    ]
    found = {title.split(":")[0]: y for title, y in marks(error_picture(comparison(*rows)))}
    assert found["none"] > found["small"] + 5
    assert found["gone"] == found["nan"] == found["infinite"] < found["large"] - 5


def test_the_depth_is_that_of_the_node_which_makes_the_gradient():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    capture = capture_of(model, lambda: model(torch.randn(2, 3)).sum())
    report = capture.parity()
    order = [found.name.split(".")[0] for found in in_depth(report.comparison)]
    assert order == sorted(order)  # bias and weight of a layer stand together
    assert all(found.depth is not None for found in report.comparison.rows)


def test_the_order_is_the_comparisons_where_depths_are_not_known():
    rows = [row("b", depth=1), row("a")]
    assert [found.name for found in in_depth(comparison(*rows))] == ["b", "a"]


def test_many_parameters_are_named_by_their_modules():
    rows = [row(f"model.layers.{n}.{part}.weight") for n in range(12) for part in ("q", "k", "v", "o", "up", "down")]
    found = groups([row.name for row in rows])
    assert [name for name, _, _ in found] == [str(n) for n in range(12)]  # `model.layers` is common to all
    assert found[1][1:] == (6, 11)
    many = groups([f"p{n}" for n in range(500)])
    assert len(many) <= 28
    assert many[0][1] == 0
    assert many[-1][2] == 499


def test_sides_own_errors_are_drawn_where_there_are_any():
    plain = error_picture(comparison(row("w")))
    both = error_picture(comparison(row("w", reference_err=1e-7, candidate_err=1e-2)))
    assert "from float64" not in plain
    assert "from float64: reference 1.00e-07, candidate 1.00e-02" in both


@pytest.mark.parametrize("count", [0, 1, 2, 2000])
def test_any_number_of_parameters_gives_a_picture(count):
    picture = error_picture(comparison(*(row(f"p{n}.weight", 10.0 ** -(n % 12)) for n in range(count))))
    root = ET.fromstring(picture)
    assert len(list(root.iter(f"{SVG}g"))) == count
    width = float(root.get("width"))
    xs = [float(shape.get("x") or shape.get("cx") or 0) for shape in root.iter() if shape.get("x") or shape.get("cx")]
    assert all(0 <= x <= width for x in xs)


def test_hostile_names_are_text():
    rows = [row(name) for name in records.HOSTILE]
    root = ET.fromstring(error_picture(comparison(*rows)))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "g", "text", "line", "rect", "circle", "path",
    }  # fmt: skip
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)


def test_the_same_comparison_gives_the_same_bytes_and_has_no_colour_of_text():
    rows = [row("a", depth=2), row("b", 0.0, "bitwise", depth=1), row("c", 1.0, "mismatch", depth=3)]
    pictures = {error_picture(comparison(*rows)) for _ in range(2)}
    (picture,) = pictures
    assert 'fill="currentColor"' in picture
    assert "#000" not in picture
    alone = standalone(picture)
    assert "prefers-color-scheme: dark" in alone
    ET.fromstring(alone.partition("\n")[2])


def test_reports_are_saved_by_their_ending(tmp_path):
    report = ParityReport(comparison(row("w", reference_err=1e-7, candidate_err=1e-6), row("v", 0.0, "bitwise")))
    assert "parameter,verdict" in report.save(tmp_path / "parity.csv").read_text("utf-8")
    assert "within_tolerance" in report.save(str(tmp_path / "parity.txt")).read_text("utf-8")
    assert "<svg" in report.save(tmp_path / "parity.html").read_text("utf-8")
    ET.fromstring(report.save(tmp_path / "parity.svg").read_text("utf-8").partition("\n")[2])
    assert report.picture().save(tmp_path / "p.svg").read_text("utf-8") == (tmp_path / "parity.svg").read_text("utf-8")
    with pytest.raises(CabwError, match=r"saved as '\.xlsx'"):
        report.save(tmp_path / "parity.xlsx")
    with pytest.raises(CabwError, match="cannot be written to"):
        report.save(tmp_path / "absent" / "parity.csv")
    with pytest.raises(CabwError, match=r"Expected: \.svg"):
        report.picture().save(tmp_path / "p.png")


def test_a_notebook_shows_the_picture_below_the_table_unless_all_is_bitwise():
    assert "<svg" in ParityReport(comparison(row("w")))._repr_html_()
    assert "<svg" not in ParityReport(comparison(row("w", 0.0, "bitwise")))._repr_html_()
    assert "<svg" in ParityReport(comparison(row("w", 0.0, "bitwise"))).picture()._repr_html_()
    assert "<svg" not in ParityReport(replace(comparison(), rows=()))._repr_html_()
