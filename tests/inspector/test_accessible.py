"""The saved page under axe-core, and every way to use it by the keyboard alone."""

from dataclasses import replace

import pytest

from cabw_viz.record.model import BackwardCall, Event
from cabw_viz.record.results import NO_RESULTS, Results
from cabw_viz.views.inspector.page import inspector_page
from tests import records
from tests.inspector.blocks import compared, results_of, transformer

pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")

from axe_playwright_python.sync_playwright import Axe

from tests.inspector.opened import TABS, chromium, inspected

pytestmark = pytest.mark.browser

GRAVE = {"serious", "critical"}


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def page_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")

    def write(name, shown, events=()):
        path = folder / f"{name}.html"
        path.write_text(inspector_page(name, shown, events), "utf-8")
        return path

    return write


@pytest.fixture(scope="module")
def blocks(page_of):
    call = BackwardCall(0, "backward", "/home/ada/train.py:12")
    events = [Event(call, "captured", "nothing captured before", 0, 0.5), Event(call, "failed", "no fake", None, 0.1)]
    record = transformer(3)
    return page_of("blocks", [(record, results_of(record, 2)), (records.hooked(), NO_RESULTS)], events)


def grave(found):
    """The violations that axe-core reports, and how many rules applied."""
    result = Axe().run(found.page).response
    wrong = [
        (v["impact"], v["id"], node["html"][:200])
        for v in result["violations"]
        if v["impact"] in GRAVE
        for node in v["nodes"]
    ]
    return wrong, len(result["passes"])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_has_nothing_serious_to_say_of_any_panel(browser, blocks, dark):
    with inspected(browser, blocks, dark=dark, width=1280) as found:
        picked = found.do("return i.graph.wrong[0].ref.key")
        for selection in (picked,) if dark else ("", picked):
            found.do(f"i.reveal('{selection}')")
            for tab in TABS:
                found.tab(tab)
                wrong, passed = grave(found)
                assert wrong == [], tab
                assert passed > 15
        for level in ("FX", "Aten"):
            found.page.locator(".cabw-bar .cabw-seg button", has_text=level).click()
            found.settle()
            found.do("i.select(i.drawn.letter + i.drawn.list[9].id); i.openTab('node');")
            assert grave(found)[0] == [], level


EMPTY = {"nothing": [], "failed": [records.failed()], "no graph": [replace(records.failed(), graph_nodes=())]}


@pytest.mark.parametrize("name", list(EMPTY))
def test_axe_has_nothing_serious_to_say_of_what_is_missing(browser, page_of, name):
    with inspected(
        browser,
        page_of(name, [(record, Results(compared(record, 2))) for record in EMPTY[name]]),
        dark=name == "failed",
        width=700,
    ) as found:
        for tab in ("Node", "Parity", "Misses"):
            found.tab(tab)
            assert grave(found)[0] == [], tab


def test_axe_would_have_found_something(browser, blocks):
    """The same look at a page that is made worse."""
    with inspected(browser, blocks) as found:
        found.page.evaluate("() => document.querySelector('.cabw-search input').removeAttribute('aria-label')")
        found.page.evaluate("() => document.querySelector('.cabw-search input').removeAttribute('placeholder')")
        assert [what for _, what, _ in grave(found)[0]] == ["label"]


# ----------------------------------------------------------------------------------------------------------- keyboard

ACTIVE = """() => { const e = document.activeElement;
  return [e.getAttribute("role") || e.localName, e.getAttribute("aria-label") || e.textContent.slice(0, 60)]; }"""


class Keyboard:
    """A user without a pointer."""

    def __init__(self, found):
        self.found, self.page = found, found.page

    @property
    def at(self):
        return tuple(self.page.evaluate(ACTIVE))

    def to(self, role, words="", most=120):
        """Tabs on until something of this role and name has the focus; what has it can be seen to have it."""
        for _ in range(most):
            self.page.keyboard.press("Tab")
            kind, name = self.at
            if kind == role and words in name:
                assert self.focus_is_visible(), f"{role} {words!r} has the focus and does not show it"
                return self
        raise AssertionError(f"no {role} {words!r} can be reached by Tab")

    def focus_is_visible(self):
        return self.page.evaluate(
            """() => { const e = document.activeElement, s = getComputedStyle(e), w = getComputedStyle(e.parentElement);
              const shown = (t) => t.boxShadow !== "none" || (t.outlineStyle !== "none" && parseFloat(t.outlineWidth));
              return Boolean(shown(s) || shown(w)); }"""
        )

    def press(self, *keys):
        self.found.press(*keys)
        return self


@pytest.fixture
def keyboard(browser, blocks):
    with inspected(browser, blocks, width=1280) as found:
        yield Keyboard(found)


def test_levels_and_colours_by_keyboard(keyboard):
    found = keyboard.found
    keyboard.to("radio", "Module").press("ArrowRight")
    assert found.get("level") == "autograd"
    keyboard.press("ArrowRight")
    assert (found.get("level"), found.get("drawn.letter")) == ("fx", "f")
    keyboard.press("ArrowRight")
    assert found.get("drawn.letter") == "a"
    keyboard.press("ArrowRight")
    assert found.get("level") == "module"
    keyboard.to("radio", "Family").press("ArrowLeft")
    assert found.get("colour") == "time"
    keyboard.to("button", "half of the slowest").press("Space")
    assert found.do("return i.filter.size") == 1
    keyboard.press("Space")
    assert found.do("return i.filter.size") == 0


def test_a_capture_is_chosen_by_keyboard(keyboard):
    keyboard.to("select", "Capture").press("ArrowDown")
    keyboard.page.wait_for_function("document.querySelector('#app').inspector.graph.data.capture === 1")


def test_the_graph_by_keyboard(keyboard):
    found = keyboard.found
    keyboard.to("tree").press("Home")
    assert found.selection == "n0"
    view = found.get("camera.view")
    keyboard.press("+")
    assert found.get("camera.view.k") > view["k"]
    keyboard.press("-", "0")
    assert found.get("camera.view.k") == pytest.approx(1)
    keyboard.press("End")
    assert found.selection != "n0"
    found.do("i.select('g:layers')")
    keyboard.press("Enter")
    assert found.expanded == {"layers"}
    keyboard.press("ArrowDown", "Enter", "ArrowDown")
    assert "." in found.selection or found.selection.startswith("n")
    keyboard.press("Backspace", "f", "f", "Escape")
    assert found.selection == ""
    keyboard.to("button", "Zoom in").press("Enter")
    keyboard.to("button", "Fit").press("Space")


def test_panels_by_keyboard(keyboard):
    found = keyboard.found
    keyboard.to("tab", "Node")
    for name in ("metadata", "parity", "memory", "misses", "code"):
        keyboard.press("ArrowRight")
        assert found.get("panels.tab") == name
    keyboard.press("ArrowLeft", "ArrowLeft", "ArrowLeft")
    assert found.get("panels.tab") == "parity"
    keyboard.to("button", "max rel").press("Enter")
    assert found.do("return i.panels.state('parity list').by") == "rel"
    keyboard.to("radio", "Differ").press("ArrowRight")
    assert found.do("return i.panels.state('parity list').show") != "bad"
    keyboard.to("button", "layers.").press("Enter")
    assert found.selection.startswith("n")
    # The panel was built anew; where one was, one goes on.
    assert keyboard.at[0] != "body"
    keyboard.to("tab", "Parity").press("ArrowRight")
    keyboard.to("button", "Open layers").press("Enter")
    assert found.do("return i.panels.state('open in memory').has('layers')")


def test_search_by_keyboard(keyboard):
    found = keyboard.found
    keyboard.to("tree").press("/")
    found.page.keyboard.type("diverging")
    keyboard.press("Enter")
    assert found.do("return i.hits.length") == 2
    assert found.do("return i.drawn.item(i.selection).row.good") is False
    keyboard.to("button", "Next match").press("Enter")
    assert found.page.locator(".cabw-search output").inner_text() == "2 of 2"
    keyboard.to("button", "Clear search").press("Enter")
    assert found.get("hits") is None


def test_a_way_to_a_parameter_by_keyboard(keyboard):
    found = keyboard.found
    found.do("i.reveal(i.graph.list.find((n) => n.name.startsWith('Gelu')).key)")
    keyboard.to("input", "way to a parameter")
    found.page.keyboard.type("layers.0.norm1.weight")
    keyboard.press("Enter")
    assert found.do("return i.way.count") > 50
