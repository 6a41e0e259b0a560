"""Makes the README's picture: `python -m tests.inspector.screenshot docs/inspector.png`. Needs Chromium, transformers.

GPT-2's backward with a hook that the replay leaves out: everything below it differs from eager.
"""

import sys
import tempfile
from pathlib import Path

import torch

import cabw_viz
from cabw_viz.surfaces import demo
from tests.inspector.opened import chromium, inspected

LAYERS, HOOKED = 6, 3
STATE = "#color_by=parity"
LOOK = """i.openTab('parity'); for (const path of ['transformer', 'transformer.h', 'transformer.h.3']) i.toggle(path);
  i.reveal(i.graph.first.key); i.select(i.graph.first.key);"""


def nudged(gradient: torch.Tensor) -> torch.Tensor:
    """The hook."""
    return gradient * 1.001


def main(target: Path) -> None:
    """Capture, compare, save and photograph."""
    torch.manual_seed(demo.SEED)
    model = demo.build(LAYERS)
    model.transformer.h[HOOKED].register_forward_hook(
        lambda _, __, out: (out[0] if isinstance(out, tuple) else out).register_hook(nudged) and None
    )
    with cabw_viz.capture(model) as session:
        demo.loss(model, demo.text()).backward()
    session[0].parity(hooks="drop")
    session[0].divergence(hooks="drop")
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = session[0].to_html(Path(folder, "inspector.html"))
        with inspected(browser, path, state=STATE, width=1280) as found:
            found.page.set_viewport_size({"width": 1280, "height": 720})
            found.do(LOOK)
            found.page.wait_for_timeout(500)
            found.page.screenshot(path=target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
