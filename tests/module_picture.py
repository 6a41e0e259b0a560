"""Makes the README's picture of a module graph: `python -m tests.module_picture docs/module_graph.png`.

Needs Chromium, dot and transformers.
"""

import re
import sys
from pathlib import Path

from cabw_viz.surfaces import demo
from tests.inspector.opened import chromium

LAYERS = 12
SCALE = 2
"""Pixels of the picture for one of the page, so that it is sharp where a screen has more."""


def main(target: Path) -> None:
    """Capture a GPT-2 and photograph its module graph, coloured by the bytes that are kept for the backward."""
    _, session = demo.capture_backward(LAYERS)
    svg = session[0].graph(color_by="bytes").svg()
    width, height = (round(float(size) * 4 / 3) for size in re.findall(r'(?:width|height)="([\d.]+)pt"', svg)[:2])
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=SCALE)
        page.set_content(f'<body style="margin: 0">{svg}</body>')
        page.screenshot(path=target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
