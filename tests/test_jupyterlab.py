"""The first notebook in a real JupyterLab, in a real browser: it runs, and what it shows can be seen and read."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kernels import ROOT

pytest.importorskip("playwright")

from tests.browser import Lab, Opened, browser, jupyterlab, run_notebook

NOTEBOOK = "01_first_backward.ipynb"

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@dataclass
class Run:
    """The notebook after all of its cells ran."""

    opened: Opened
    lab: Lab
    cells: list[dict[str, Any]]


@pytest.fixture(scope="module", params=["JupyterLab Light", "JupyterLab Dark"])
def run(request, tmp_path_factory) -> Iterator[Run]:
    folder, private = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("private")
    shutil.copy(ROOT / "notebooks" / NOTEBOOK, folder)
    with jupyterlab(folder, private, theme=request.param) as lab, browser(lab.address) as opened:
        yield Run(opened, lab, run_notebook(opened.page, lab, NOTEBOOK))


def outputs(run: Run) -> list[dict[str, Any]]:
    return [output for cell in run.cells if cell["cell_type"] == "code" for output in cell["outputs"]]


def test_every_cell_ran_without_an_error(run):
    assert [output["evalue"] for output in outputs(run) if output["output_type"] == "error"] == []
    assert [output["text"] for output in outputs(run) if output.get("name") == "stderr"] == []
    assert all(cell["execution_count"] for cell in run.cells if cell["cell_type"] == "code")
    assert run.opened.errors == []


def test_nothing_was_asked_of_other_hosts(run):
    assert run.opened.outside == []


def test_the_inspectors_are_seen(run):
    page = run.opened.page
    inspectors = page.locator(".cabw-inspector")
    assert inspectors.count() == 3
    for inspector in inspectors.all():
        assert inspector.locator(".cabw-status", has_text="nodes").is_visible()
        drawn = inspector.evaluate("e => e.parentElement.inspector.scene.leaves.length")
        assert drawn >= 3


@pytest.mark.dot
def test_the_pictures_are_seen(run):
    images = run.opened.page.locator("img[src^='data:image/svg+xml']")
    assert images.count() == 5
    assert all(image.evaluate("image => image.complete && image.naturalWidth > 300") for image in images.all())


def test_the_tables_are_seen(run):
    page = run.opened.page
    assert page.locator(".cabw td", has_text="✓ bitwise").count() > 10
    assert page.locator(".cabw td", has_text="✗ mismatch").count() == 2
    assert all(table.is_visible() for table in page.locator(".cabw table").all())


def test_nothing_is_wider_than_its_cell(run):
    """What is too wide is scrolled where it is, and does not push the page."""
    wide = run.opened.page.evaluate(
        "() => [...document.querySelectorAll('.jp-OutputArea-output')].filter(o => o.scrollWidth > o.clientWidth + 1)"
        ".map(o => o.className + ' ' + o.textContent.slice(0, 80))"
    )
    assert wide == []


def test_texts_are_readable(run):
    contrasts = run.opened.page.evaluate((ROOT / "tests" / "contrast.js").read_text())
    assert len(contrasts) > 50
    assert [(round(contrast, 2), what) for contrast, what in contrasts if contrast < 4.5] == []
