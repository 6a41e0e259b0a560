"""A saved inspector in a real browser: every panel, every way to use it, whatever the names are."""

from dataclasses import replace
from itertools import zip_longest

import pytest

from cabw_viz.record.model import BackwardCall, CaptureRecord, Event, Touch
from cabw_viz.record.results import NO_RESULTS, Results
from cabw_viz.views.inspector.page import inspector_page
from tests import records
from tests.inspector.blocks import audited, compared, transformer
from tests.kernels import ROOT

pytest.importorskip("playwright")

from tests.inspector.opened import TABS, chromium, inspected

pytestmark = pytest.mark.browser

MISS = (
    "Cache miss due to new autograd node: torch::autograd::AccumulateGrad (NodeCall 9) with key size 33, "
    "previous key sizes=[22]"
)
EVIL = "<img src=x onerror='window.pwned=1'>"


def call(index):
    return BackwardCall(index, "backward", "/home/ada/train.py:12")


EVENTS = [
    Event(call(0), "captured", "nothing captured before", 0, 0.5),
    Event(call(1), "captured", MISS, 1, 0.4),
    *[Event(call(n), "cache_hit", "", 1, 0.01) for n in range(2, 9)],
    Event(call(9), "failed", "NotImplementedError: no <fake> for this", None, 0.1),
]


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Writes a page of records; the same ones once."""
    folder = tmp_path_factory.mktemp("pages")
    first = transformer(12)

    def save(name, shown, events=(), results=()):
        path = folder / f"{name}.html"
        data = zip_longest(shown, results, fillvalue=NO_RESULTS)
        path.write_text(inspector_page(name, list(data), events), "utf-8")
        return path

    second = transformer(4)
    results = Results(compared(first), execution=audited(first)), Results(execution=audited(second))
    save("blocks", [first, second], EVENTS, results)
    return lambda name, *what: folder / f"{name}.html" if not what else save(name, *what)


@pytest.fixture
def blocks(browser, saved):
    with inspected(browser, saved("blocks")) as found:
        yield found


def test_the_overview_tells_findings_before_facts(blocks):
    text = blocks.panel
    for words in (
        "20 of",
        "gradients differ",
        "Metadata touched at",
        "held for this backward",
        "Captured again in 1 of",
    ):
        assert words in text
    assert text.index("gradients differ") < text.index("Autograd nodes")
    blocks.page.locator(".cabw-finding", has_text="Metadata touched at").click()
    blocks.settle()
    assert blocks.get("colour") == "touches"
    assert blocks.selection.startswith("n")
    assert "Touched in the initial trace" in blocks.panel


def test_a_double_click_opens_a_group_and_it_stays_in_place(blocks):
    corner = "const b = i.scene.box('g:layers'); return i.renderer.toScreen(b.x + b.w / 2, b.y);"
    before = blocks.do(corner)
    blocks.double_click("g:layers")
    after = blocks.do(corner)
    assert blocks.expanded == {"layers"}
    assert max(abs(a - b) for a, b in zip(before, after, strict=True)) < 1
    blocks.double_click("g:layers.11")
    assert blocks.expanded == {"layers", "layers.11"}
    assert blocks.page.evaluate("() => cabw.model.get('expanded')") == ["layers", "layers.11"]


def test_a_cell_of_a_folded_stack_opens_its_block(blocks):
    point = """const b = i.scene.box('g:layers'), r = i.tree.getBoundingClientRect();
      const [x, y] = i.renderer.toScreen(b.x + 10 + (b.w - 20) / 12 * 5.5, b.y + 45);
      return [x + r.left, y + r.top];"""
    blocks.page.mouse.click(*blocks.do(point))
    blocks.settle()
    assert blocks.selection == "g:layers.6"


def test_the_keyboard_is_enough(blocks):
    for _ in range(60):
        blocks.page.keyboard.press("Tab")
        if blocks.page.evaluate("document.activeElement.getAttribute('role')") == "tree":
            break
    blocks.press("ArrowDown")
    assert blocks.selection == "n0"
    blocks.do("i.select('g:layers'); i.camera.show('g:layers');")
    blocks.press("Enter", "ArrowDown")
    assert blocks.selection == "g:layers.11"
    blocks.press("ArrowDown")
    assert blocks.selection == "g:layers.10"
    blocks.press("Enter")
    assert "layers.10" in blocks.expanded
    active = "document.getElementById(document.querySelector('[role=tree]').getAttribute('aria-activedescendant'))"
    assert "10, Block" in blocks.page.evaluate(f"{active}.textContent")
    assert blocks.page.evaluate(f"{active}.getAttribute('aria-expanded')") == "true"
    blocks.press("Enter")
    assert "layers.10" not in blocks.expanded
    blocks.press("Backspace")
    assert blocks.selection == "g:layers"
    blocks.press("Escape")
    assert blocks.selection == ""
    blocks.press("/")
    blocks.page.keyboard.type("gelu")
    blocks.press("Enter")
    assert blocks.page.locator(".cabw-search output").inner_text() == "1 of 12"
    blocks.press("Escape", "Escape")
    assert blocks.page.evaluate("document.activeElement.getAttribute('role')") == "tree"
    blocks.press("?")
    assert blocks.page.locator(".cabw-keys").is_visible()


def test_search_counts_marks_and_steps(blocks):
    blocks.page.locator(".cabw-search input").fill("softmax layers")
    blocks.settle()
    count = blocks.page.locator(".cabw-search output")
    assert count.inner_text().startswith("12 of ")
    assert "12 matches" in blocks.panel
    assert blocks.do("return i.renderer.state.hits[i.graph.groups.get('layers').index]") == 12
    blocks.page.get_by_label("Next match").click()
    first = blocks.selection
    blocks.page.get_by_label("Next match").click()
    blocks.page.get_by_label("Previous match").click()
    blocks.settle()
    assert blocks.selection == first
    assert count.inner_text() == "1 of 12"
    blocks.page.locator(".cabw-search input").fill("nothing of the kind")
    blocks.settle()
    assert count.inner_text() == "no match"
    blocks.page.get_by_label("Clear search").click()
    assert blocks.get("hits") is None


def test_the_legend_filters(blocks):
    chip = blocks.page.locator(".cabw-chip", has_text="Matmul")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"
    assert blocks.do("return i.renderer.state.dim.reduce((a, b) => a + b, 0)") > 3
    chip.click()
    assert blocks.do("return i.renderer.state.dim") is None


def test_ancestors_descendants_and_the_way_to_a_parameter(blocks):
    node = blocks.do("return i.graph.list.find((n) => n.name.startsWith('Gelu')).key")
    blocks.do(f"i.reveal('{node}')")
    assert "ancestors towards the loss" in blocks.panel
    way = blocks.page.get_by_label("Show the way to a parameter")
    way.fill("layers.3.norm1.weight")
    way.press("Enter")
    blocks.settle()
    assert blocks.do("return i.way.count") > 100
    assert blocks.do("return i.renderer.state.path.reduce((a, b) => a + b, 0)") == blocks.do("return i.way.count")


def test_the_node_panel_tells_what_is_known(blocks):
    node = blocks.do("return i.graph.list.find((n) => n.name === 'AddmmBackward0').key")
    blocks.do(f"i.reveal('{node}')")
    text = blocks.panel
    for words in ("layers.11.mlp.down", "8 × 64 × 192", "model.py:10", "x = step_10(x)", "Saved tensors", "393 kB"):
        assert words in text
    for words in (
        "Lifted metadata",
        "gradient 0, dimension 2",
        "Baked metadata",
        "torch.float32",
        "ops.AddmmBackward0",
    ):
        assert words in text
    blocks.page.locator(".cabw-fx svg rect").first.wait_for()
    blocks.page.locator(".cabw-links button").first.click()
    blocks.settle()
    assert blocks.selection != node


def test_a_row_of_parity_leads_to_its_node_and_back(blocks):
    blocks.tab("Parity")
    assert "20 of" in blocks.panel
    assert "Tolerance for float32" not in blocks.panel
    blocks.page.locator("summary", has_text="How they were compared").click()
    assert "Tolerance for float32" in blocks.panel
    blocks.page.locator(".cabw-row.cabw-parity:not(.cabw-cols)").nth(2).click()
    blocks.settle()
    name = blocks.do("return i.graph.item(i.selection).parameter")
    current = blocks.page.locator(".cabw-parity[aria-current=true]")
    assert name in current.get_attribute("title")
    assert "mismatch" in current.get_attribute("title")
    blocks.page.locator(".cabw-seg button", has_text="All").click()
    blocks.page.locator(".cabw-cols button", has_text="Gradient").click()
    assert blocks.page.locator(".cabw-row.cabw-parity:not(.cabw-cols)").first.inner_text().startswith("layers.0")


def test_long_lists_exist_only_where_they_are_seen(blocks):
    blocks.tab("Code")
    blocks.page.locator(".cabw-code button").first.wait_for()
    assert blocks.page.locator(".cabw-code button").count() < 80
    blocks.page.locator(".cabw-code").evaluate("list => { list.parentElement.scrollTop = list.scrollHeight / 2 }")
    blocks.page.wait_for_timeout(200)
    lines = blocks.page.locator(".cabw-code button")
    assert lines.count() < 80
    assert int(lines.first.locator("i").inner_text()) > 500
    lines.nth(30).click()
    blocks.settle()
    assert blocks.selection.startswith("n")
    assert blocks.page.locator(".cabw-code .on").count() > 0


def test_metadata_by_phase(blocks):
    blocks.tab("Metadata")
    text = blocks.panel
    assert "1 node touched before the graph ran" in text
    assert "user: train.py:3" in text
    assert "there was no pass to watch" in text
    assert "Most reads" in text
    blocks.page.locator(".cabw-read .cabw-link").click()
    blocks.settle()
    assert "Show all" in blocks.panel


def test_memory_by_module(blocks):
    blocks.tab("Memory")
    assert "held until this backward has run" in blocks.panel
    blocks.page.get_by_label("Open layers").click()
    assert blocks.page.locator(".cabw-memory").count() > 12
    blocks.page.locator(".cabw-memory .cabw-link", has_text="layers").first.click()
    blocks.settle()
    assert blocks.selection == "g:layers"


def test_misses_tell_why_and_lead_to_the_other_capture(blocks):
    blocks.tab("Misses")
    text = blocks.panel
    assert "2 captures in 10 backward calls" in text
    assert "AccumulateGrad #9 has another key" in text
    assert "calls 2 to 8" in text
    assert "NotImplementedError: no <fake> for this" in text
    nodes = blocks.get("graph.list.length")
    blocks.page.locator(".cabw-link", has_text="Show capture 1").click()
    blocks.page.wait_for_function("document.querySelector('#app').inspector.graph.data.capture === 1")
    assert blocks.get("graph.list.length") < nodes
    assert blocks.page.locator(".cabw-captures").input_value() == "1"
    blocks.page.locator(".cabw-captures").select_option("0")
    blocks.page.wait_for_function("document.querySelector('#app').inspector.graph.data.capture === 0")


def test_very_many_calls_exist_only_where_they_are_seen(browser, saved):
    reasons = [f"Cache miss due to {n + 1} changed tensor shapes" for n in range(5000)]
    events = [Event(call(n), "captured", reason, n, 0.1) for n, reason in enumerate(reasons)]
    with inspected(browser, saved("calls", [records.mlp()], events)) as found:
        found.tab("Misses")
        rows = found.page.locator(".cabw-call")
        assert 10 < rows.count() < 80
        body = found.page.locator(".cabw-body")
        assert body.evaluate("b => b.scrollHeight") > 5000 * 60
        body.evaluate("b => { b.scrollTop = b.scrollHeight; }")
        found.page.locator(".cabw-call", has_text="call 4999").wait_for()
        assert rows.count() < 80
        assert "5000 sizes changed" in rows.last.inner_text()


def test_a_pinch_zooms_around_the_fingers(browser, saved):
    """Two fingers, as Chromium gets them from a touch screen."""
    with inspected(browser, saved("blocks"), state="#level=autograd") as found:
        left, top = found.do("const r = i.tree.getBoundingClientRect(); return [r.left, r.top];")
        devtools = found.page.context.new_cdp_session(found.page)

        def touch(kind, *fingers):
            points = [{"x": left + x, "y": top + y, "id": k} for k, (x, y) in enumerate(fingers)]
            devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
            found.page.wait_for_timeout(30)

        at = "const [x, y] = i.renderer.toWorld(300, 200); return [x, y, i.camera.view.k];"
        x, y, zoom = found.do(at)
        touch("touchStart", (250, 200), (350, 200))
        for spread in (60, 80, 100):
            touch("touchMove", (300 - spread, 200), (300 + spread, 200))
        touch("touchEnd")
        found.settle()
        after = found.do(at)
        assert after[2] == pytest.approx(2 * zoom, rel=0.02)
        assert after[:2] == pytest.approx([x, y], abs=2)
        assert found.selection == ""


def test_columns_have_heads(browser, saved):
    with inspected(browser, saved("blocks"), state="#level=autograd") as found:
        found.do("i.camera.fit()")
        heads = found.do("return i.scene.heads.map((h) => [h.x, h.texts[0]])")
        assert len(heads) == found.do("return i.scene.columns") > 1
        assert heads[0][1].startswith("norm")
        assert all("layers." in text for _, text in heads[1:-1])
        numbers = [int(text.split("layers.")[1].split(" ")[0]) for _, text in heads[1:-1]]
        assert numbers == sorted(numbers, reverse=True)


def test_levels_and_fit(blocks):
    blocks.page.locator(".cabw-seg button", has_text="Autograd").click()
    blocks.settle()
    assert blocks.do("return i.scene.leaves.length === i.graph.list.length")
    blocks.page.get_by_label("Fit (f)").click()  # once more: opening a level has fitted it to the width
    blocks.settle()
    assert blocks.do("return i.scene.columns") > 1
    blocks.page.locator(".cabw-seg button", has_text="Module").click()
    blocks.settle()
    assert blocks.expanded == set()


def test_wheel_and_drag(blocks):
    blocks.do("i.setLevel('autograd')")
    x, y = blocks.do("const r = i.tree.getBoundingClientRect(); return [r.left + 200, r.top + 200];")
    blocks.page.mouse.move(x, y)
    before = blocks.get("camera.view")
    blocks.page.mouse.wheel(0, 300)
    blocks.settle()
    panned = blocks.get("camera.view")
    assert panned["y"] > before["y"]
    assert panned["k"] == before["k"]
    blocks.page.keyboard.down("Control")
    blocks.page.mouse.wheel(0, -100)
    blocks.page.keyboard.up("Control")
    blocks.settle()
    assert blocks.get("camera.view.k") > panned["k"]
    blocks.page.mouse.down()
    blocks.page.mouse.move(x + 50, y + 20)
    blocks.page.mouse.up()
    assert blocks.selection == ""


def test_what_python_sets_is_followed(blocks):
    """The traits as a kernel would set them."""
    node = blocks.do("return i.graph.list.find((n) => n.name.startsWith('Gelu')).key")
    traits = {"selection": node, "color_by": "bytes", "query": "gelu"}
    set_traits = "t => { for (const [k, v] of Object.entries(t)) cabw.model.set(k, v); cabw.model.save_changes(); }"
    blocks.page.evaluate(set_traits, traits)
    blocks.settle()
    assert blocks.selection == node
    assert {"layers", "layers.11", "layers.11.mlp"} <= blocks.expanded
    assert blocks.get("colour") == "bytes"
    assert blocks.page.locator(".cabw-search input").input_value() == "gelu"
    blocks.page.evaluate("() => { cabw.model.set('expanded', ['layers']); cabw.model.save_changes(); }")
    blocks.settle()
    assert blocks.expanded == {"layers"}
    assert blocks.do("return i.renderer.state.selection") == "g:layers.11"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 700], ids=["wide", "narrow"])
def test_texts_are_readable_in_every_panel(browser, saved, dark, width):
    with inspected(browser, saved("blocks"), dark=dark, width=width, state="#color_by=parity") as found:
        assert found.get("el.dataset.theme") == ("dark" if dark else "light")
        found.do("i.reveal(i.graph.wrong[0].ref.key)")
        contrast = (ROOT / "tests" / "contrast.js").read_text().replace('".cabw ', '".cabw-inspector ')
        for tab in TABS:
            found.tab(tab)
            seen = found.page.evaluate(contrast)
            assert len(seen) > 20
            weak = [(round(ratio, 2), what) for ratio, what in seen if ratio < 4.5]
            assert weak == [], tab
        assert found.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


HOSTS = {  # how each says that it is dark, or light
    "VS Code": ("document.body.className = 'vscode-dark'", "document.body.className = 'vscode-light'"),
    "VS Code, high contrast": (
        "document.body.className = 'vscode-high-contrast'",
        "document.body.className = 'vscode-high-contrast vscode-high-contrast-light'",
    ),
    "Colab": (
        "document.documentElement.setAttribute('theme', 'dark')",
        "document.documentElement.setAttribute('theme', 'light')",
    ),
    "marimo": ("document.body.className = 'dark dark-theme'", "document.body.className = 'light light-theme'"),
}


@pytest.mark.parametrize("host", list(HOSTS))
def test_the_theme_is_the_hosts_whatever_the_system_says(browser, saved, host):
    for system, (dark, light) in ((False, HOSTS[host]), (True, HOSTS[host])):
        with inspected(browser, saved("blocks"), dark=system) as found:
            found.do(dark)
            assert found.get("el.dataset.theme") == "dark"
            found.do(light)
            assert found.get("el.dataset.theme") == "light"


def test_it_works_inside_a_shadow_root(browser, saved):
    """Where marimo puts it: the focus is then the root's, and no style of the page reaches in."""
    with inspected(browser, saved("blocks")) as found:
        found.page.evaluate(
            """() => { const host = document.createElement("div"); document.body.prepend(host);
              const root = host.attachShadow({ mode: "open" }), el = document.createElement("div");
              root.append(document.querySelector("style").cloneNode(true), el);
              document.querySelector("#app").inspector.dispose(); document.querySelector("#app").remove();
              el.id = "app"; cabw.render({ model: cabw.model, el }); window.inner = el; }"""
        )
        found.page.wait_for_function("inner.inspector.scene")
        found.page.locator(".cabw-tabs button", has_text="Node").focus()
        found.page.keyboard.press("ArrowRight")
        found.page.keyboard.press("ArrowRight")
        assert found.page.evaluate("inner.inspector.panels.tab") == "parity"
        assert found.page.evaluate("inner.getRootNode().activeElement.textContent").startswith("Parity")
        found.page.locator(".cabw-row.cabw-parity:not(.cabw-cols)").nth(2).focus()
        found.page.keyboard.press("Enter")
        assert found.page.evaluate("inner.getRootNode().activeElement.dataset.key === inner.inspector.selection")


# ------------------------------------------------------------------------------------------------------- what is odd


def visit(found):
    for tab in TABS:
        found.tab(tab)
        assert found.panel.strip(), tab
    found.do("i.setLevel('autograd'); for (const n of i.graph.list.slice(0, 12)) i.reveal(n.key);")
    found.tab("Node")


def test_hostile_names_are_text(browser, saved):
    record = records.hostile((*records.HOSTILE, EVIL, "</script><script>window.pwned=1</script>"))
    nodes = [replace(n, module=EVIL, module_class=EVIL) if n.number % 2 else n for n in record.autograd_nodes]
    touch = Touch("initial_trace", EVIL, 1, None, "user", EVIL)
    record = replace(record, autograd_nodes=tuple(nodes), touches=(touch,), watched=("initial_trace",))
    results = Results(compared(record), execution=(Touch("execution", EVIL, 2, None, "kernel", EVIL),))
    events = [Event(BackwardCall(0, EVIL, EVIL), "captured", EVIL, 0)]
    path = saved("hostile", [record], events, [results])
    with inspected(browser, path) as found:
        visit(found)
        found.page.locator(".cabw-search input").fill("<img")
        found.settle()
        assert found.page.evaluate("window.pwned") is None
        assert found.page.locator("img").count() == 0
        assert found.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


CASES = {
    "no captures": ([], [Event(call(0), "failed", "no <fake> for this")], "The one backward call was not captured"),
    "no calls": ([], [], "No backward call was made in the block"),
    "no nodes": ([CaptureRecord(records.CALL, "2.13.0", "eager", ())], [], "Nothing was captured"),
    "one node": ([replace(records.mlp(), autograd_nodes=records.mlp().autograd_nodes[-1:])], [], "Parity has not"),
    "failed": ([records.failed()], [], "Stopped at ReluBackward0 #5"),
    "hooks": ([records.hooked()], [], "Parity has not been computed"),
    "kinds": ([records.kinds()], [], "Parity has not been computed"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_what_is_missing_is_said(browser, saved, name):
    shown, events, words = CASES[name]
    with inspected(browser, saved(name.replace(" ", "-"), shown, events)) as found:
        assert words in found.panel
        visit(found)
        found.tab("Parity")
        assert "cap.parity()" in found.panel
        found.tab("Misses")
        assert ("known here" in found.panel) == (not events)


def test_a_capture_without_a_trace_says_so_where_a_graph_would_tell(browser, saved):
    nodes = tuple(replace(node, graph_nodes=()) for node in records.mlp().autograd_nodes)
    record = replace(
        records.mlp(), autograd_nodes=nodes, graph_nodes=(), inputs=(), sizes=(), watched=(), is_traced=False
    )
    with inspected(browser, saved("untraced", [record], [Event(call(0), "watched", "", 0, 0.001)])) as found:
        assert "Watched once, without a trace" in found.panel
        assert "none: watched without a trace" in found.panel
        assert "not traced" in found.page.locator(".cabw-status").inner_text()
        for tab in ("Metadata", "Parity", "Code"):
            found.tab(tab)
            assert "there is no captured graph" in found.panel
            assert "capture(model) without trace=False" in found.panel
            assert "cap." not in found.panel  # no call that would be refused as well
        assert "Untouched" not in found.panel
        found.tab("Misses")
        assert "Watched" in found.panel
        found.do("i.setLevel('fx')")
        assert "There is no graph" in found.page.locator(".cabw-note").inner_text()


def test_a_task_says_how_it_goes(browser, saved):
    """With a model that claims a kernel and never answers, and then with the answers that a kernel gives."""
    set_traits = "t => { for (const [k, v] of Object.entries(t)) cabw.model.set(k, v); cabw.model.save_changes(); }"
    choices = {"parity": {"device": ["cpu"], "hooks": ["run", "drop"]}}
    with inspected(browser, saved("task", [records.hooked()])) as found:
        found.page.evaluate(set_traits, {"kernel": True, "choices": choices})
        found.page.evaluate("() => { cabw.model.send = (message) => (window.sent = message); }")
        found.tab("Parity")
        assert "Parity has not been computed." in found.panel
        found.page.get_by_label("Hooks").select_option("drop")
        found.page.locator(".cabw-button").click()
        options = {"device": "cpu", "hooks": "drop"}
        assert found.page.evaluate("sent") == {"type": "run", "what": "parity", "options": options}
        assert "Asked the kernel" in found.panel
        assert found.page.locator(".cabw-button").is_disabled()
        found.do("i.task.latest.at -= 9000; i.refreshPanel();")
        assert "the kernel is busy with a cell, or gone" in found.panel
        found.page.evaluate(set_traits, {"task": {"what": "parity", "state": "running"}})
        assert "Interrupt the kernel to stop it" in found.panel
        found.page.evaluate(set_traits, {"task": {"what": "parity", "state": "running", "share": 0.25}})
        assert found.page.locator(".cabw-body progress").get_attribute("value") == "0.25"
        found.page.evaluate(set_traits, {"task": {"what": "parity", "state": "failed", "error": f"no <b>{EVIL}</b>"}})
        assert f"no <b>{EVIL}</b>" in found.panel
        assert found.page.locator(".cabw-body img").count() == 0
        assert found.page.locator(".cabw-button").is_enabled()
        found.page.evaluate(set_traits, {"task": {"what": "parity", "state": "interrupted"}})
        assert "Stopped by an interrupt" in found.panel


def test_the_page_may_ask_for_nothing(browser, saved):
    """The policy is on here, as it is for everybody else."""
    page = browser.new_page()
    page.goto(saved("blocks").resolve().as_uri())
    page.locator(".cabw-status span", has_text="nodes").wait_for()
    blocked = page.evaluate("() => fetch('https://example.com').then(() => 'went', () => 'blocked')")
    page.close()
    assert blocked == "blocked"


@pytest.mark.slow
def test_fifty_thousand_nodes(browser, saved):
    record = transformer(806)
    path = saved("large", [record], [], [Results(compared(record), execution=audited(record))])
    with inspected(browser, path, state="#level=autograd") as found:
        assert found.page.evaluate("cabwTimes.where") == "worker"
        assert found.page.locator("[role=treeitem]").count() < 200
        found.page.locator(".cabw-search input").fill("softmax")
        found.page.wait_for_timeout(300)
        assert found.page.locator(".cabw-search output").inner_text().startswith("807 of ")
        found.do("i.toggle('layers.5');")
        assert "layers.5" not in found.expanded
        assert found.page.evaluate("() => cabw.model.get('expanded')") == ["*", "!layers.5"]
        found.tab("Parity")
        assert found.page.locator(".cabw-parity").count() < 100
