"""The inspector in a real JupyterLab and a real Notebook: clicks reach Python, and Python's answers come back."""

from dataclasses import dataclass

import nbformat
import pytest

pytest.importorskip("playwright")

from tests.browser import Opened, browser, jupyterlab, run_notebook

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CAPTURE = """
import torch
from torch import nn
import cabw_viz

model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
with cabw_viz.capture(model) as session:
    model(torch.randn(32, 8)).square().mean().backward()
"""
WIDGET = "import ipywidgets\ninspector = session.inspect()\nipywidgets.VBox([inspector])"
CELLS = (CAPTURE, WIDGET, "session")

KERNEL = """async code => {
  const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel, asked = kernel.requestExecute({ code });
  let out = "";
  asked.onIOPub = m => { out += m.content.text ?? (m.content.evalue ? "ERROR " + m.content.evalue : ""); };
  await asked.done;
  return out.trim();
}"""
POINT = """key => {
  const i = document.querySelector(".cabw-inspector").parentElement.inspector, r = i.tree.getBoundingClientRect();
  const b = i.scene.box(key), [x, y] = i.renderer.toScreen(b.x + b.w / 2, b.y + 12);
  return [x + r.left, y + r.top];
}"""


@dataclass
class Notebook:
    """A notebook whose cells ran."""

    opened: Opened
    cells: list

    def python(self, code: str) -> str:
        return self.opened.page.evaluate(KERNEL, code)

    def click(self, key: str) -> None:
        self.opened.page.mouse.click(*self.opened.page.evaluate(POINT, key))
        self.opened.page.wait_for_timeout(600)


def write(folder):
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / "backward.ipynb")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder, private = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("private")
    write(folder)
    with jupyterlab(folder, private) as server:
        yield server


@pytest.fixture(scope="module")
def notebook(lab):
    with browser(lab.address) as opened:
        cells = run_notebook(opened.page, lab, "backward.ipynb")
        ready = "() => [...document.querySelectorAll('.cabw-inspector')].every(e => e.parentElement.inspector.scene)"
        opened.page.wait_for_selector(".cabw-inspector")
        opened.page.wait_for_function(ready)
        opened.page.evaluate("() => document.querySelector('.cabw-inspector').scrollIntoView({ block: 'center' })")
        opened.page.wait_for_timeout(500)
        yield Notebook(opened, cells)


def test_a_session_shows_itself_as_the_inspector_with_a_static_view_beside_it(notebook):
    (output,) = notebook.cells[2]["outputs"]
    assert set(output["data"]) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    assert notebook.opened.page.locator(".cabw-inspector").count() == 2


def test_a_click_reaches_python(notebook):
    notebook.click("n1")
    assert notebook.python("print(inspector.selection, inspector.selected.name)") == "n1 MeanBackward0"


def test_python_moves_the_view(notebook):
    notebook.python("inspector.selection = 'n3'; inspector.color_by = 'bytes'; inspector.query = 'tanh'")
    page = notebook.opened.page
    page.locator(".cabw-search output", has_text="1 of 1").first.wait_for()
    assert "AddmmBackward0" in page.locator(".cabw-body h2").first.inner_text()
    assert notebook.python("print(sorted(inspector.expanded))") == "['2']"


def test_a_parity_run_started_from_the_panel_comes_back(notebook):
    page = notebook.opened.page
    page.locator(".cabw-tabs button", has_text="Parity").first.click()
    page.locator(".cabw-button").first.click()
    page.locator(".cabw-body h2", has_text="All 4 gradients agree").first.wait_for()
    assert page.locator(".cabw-status button", has_text="parity: all agree").count() == 1
    assert notebook.python("print(session[0].last_parity.rows[0].verdict)") == "bitwise"


def test_the_first_divergence_is_looked_for_from_the_panel(notebook):
    page = notebook.opened.page
    page.locator(".cabw-tabs button", has_text="Parity").first.click()
    page.locator(".cabw-button", has_text="Find the first divergence").first.click()
    page.locator(".cabw-body p", has_text="No divergence").first.wait_for()
    assert notebook.python("print(session[0].last_divergence.compared > 5)") == "True"


def test_levels_are_fetched_and_computed(notebook):
    page = notebook.opened.page
    drawn = "letter => document.querySelector('.cabw-inspector').parentElement.inspector.drawn.letter === letter"
    page.locator(".cabw-seg button", has_text="FX").first.click()
    page.wait_for_function(drawn, arg="f")
    assert notebook.python("print(inspector.level, inspector.aten == b'')") == "fx True"
    page.locator(".cabw-seg button", has_text="Aten").first.click()
    page.locator(".cabw-note .cabw-button", has_text="Lower the graph").first.click()
    page.wait_for_function(drawn, arg="a")
    assert notebook.python("print(inspector.level, len(session[0].results.lowered) > 10)") == "aten True"
    calls = "[n.ordinal for n in session[0].record.graph_nodes if n.kind == 'backward_call']"  # nothing of plumbing
    ordinal = notebook.python(f"print({calls}[1])")
    notebook.python(f"inspector.selection = 'f{ordinal}'")
    page.wait_for_function(drawn, arg="f")
    assert notebook.python("print(inspector.level, inspector.selected.ordinal)") == f"fx {ordinal}"
    notebook.python("inspector.level = 'autograd'")
    page.wait_for_function(drawn, arg="n")


def test_the_code_around_a_line_of_a_cell(notebook):
    notebook.python("inspector.selection = 'n3'")
    page = notebook.opened.page
    page.locator(".cabw-tabs button", has_text="Node").first.click()
    lines = page.locator(".cabw-body .cabw-src").first
    lines.locator(".on", has_text="model(torch.randn(32, 8))").wait_for()
    assert "with cabw_viz.capture(model) as session" in lines.inner_text()


def test_an_error_of_a_run_stands_in_the_panel(notebook):
    notebook.python("session.close()")
    page = notebook.opened.page
    page.locator(".cabw-tabs button", has_text="Metadata").first.click()
    page.locator(".cabw-button").first.click()
    page.locator(".cabw-error", has_text="closed").first.wait_for()


def test_the_theme_follows_the_host(notebook):
    page = notebook.opened.page
    assert page.locator(".cabw-inspector").first.get_attribute("data-theme") == "light"
    page.evaluate("() => jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Dark' })")
    page.locator(".cabw-inspector[data-theme=dark]").first.wait_for()


def test_nothing_went_wrong_and_nothing_was_asked_of_other_hosts(notebook):
    assert notebook.opened.errors == []
    assert notebook.opened.outside == []


def test_in_notebook_7(lab, notebook):
    pytest.importorskip("notebook")
    errors = []
    page = notebook.opened.page.context.browser.new_page()  # of the same browser: Playwright allows one in a process
    # Ours alone: Notebook 7 complains of JupyterLab's own settings. A widget's module comes from a blob.
    page.on("pageerror", lambda error: errors.append(str(error)) if "blob:" in (error.stack or "") else None)
    page.goto(lab.url("notebooks/backward.ipynb"))
    idle = "window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
    page.wait_for_function(idle)
    page.evaluate("async () => { await jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.wait_for_selector(".cabw-inspector canvas")
    page.wait_for_function("() => document.querySelector('.cabw-inspector').parentElement.inspector.scene")
    page.evaluate("() => document.querySelector('.cabw-inspector').scrollIntoView({ block: 'center' })")
    page.wait_for_timeout(800)
    found = Notebook(Opened(page), [])
    found.click("n1")
    assert found.python("print(inspector.selection)") == "n1"
    assert errors == []
