"""Links from boxes to lines, and what becomes of an SVG on its way to a browser."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabw_viz.errors import CabwError
from cabw_viz.record.source_line import SourceLine
from cabw_viz.views.links import check_links, link
from cabw_viz.views.render import graph_view, run_dot
from cabw_viz.views.svg import joined_words, self_contained
from tests import records
from tests.module_models import capture_of_model

CODE = "vscode://file/{file}:{line}"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "template",
    [
        *(
            "",
            "{file}",
            "{file}:{line}",
            "javascript:{file}",
            "JavaScript:alert({line})//{file}",
            "data:text/html,{file}",
        ),
        *(
            "vscode://file/",
            "vscode://{other}/{file}",
            "file://{file} {line}",
            "{line}://{file}",
            "x{file}://",
            "blob:{file}",
        ),
        *("file://{file", "vbscript:{file}", 3, ["vscode://{file}"], "file://{file}\n"),
    ],
)
def test_templates_that_make_no_address(template):
    with pytest.raises(CabwError, match=r"makes no address of a line of code(?s:.)*vscode://file/\{file\}:\{line\}"):
        check_links(template)
    with pytest.raises(CabwError, match="makes no address"):
        graph_view(records.mlp(), links=template)


@pytest.mark.parametrize(
    "template",
    [None, CODE, "file://{file}", "https://github.com/a/b/blob/main{file}#L{line}", "editor+x://o?f={file}&l={line}"],
)
def test_templates_that_do(template):
    check_links(template)


def test_a_line_has_an_address():
    assert link(CODE, SourceLine("/home/ada/my train.py", 12)) == "vscode://file//home/ada/my%20train.py:12"
    assert link(CODE, SourceLine("C:\\ada\\train.py", 3)) == "vscode://file/C:/ada/train.py:3"
    assert link(None, SourceLine("/a.py", 1)) == ""
    assert link(CODE, None) == ""
    for file in ("In[3]", "train.py", "<stdin>", "javascript:alert(1)//", ""):
        assert link(CODE, SourceLine(file, 1)) == ""


@given(st.text(max_size=60), st.integers(0, 10**6))
def test_a_files_name_fills_its_place_and_nothing_else(name, number):
    address = link("file://{file}#{line}", SourceLine("/" + name, number))
    assert re.fullmatch(r"file:///[A-Za-z0-9_.~%/:-]*#\d+", address)


@pytest.mark.dot
def test_boxes_lead_to_the_lines_of_their_forward():
    record = capture_of_model("twice").record
    for level in ("module", "autograd", "fx"):
        view = graph_view(record, level, links=CODE)
        root = ET.fromstring(view.svg())
        found = {a.get("{http://www.w3.org/1999/xlink}href") for a in root.iter(f"{SVG}a")} - {None}
        lines = {node.line for node in record.autograd_nodes if node.line is not None}
        assert found
        assert found <= {f"vscode://file/{line.file}:{line.line}" for line in lines}
        assert "xlink:href" not in graph_view(record, level).svg()
    evil = replace(record.autograd_nodes[2], line=SourceLine('/x"/><script>alert(1)</script>.py', 1))
    nodes = (*record.autograd_nodes[:2], evil, *record.autograd_nodes[3:])
    svg = graph_view(replace(record, autograd_nodes=nodes), "autograd", links=CODE).svg()
    assert "<script" not in svg
    assert "%3Cscript%3E" in svg


@pytest.mark.dot
def test_the_pieces_of_a_line_are_one_text_and_say_the_same():
    view = graph_view(capture_of_model("tied").record, color_by="bytes")
    painted = run_dot(view.source, "svg").decode()

    def said(svg):
        return ["".join(text.itertext()) for text in ET.fromstring(svg).iter(f"{SVG}text")]

    joined = said(joined_words(painted))
    assert "".join(joined) == "".join(said(painted))
    assert len(joined) < len(said(painted))
    assert any(text.startswith("■") and "Add" in text and "Backward0" in text for text in joined)
    for text in ET.fromstring(joined_words(painted)).iter(f"{SVG}text"):
        heights = {piece.get("y") for piece in text.iter(f"{SVG}tspan")}
        assert heights <= {None}


@pytest.mark.dot
def test_a_saved_picture_follows_its_readers_wish_for_dark_pages(tmp_path):
    view = graph_view(records.mlp())
    text = view.save(tmp_path / "graph.svg").read_text("utf-8")
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert "prefers-color-scheme: dark" in root.find(f"{SVG}style").text
    assert "prefers-color-scheme" not in view.svg()  # in a page it would turn the whole page's lightness round twice
    assert self_contained(view.svg()) == text


GAPS = """(tag) => [...document.querySelectorAll('text')].flatMap((text) => {
  const pieces = [...text.querySelectorAll(tag)].map((piece) => piece.getBoundingClientRect());
  return pieces.slice(1).map((piece, i) => Math.abs(piece.left - pieces[i].right));
})"""


@pytest.mark.dot
@pytest.mark.browser
def test_in_a_browser_no_gap_is_between_the_pieces_of_a_name(tmp_path):
    from tests.inspector.opened import chromium

    view = graph_view(capture_of_model("tied").record, "autograd")
    view.save(tmp_path / "graph.svg")
    with chromium() as browser:
        page = browser.new_page(color_scheme="dark")
        page.goto((tmp_path / "graph.svg").as_uri())
        gaps = page.evaluate(GAPS, "tspan")
        filter_ = page.evaluate("() => getComputedStyle(document.querySelector('.graph')).filter")
    assert len(gaps) > 100
    assert max(gaps) < 1
    assert "invert" in filter_
