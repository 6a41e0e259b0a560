"""The levels fx and aten on the canvas: graph nodes inside their autograd node inside their module."""

from dataclasses import replace

import pytest

from cabw_viz.record.kinds import PLUMBING
from cabw_viz.record.model import Touch
from cabw_viz.record.results import Results
from cabw_viz.views.inspector.page import inspector_page
from tests import records
from tests.inspector.blocks import compared, results_of, transformer

pytest.importorskip("playwright")

from tests.inspector.opened import chromium, inspected

pytestmark = pytest.mark.browser

EVIL = "<img src=x onerror='window.pwned=1'>"
SET_TRAITS = "t => { for (const [k, v] of Object.entries(t)) cabw.model.set(k, v); cabw.model.save_changes(); }"


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def record():
    return transformer(4)


@pytest.fixture(scope="module")
def results(record):
    return results_of(record, 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, record, results):
    folder = tmp_path_factory.mktemp("pages")

    def save(name, shown, results=None):
        path = folder / f"{name}.html"
        path.write_text(inspector_page(name, [(shown, results or Results(compared(shown, 2)))]), "utf-8")
        return path

    save("blocks", record, results)
    return lambda name, *shown: save(name, *shown) if shown else folder / f"{name}.html"


@pytest.fixture
def blocks(browser, saved):
    with inspected(browser, saved("blocks")) as found:
        yield found


def level(found, name):
    found.page.locator(".cabw-bar .cabw-seg button", has_text=name).click()
    found.settle()


def test_the_fx_level_shows_each_graph_node_but_plumbing_once(blocks, record):
    level(blocks, "FX")
    shown = {node.ordinal for node in record.graph_nodes if node.kind not in PLUMBING}
    assert set(blocks.do("return [...i.drawn.nodes.keys()]")) == shown
    assert blocks.do("return i.scene.leaves.length") == len(shown)
    assert blocks.page.evaluate("() => cabw.model.get('level')") == "fx"
    edges = blocks.do("const { from, to } = i.drawn.edges; return [...from].map((a, k) => [a, to[k]]);")
    ids = blocks.do("return i.drawn.list.map((n) => n.id)")
    assert {(ids[a], ids[b]) for a, b in edges} == {
        (read, node.ordinal) for node in record.graph_nodes for read in node.inputs
    }


def test_its_code_is_asked_for_when_the_level_is_first_shown(browser, saved):
    with inspected(browser, saved("blocks")) as found:
        found.page.evaluate("() => { window.asked = []; const m = cabw.model, send = m.send.bind(m);"
                            " m.send = (what) => { asked.push(what.type); return send(what); }; }")  # fmt: skip
        level(found, "Autograd")
        assert found.page.evaluate("asked") == []
        level(found, "FX")
        level(found, "Module")
        level(found, "FX")
        found.tab("Code")
        level(found, "Aten")
        level(found, "Aten")
        assert found.page.evaluate("asked") == ["code", "aten"]


def test_graph_nodes_stand_in_their_autograd_node_in_their_module(blocks, record):
    level(blocks, "FX")
    gelu = next(n for n in record.autograd_nodes if n.name == "GeluBackward0")
    places = (
        f"const g = i.drawn.item('n{gelu.number}'); return [g.nodes.map((n) => n.id), g.parent.path, g.name, g.cls];"
    )
    assert blocks.do(places) == [list(gelu.graph_nodes), gelu.module, "Gelu", f"#{gelu.number}"]
    # They open and close as modules do.
    blocks.do(f"i.reveal('n{gelu.number}'); i.tree.focus();")
    blocks.press("Enter")
    assert blocks.do(f"return i.scene.box('n{gelu.number}').kind") == "group"
    blocks.press("Enter")
    assert blocks.do(f"return i.scene.box('n{gelu.number}').kind") == "open"
    blocks.press("Backspace")
    assert blocks.selection == f"g:{gelu.module}"
    assert "Autograd nodes" in blocks.panel


def test_a_selection_is_kept_across_levels(blocks, record):
    gelu = next(n for n in record.autograd_nodes if n.name == "GeluBackward0")
    blocks.do(f"i.reveal('n{gelu.number}')")
    level(blocks, "FX")
    assert blocks.selection == f"n{gelu.number}"
    assert "GeluBackward0" in blocks.page.locator(".cabw-body h2").inner_text()
    check = gelu.graph_nodes[1]
    blocks.click(f"f{check}")
    assert blocks.selection == f"f{check}"
    text = blocks.panel
    for words in ("check of gradients", f"GeluBackward0 #{gelu.number}", f"validate_outputs_{gelu.number}", "Reads"):
        assert words in text
    level(blocks, "Autograd")
    assert blocks.selection == f"n{gelu.number}"
    level(blocks, "Aten")
    assert blocks.selection == f"n{gelu.number}"
    assert blocks.do(f"return i.drawn.item('n{gelu.number}').nodes.map((n) => n.operator)") == ["mm", "view"]


def test_a_graph_node_that_python_selects_is_gone_to(blocks, record):
    """`inspector.selection = "f12"` while modules are shown."""
    blocks.page.evaluate(SET_TRAITS, {"selection": "f12"})
    blocks.page.wait_for_function("document.querySelector('#app').inspector.drawn.letter === 'f'")
    blocks.settle()
    assert blocks.selection == "f12"
    assert blocks.get("level") == "fx"
    x, y = blocks.where("f12")
    assert 0 < x < 1100
    assert 0 < y < 640


def test_a_link_opens_a_level(browser, saved):
    with inspected(browser, saved("blocks"), state="#level=fx&selection=f40&color_by=parity") as found:
        found.settle()
        assert (found.get("level"), found.selection, found.get("drawn.letter")) == ("fx", "f40", "f")


def test_search_filter_and_cone_work_on_graph_nodes(blocks, record):
    level(blocks, "FX")
    blocks.page.locator(".cabw-search input").fill("validate_outputs layers.2")
    blocks.settle()
    checks = [n for n in record.graph_nodes if n.kind == "validate_outputs"]
    expected = sum((record.by_number[n.autograd_node].module + ".").startswith("layers.2.") for n in checks)
    assert blocks.page.locator(".cabw-search output").inner_text().startswith(f"{expected} of ")
    blocks.press("Enter")
    blocks.page.get_by_label("Next match").click()
    blocks.settle()
    assert blocks.selection.startswith("f")
    blocks.page.get_by_label("Clear search").click()
    chip = blocks.page.locator(".cabw-chip", has_text="Check of a gradient")
    assert chip.inner_text().endswith(f"{len(checks):,}")
    chip.click()
    assert blocks.do("return i.renderer.state.dim.some(Boolean)")
    chip.click()
    blocks.do("i.select('f10')")
    up, down = blocks.do("return [i.cone.up, i.cone.down]")
    ancestors, todo = set(), [10]
    while todo:
        new = set(record.graph_nodes[todo.pop()].inputs) - ancestors
        ancestors |= new
        todo += new
    assert up == len(ancestors)
    assert down > 0


def test_a_filter_stays_pressed_at_another_level(blocks):
    blocks.page.locator(".cabw-chip", has_text="Matmul").click()
    level(blocks, "FX")
    assert blocks.page.locator(".cabw-chip", has_text="Matmul").get_attribute("aria-pressed") == "true"
    assert blocks.do("return i.renderer.state.dim.some(Boolean)")


def test_touches_and_findings_come_to_the_graph_node_they_belong_to(blocks, results):
    level(blocks, "FX")
    counts = blocks.do("return i.drawn.list.map((n) => [n.id, n.execution])")
    expected = {touch.node: touch.count for touch in results.execution}
    assert {ordinal: count for ordinal, count in counts if count} == expected
    wrong = blocks.do("return i.graph.wrong.map((row) => row.ref.key)")
    differing = "return [...new Set(i.drawn.list.filter((n) => n.row && !n.row.good).map((n) => n.base.key))]"
    assert blocks.do(differing) == wrong
    assert blocks.do("return i.drawn.list.filter((n) => n.hooks || n.initial).length") >= 1


def test_the_aten_level_says_what_is_missing_and_offers_to_make_it(browser, saved):
    with inspected(browser, saved("plain", transformer(2))) as found:
        level(found, "Aten")
        note = found.page.locator(".cabw-note")
        assert "Not lowered" in note.inner_text()
        assert "cap.lower()" in note.inner_text()
        found.page.evaluate(SET_TRAITS, {"kernel": True, "choices": {"lower": {}}})
        found.page.evaluate("() => { cabw.model.send = (message) => (window.sent = message); }")
        level(found, "Module")
        assert not note.is_visible()
        level(found, "Aten")
        note.locator(".cabw-button").click()
        assert found.page.evaluate("sent") == {"type": "run", "what": "lower", "options": {}}
        found.page.evaluate(SET_TRAITS, {"task": {"what": "lower", "state": "failed", "error": "no <b>formula</b>"}})
        assert "no <b>formula</b>" in note.inner_text()


def test_a_lowered_graph_that_arrives_is_drawn(browser, saved, record, results):
    with inspected(browser, saved("late", record)) as found:
        level(found, "Aten")
        from cabw_viz.views.inspector import columns

        raw = list(columns.pack_lowered(record, results))
        found.page.evaluate("raw => { cabw.model.set('aten', Uint8Array.from(raw)); cabw.model.save_changes(); }", raw)
        found.settle()
        assert not found.page.locator(".cabw-note").is_visible()
        assert found.do("return i.drawn.list.length") == len(results.lowered) - 1
        level(found, "Autograd")
        number = results.lowered[5].autograd_node
        found.do(f"i.reveal('n{number}')")
        assert "Aten operators" in found.panel
        found.page.locator(".cabw-one b", has_text="mm").first.click()
        found.settle()
        assert found.selection.startswith("a")
        assert found.get("level") == "aten"


def test_a_failed_trace_has_no_graph_to_show(browser, saved):
    record = replace(records.failed(), graph_nodes=(), touches=())
    with inspected(browser, saved("failed", record)) as found:
        level(found, "FX")
        assert "The trace stopped before the graph was made." in found.page.locator(".cabw-note").inner_text()
        level(found, "Autograd")
        assert not found.page.locator(".cabw-note").is_visible()


def test_colour_by_time_has_a_legend_that_filters(blocks, record, results):
    blocks.page.locator(".cabw-strip .cabw-seg button", has_text="Time").click()
    blocks.settle()
    slow = [n for n, s in zip(record.autograd_nodes, results.node_seconds, strict=True) if s == 0.064]
    chip = blocks.page.locator(".cabw-chip", has_text="half of the slowest")
    assert chip.inner_text().endswith(str(len(slow)))
    chip.click()
    assert blocks.do("return i.picture.reach.kept[i.graph.root.index]") == len(slow)
    assert "in all nodes" in blocks.panel
    blocks.do(f"i.reveal('n{slow[0].number}')")
    assert "64.0 ms" in blocks.panel
    level(blocks, "FX")
    assert blocks.do("return i.drawn.list.filter((n) => n.seconds === 0.064).length") == len(slow)
    # Two operators share what their autograd node took: both have its colour, and the frame has the figure.
    level(blocks, "Aten")
    assert blocks.page.locator(".cabw-chip", has_text="half of the slowest").inner_text().endswith(str(2 * len(slow)))
    figures = f"const g = i.drawn.item('n{slow[0].number}'); return [g, ...g.nodes].map((x) => i.renderer.figureOf(x));"
    assert blocks.do(figures) == ["64.0 ms", "", ""]


def test_times_that_were_not_taken_are_offered(browser, saved):
    with inspected(browser, saved("untimed", transformer(1)), state="#color_by=time") as found:
        assert "The nodes have not been timed." in found.panel
        found.do("i.reveal('n2'); i.openTab('code');")
        found.page.locator(".cabw-legend .cabw-link", has_text="Time the nodes").click()
        assert "The nodes have not been timed." in found.panel
        assert "cap.times()" in found.panel


def test_hostile_names_are_text_at_every_level(browser, saved):
    record = records.hostile((*records.HOSTILE, EVIL, "</script><script>window.pwned=1</script>"))
    graph = [replace(n, name=f"{EVIL}_{n.ordinal}", target=EVIL, arguments=EVIL * 100) for n in record.graph_nodes]
    nodes = [replace(n, module=f"{EVIL}.#5.constructor", module_class=EVIL) for n in record.autograd_nodes]
    touches = (Touch("execution", f"aten.{EVIL}", 1, 2, "kernel", EVIL),)
    record = replace(record, autograd_nodes=tuple(nodes), graph_nodes=tuple(graph))
    results = Results(compared(record, 2), lowered=tuple(graph), execution=touches)
    with inspected(browser, saved("hostile", record, results)) as found:
        for name in ("FX", "Aten"):
            level(found, name)
            found.do("for (const n of i.drawn.list.slice(0, 12)) i.reveal(n.key);")
            found.do("i.reveal('n1')")
            found.page.locator(".cabw-search input").fill("constructor")
            found.settle()
        assert found.page.evaluate("window.pwned") is None
        assert found.page.locator("img").count() == 0
        assert found.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture(scope="module")
def large(saved):
    """A graph that the worker lays out, so that there is time to cancel."""
    return saved("large", transformer(40))


CANCEL = "document.querySelector('.cabw-busy button').click();"


def test_a_layout_that_is_cancelled_changes_nothing(browser, large):
    with inspected(browser, large) as found:
        boxes = "return [i.scene.count, [...i.expanded], i.level, cabw.model.get('expanded')]"
        before = found.do(boxes)
        assert found.page.evaluate("cabwTimes.where") == "worker"
        found.do(f"i.toggle('layers'); {CANCEL}")
        assert found.do(boxes)[:2] == before[:2]
        assert found.page.evaluate("() => cabw.model.get('expanded')") == before[3]
        found.do("i.toggle('layers')")
        assert found.expanded == {"layers"}
        assert found.do("return i.scene.box('g:layers.5') !== undefined")


def test_going_to_another_level_can_be_cancelled(browser, large):
    with inspected(browser, large, state="#level=autograd") as found:
        found.do("i.levels.code('code')")
        found.do(f"i.setLevel('fx'); {CANCEL}")
        assert (found.get("level"), found.get("drawn.letter")) == ("autograd", "n")
        assert found.page.evaluate("() => cabw.model.get('level')") == "autograd"
        assert found.page.locator(".cabw-seg [aria-checked=true]").first.inner_text() == "Autograd"
        found.do("i.reveal('n7')")
        assert found.selection == "n7"
        level(found, "FX")
        assert (found.get("level"), found.get("drawn.letter"), found.selection) == ("fx", "f", "n7")


def test_a_first_layout_that_is_cancelled_leaves_modules(browser, large):
    with inspected(browser, large, state="#level=autograd") as found:
        found.do(f"i.picture.scene = null; i.setLevel('autograd'); {CANCEL}")
        assert found.expanded == set()
        assert found.do("return i.scene.count") < 20


def test_the_share_of_a_layout_that_is_done_is_told(browser, large):
    with inspected(browser, large) as found:
        found.do(
            "i.picture.layout.waiting = null; i.toggle('layers'); i.picture.layout.waiting.onProgress(0.4);"
            " window.words = i.busy.text.textContent;"
        )
        assert found.page.evaluate("words") == "Laying out… 40%"
