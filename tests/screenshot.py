"""Makes the README's picture: `python -m tests.screenshot docs/first_backward.png`. Needs Chromium, JupyterLab, dot."""

import sys
import tempfile
from pathlib import Path

import nbformat

from tests.browser import browser, jupyterlab, run_notebook

PRELUDE = """
import torch
from torch import nn

%load_ext cabw_viz

model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
x = torch.randn(32, 8)
"""
CAPTURE = """
%%cabw --model model --parity
model(x).square().mean().backward()
"""
# Without the marks of the cell that happens to be selected.
CALM = (
    ".jp-cell-toolbar, .jp-Collapser { display: none !important }"
    ".jp-Notebook .jp-Cell.jp-Notebook-cell { border: 0 !important; outline: 0 !important }"
)
WIDTH, HEIGHT = 900, 1275


def main(target: Path) -> None:
    """Run two cells in JupyterLab and photograph them."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, private = Path(temporary, "notebooks"), Path(temporary, "private")
        folder.mkdir()
        cells = [nbformat.v4.new_code_cell(source.strip()) for source in (PRELUDE, CAPTURE)]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / "backward.ipynb")
        with jupyterlab(folder, private) as lab, browser(lab.address, width=WIDTH, height=HEIGHT) as opened:
            run_notebook(opened.page, lab, "backward.ipynb")
            opened.page.evaluate("() => jupyterapp.shell.collapseLeft()")
            opened.page.add_style_tag(content=CALM)
            opened.page.evaluate("() => document.querySelector('.jp-WindowedPanel-outer').scrollTo(0, 0)")
            opened.page.wait_for_timeout(500)
            opened.page.locator(".jp-Notebook").screenshot(path=target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
