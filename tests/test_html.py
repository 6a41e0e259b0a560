from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.record.model import BackwardCall, CaptureRecord, Event, Failure
from cabw_viz.record.results import NO_RESULTS, CaptureData
from cabw_viz.views import html, render
from tests import records

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</pre><script>alert(1)</script>",
    "</style><svg onload=alert(1)>",
    '"><iframe src="//example.org">',
    "<!-- &lt;b&gt; --> ]]> &amp;",
    "$x$ \\(y\\) {{ z }} %s %(a)s",
    "line\nbreak\ttab \u202eright to left",
)
TAME = tuple(f"name {number}" for number in range(len(HOSTILE)))

VOID = {"meta", "br", "img", "hr", "input", "link"}


class Page(HTMLParser):
    """Elements, attributes and text of a piece of HTML; complains where an end has no beginning."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: Counter[str] = Counter()
        self.attributes: Counter[str] = Counter()
        self.texts: list[str] = []
        self.comments: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes.update(f"{tag} {name}" for name, _ in attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> ends nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def event(number: int | None, outcome: str = "captured", capture: int | None = 0, reason: str = "") -> Event:
    return Event(BackwardCall(number, "backward", "/home/ada/train.py:12"), outcome, reason, capture, 0.25)


def named(names: tuple[str, ...], failed: bool = False) -> CaptureRecord:
    record = records.hostile(names)
    call = replace(record.call, where=f"{names[0]}:3")
    failure = Failure(names[1], names[2], 1, names[3]) if failed else None
    return replace(record, call=call, failure=failure)


def comparison(names: tuple[str, ...]) -> Comparison:
    rows = tuple(GradientComparison(name, "bitwise", 0.0, 0.0, (2,), name, note=name) for name in names)
    return Comparison(names[0], names[1], rows, ((names[2], 1e-5, 1e-6),), names)


def data(*shown: CaptureRecord) -> list[CaptureData]:
    """Records without results."""
    return [(record, NO_RESULTS) for record in shown]


def session(names: tuple[str, ...]) -> str:
    events = [Event(BackwardCall(i, "grad", f"{n}:1"), "failed", n, 0) for i, n in enumerate(names)]
    return html.session_html(events, data(named(names), named(names, failed=True)))


WRITERS: dict[str, Callable[[tuple[str, ...]], str]] = {
    "session": session,
    "capture": lambda names: html.capture_html(named(names)),
    "failed capture": lambda names: html.capture_html(named(names, failed=True)),
    "fx": lambda names: html.capture_html(named(names), level="fx"),
    "parity": lambda names: html.parity_html(comparison(names)),
    "page": lambda names: html.page_html(names[1], session(names), html.parity_html(comparison(names))),
}


@pytest.fixture(params=[pytest.param("with dot", marks=pytest.mark.dot), "without dot"])
def _dot(request, monkeypatch):
    if request.param == "without dot":
        monkeypatch.setattr(render.shutil, "which", lambda _: None)


def without_wrapping(counted: Counter[str]) -> Counter[str]:
    """Drawings break long titles into several elements of text; their number is no matter."""
    return Counter(
        {name: count for name, count in counted.items() if name.split()[0] not in {"text", "polygon", "path"}}
    )


@pytest.mark.usefixtures("_dot")
@pytest.mark.parametrize("writer", WRITERS)
def test_names_are_shown_and_become_no_markup(writer):
    hostile, tame = Page(WRITERS[writer](HOSTILE)), Page(WRITERS[writer](TAME))
    assert without_wrapping(hostile.elements) == without_wrapping(tame.elements)
    assert without_wrapping(hostile.attributes) == without_wrapping(tame.attributes)
    assert set(hostile.elements) == set(tame.elements)
    assert not any("alert" in comment for comment in hostile.comments)
    assert HOSTILE[0] in hostile.text
    assert HOSTILE[1] in hostile.text
    assert HOSTILE[3] in hostile.text


def test_names_are_left_alone_by_mathjax():
    assert html.capture_html(named(HOSTILE)).startswith('<div class="cabw tex2jax_ignore mathjax_ignore">')


@pytest.mark.dot
def test_a_capture_has_title_drawing_and_outline():
    page = Page(html.capture_html(records.hooked()))
    assert page.elements["svg"] == 1
    assert page.elements["details"] == page.elements["pre"] == 1
    assert "backward at train.py:12" in page.text
    assert "run in eager · 9 autograd nodes · 72 graph nodes" in page.text
    assert "#5 ■ AddmmBackward0" in page.text


@pytest.mark.dot
def test_levels():
    assert "validate_outputs" not in html.capture_html(records.mlp()).split("<details>")[0]
    assert "validate_outputs" in html.capture_html(records.mlp(), level="fx").split("<details>")[0]


def test_without_dot_the_page_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(render.shutil, "which", lambda _: None)
    page = Page(html.capture_html(records.mlp()))
    assert page.elements["svg"] == 0
    assert "apt-get install graphviz" in page.text
    assert "AddmmBackward0" in page.text


def test_a_failure_is_said_in_the_page():
    page = Page(html.capture_html(records.failed()))
    assert "✗ failed" in page.text
    assert "The trace stopped: NotImplementedError at ReluBackward0 (#5): no <fake> for this & that" in page.text


def test_a_long_message_is_cut():
    record = replace(records.mlp(), failure=Failure("RuntimeError", "word " * 1000))
    assert "word " * (html.PROSE_SHOWN // 5) not in Page(html.capture_html(record)).text.split("Outline")[0]


@pytest.mark.dot
def test_a_session_opens_its_last_capture():
    text = html.session_html([event(0), event(1, capture=1)], data(records.mlp(), records.hooked()))
    first, opened, last = text.partition("<details open>")
    assert opened
    assert "<details open>" not in last
    assert "[0]</span>" in first.split("</table>")[1]
    assert "[1]</span>" in last
    assert Page(text).elements["svg"] == 2


@pytest.mark.dot
def test_a_session_draws_its_last_captures_as_far_as_the_page_should_grow(monkeypatch):
    monkeypatch.setattr(html, "BOXES_SHOWN", 30)
    page = Page(html.session_html([event(0)], data(*[records.mlp()] * 3)))
    assert page.elements["svg"] < 3
    assert page.elements["pre"] == 3
    assert "Not drawn here, where at most 30 boxes are shown together" in page.text


def test_cache_hits_in_a_row_are_one_row():
    hits = [event(number, "cache_hit", 1) for number in range(2, 40)]
    page = Page(html.session_html([event(0), event(1, capture=1), *hits, event(40, capture=2)], []))
    assert page.elements["tr"] == 1 + 4
    assert "2 to 39" in page.text
    assert "41 backward calls" in page.text
    assert "9,500.0" in page.text  # ms: 38 times a quarter of a second


def test_calls_without_a_number_are_counted():
    page = Page(html.session_html([event(None, "bypassed", None, "made inside another backward")] * 3, []))
    assert page.elements["tr"] == 1 + 1
    assert "× 3" in page.text


def test_of_very_many_events_the_first_and_last_are_shown():
    page = Page(html.session_html([event(n, reason=f"reason {n}") for n in range(1000)], []))
    assert page.elements["tr"] == 1 + html.ROWS_SHOWN + 1
    assert "… 900 more: session.events" in page.text
    assert "reason 0" in page.texts
    assert "reason 999" in page.texts
    assert "reason 500" not in page.texts


def test_an_empty_session():
    page = Page(html.session_html([], []))
    assert "0 backward calls" in page.text
    assert page.elements["table"] == 0


def test_parity_says_what_was_compared_with_what():
    rows = (
        GradientComparison("w", "bitwise", 0.0, 0.0, (2, 3), "torch.float32"),
        GradientComparison("b", "mismatch", 0.5, 0.25, (3,), "torch.float32", 3, 2),
    )
    compared = Comparison(
        "your own eager run", "the graph", rows, (("torch.float32", 1e-6, 1e-5),), ("a hook ran again",)
    )
    text = html.parity_html(compared)
    page = Page(text)
    assert "✗ 1 of 2 gradients differ, worst b: 1 bitwise, 1 mismatch." in page.text
    assert "candidate: the graph reference: your own eager run" in page.text
    assert "note: a hook ran again" in page.text
    assert page.elements["table"] == 1
    assert "cabw-alarm" in text.split("</p>")[0]
    good = html.parity_html(replace(compared, rows=rows[:1]))
    assert "cabw-ok" in good.split("</p>")[0]


def test_parity_of_nothing():
    page = Page(html.parity_html(Comparison("a", "b", ())))
    assert "No gradients were compared" in page.text
    assert page.elements["table"] == 0


def test_a_page_needs_nothing_else():
    text = html.page_html("A <title>", html.session_html([event(0)], data(records.mlp())))
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert page.texts.count("A <title>") == 2
    assert not {"script", "link", "iframe", "img"} & set(page.elements)
    # Namespaces are names, not addresses that a browser would fetch.
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xlink", "")


def test_the_same_gives_the_same_bytes():
    assert session(HOSTILE) == session(HOSTILE)
