"""The inspector: packing in Python, and in a browser unpacking, the first frame, panning, opening a group, searching.

    python benchmarks/bench_inspector.py [BLOCKS | real:LAYERS ...]

Backwards of transformers of 12, 48, 160 and 806 blocks (about 740, 2,900, 9,600 and 48,000 nodes), made up, and of one
of 48 layers that is really captured, drawn at level `autograd` in headless Chromium with software rendering, 1280 x
760; going from there to level `fx` for the first time unpacks the code and lays its nodes out. Medians of three fresh
browsers. The bars are what the mock did on a quiet machine with two cores: .2, .22, .38, .69 s to the first frame, 60
frames a second, 15 to 46 ms to open a group, 2 to 15 ms to search; 8 MB of columns, HTML of 0.4 MB for 12 blocks and of
2 MB for the largest.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

from benchmarks import measure
from cabw_viz.record.kinds import PLUMBING
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.results import Results
from cabw_viz.views.inspector import columns, findings
from cabw_viz.views.inspector.page import inspector_page
from tests.inspector.blocks import audited, compared, transformer
from tests.inspector.opened import INSPECTOR, chromium

SIZES = ("12", "48", "160", "806", "real:48")
REPEATS = 3

PAN = """zoom => new Promise(done => {
  const i = %s, r = i.renderer, began = performance.now();
  let n = 0;
  i.camera.move({ x: -100, y: i.scene.h / 3, k: zoom }, false);
  const step = () => {
    n++;
    i.camera.pan(r.view.x + Math.sin(n / 9) / zoom, r.view.y + 6 / zoom);
    r.draw();
    const past = performance.now() - began;
    if (past < 1500) requestAnimationFrame(step); else done((n / past) * 1000);
  };
  requestAnimationFrame(step);
})"""
TOGGLE = """path => new Promise(done => {
  const i = %s, r = i.renderer, old = i.scene, drawn = r.onDraw, began = performance.now();
  r.onDraw = () => {
    drawn();
    if (i.scene === old) return;
    r.onDraw = drawn;
    done(performance.now() - began);
  };
  i.toggle(path);
})"""
GROUPS = """() => {
  const blocks = %s.graph.stack.children, paths = [blocks[5].path, blocks[1].children[0].path, blocks[4].path];
  return paths.flatMap((path) => [path, path]);
}"""
LEVEL = """level => new Promise(done => {
  const i = %s, began = performance.now();
  i.setLevel(level);
  const look = () => {
    if (i.level === level && !i.picture.switching && !i.pending && !i.picture.layout.waiting && i.renderer.complete)
      requestAnimationFrame(() => done(performance.now() - began));
    else requestAnimationFrame(look);
  };
  look();
})"""
SEARCH = (
    "() => { const i = %s, began = performance.now(); i.graph.search('softmax'); return performance.now() - began; }"
)


def main(sizes: tuple[str, ...]) -> None:
    """Measure and print."""
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
    for blocks in sizes:
        record = captured(int(blocks[5:])) if blocks.startswith("real:") else transformer(int(blocks))
        results = Results(compared(record), execution=audited(record))
        nodes, graph_nodes = len(record.autograd_nodes), sum(n.kind not in PLUMBING for n in record.graph_nodes)
        print(f"\n{blocks} blocks, {nodes:,} autograd nodes, {graph_nodes:,} graph nodes without plumbing")
        packed("graph", partial(columns.pack_graph, record))
        packed("touches", partial(findings.pack_touches, record, results))
        packed("parity", partial(findings.pack_parity, record, results.comparison))
        packed("code", partial(columns.pack_code, record))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "inspector.html")
            path.write_text(inspector_page("bench", [(record, results)]), "utf-8")
            print(f"  file: {path.stat().st_size / 1e6:.2f} MB")
            runs = [browsed(path) for _ in range(REPEATS)]
        for name in runs[0]:
            values = [run[name] for run in runs]
            print(f"  {name}: {statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})", flush=True)


def captured(layers: int) -> CaptureRecord:
    """The backward of an encoder that is really run."""
    import cabw_viz

    model, batch = measure.transformer(layers)
    with cabw_viz.capture(model, gradients="leaves") as session:
        model(batch).square().mean().backward()
    return session[0].record


def packed(name: str, pack: Callable[[], bytes]) -> None:
    """Print the shortest of three times, and how many bytes it gave."""
    times, raw = [], b""
    for _ in range(3):
        start = time.perf_counter()
        raw = pack()
        times.append(time.perf_counter() - start)
    print(f"  pack {name}: {min(times) * 1000:.0f} ms, {len(raw) / 1e6:.2f} MB")


def browsed(path: Path) -> dict[str, float]:
    """What one fresh browser takes."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 760}, bypass_csp=True)
        page.goto(path.as_uri() + "#level=autograd")
        page.wait_for_function("window.cabwTimes", timeout=120_000)
        times: dict[str, Any] = page.evaluate("cabwTimes")
        page.wait_for_timeout(500)
        found = {
            "unpacking, ms": times["unpack"],
            "bytes to first frame, ms": times["paint"],
            "of it layout, ms": times["layout"],
        }
        for zoom in (1, 0.3, 0.05):
            found[f"frames a second at zoom {zoom}"] = page.evaluate(PAN % INSPECTOR, zoom)
        page.evaluate(f"() => {INSPECTOR}.camera.fit(false)")
        found["search, ms"] = page.evaluate(SEARCH % INSPECTOR)
        toggles = []
        for group in page.evaluate(GROUPS % INSPECTOR):
            page.wait_for_timeout(300)
            toggles.append(page.evaluate(TOGGLE % INSPECTOR, group))
        found["first group opened or closed, ms"] = toggles[0]
        found["group opened or closed, ms"] = statistics.median(toggles[1:])
        for level, name in (("fx", "level fx, the first time"), ("autograd", "back"), ("fx", "level fx again")):
            page.wait_for_timeout(300)
            found[f"{name}, ms"] = page.evaluate(LEVEL % INSPECTOR, level)
        return found


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or SIZES)
