"""Makes the README's picture: `python -m tests.screenshot docs/first_backward.png`. Needs Chromium, JupyterLab, dot."""

import sys
import tempfile
from pathlib import Path

import nbformat
from PIL import Image

from tests.browser import browser, jupyterlab, run_notebook

PRELUDE = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4))
x = torch.randn(32, 8)

%load_ext cabw_viz
"""
CAPTURE = """
%%cabw --model model --parity
model(x).square().mean().backward()
"""
WIDTH, HEIGHT = 980, 1170


def main(target: Path) -> None:
    """Run two cells in JupyterLab and photograph them."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, private = Path(temporary, "notebooks"), Path(temporary, "private")
        folder.mkdir()
        cells = [nbformat.v4.new_code_cell(source.strip()) for source in (PRELUDE, CAPTURE)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "backward.ipynb")
        with jupyterlab(folder, private) as lab, browser(lab.address, width=WIDTH, height=HEIGHT) as opened:
            run_notebook(opened.page, lab, "backward.ipynb")
            opened.page.evaluate("() => jupyterapp.shell.collapseLeft()")
            opened.page.evaluate("() => document.querySelector('.jp-WindowedPanel-outer').scrollTo(0, 0)")
            opened.page.wait_for_timeout(500)
            opened.page.locator(".jp-Notebook").screenshot(path=target)
    # A quarter of the size, and all of the colours there are.
    Image.open(target).convert("RGB").quantize(128).save(target, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
