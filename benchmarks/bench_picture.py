"""Seconds from a loss to a picture: the inspector, beside torchviz with Graphviz's `dot`.

    pip install torchviz          # the other side; without it only the inspector is measured
    python benchmarks/bench_picture.py [NAME ...]

Models: transformer encoders of 12 and 48 layers, and an LSTM of 32 steps, written op by op. `inspector`: the backward
is captured, packed, opened in headless Chromium and drawn to the first frame, at level `autograd`; of it `capture` is
what tracing and the backward take. `watched`: the same with `trace=False`. `torchviz`: `make_dot` and `dot -Tsvg`,
which is given up after five minutes; the backward is not run there. Wall time, and in brackets the CPU time of this
process and its children: of the browser, which has several processes, neither is its child's; its part is given as it
measures itself.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import header, transformer
from tests.inspector.opened import chromium

LIMIT = 300
TORCHVIZ = importlib.util.find_spec("torchviz") is not None


class Lstm(torch.nn.Module):
    """One layer, a step at a time: eight autograd nodes for each gate that a kernel would fuse."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.into = torch.nn.Linear(width, 4 * width)
        self.on = torch.nn.Linear(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(steps, batch, width) to (batch, width)."""
        hidden = cell = torch.zeros_like(x[0])
        for step in x:
            gates = (self.into(step) + self.on(hidden)).chunk(4, -1)
            write, keep, read = (gate.sigmoid() for gate in gates[:3])
            cell = keep * cell + write * gates[3].tanh()
            hidden = read * cell.tanh()
        return hidden


def encoder(layers: int) -> tuple[torch.nn.Module, Callable[[], torch.Tensor]]:
    """A transformer encoder and its loss."""
    model, batch = transformer(layers)
    return model, lambda: model(batch).square().mean()


def lstm() -> tuple[torch.nn.Module, Callable[[], torch.Tensor]]:
    """An LSTM of 32 steps and its loss."""
    torch.manual_seed(0)
    model, x = Lstm(), torch.randn(32, 4, 32)
    return model, lambda: model(x).square().mean()


MODELS = {"12 layers": lambda: encoder(12), "48 layers": lambda: encoder(48), "LSTM, 32 steps": lstm}


def ours(model: torch.nn.Module, loss: Callable[[], torch.Tensor], folder: Path, *, trace: bool) -> str:
    """Capture, pack, open, draw."""
    with chromium() as browser:  # started before the clock: in a notebook it is there
        page = browser.new_page(viewport={"width": 1280, "height": 760}, bypass_csp=True)
        with cabw_viz.capture(model, gradients="leaves", trace=trace) as session:
            found = loss()
            start, cpu = time.perf_counter(), time.process_time()
            found.backward()
        captured = time.perf_counter() - start
        path = session[0].to_html(folder / "inspector.html")
        cpu = time.process_time() - cpu
        page.goto(path.as_uri() + "#level=autograd")
        page.wait_for_function("window.cabwTimes", timeout=120_000)
        total = time.perf_counter() - start
        times = page.evaluate("cabwTimes")
        nodes = len(session[0].record.autograd_nodes)
        size = path.stat().st_size / 1e6
    page_ms = times["unpack"] + times["paint"]
    return (
        f"{total:.2f} s, of it capture {captured:.2f} s [{cpu:.2f} s of CPU, and {page_ms:.0f} ms in the page];"
        f" {nodes:,} autograd nodes, {size:.2f} MB"
    )


def theirs(model: torch.nn.Module, loss: Callable[[], torch.Tensor], folder: Path) -> str:
    """Make DOT, and have it drawn."""
    from torchviz import make_dot

    found = loss()
    start, cpu = time.perf_counter(), _cpu()
    path = folder / "torchviz.dot"
    path.write_text(make_dot(found, dict(model.named_parameters())).source, "utf-8")
    made = time.perf_counter() - start
    try:
        subprocess.run(["dot", "-Tsvg", path, "-o", folder / "torchviz.svg"], check=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"given up after {LIMIT} s"
    return f"{time.perf_counter() - start:.2f} s, of it make_dot {made:.2f} s [{_cpu() - cpu:.2f} s of CPU]"


def _cpu() -> float:
    """CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main(names: list[str]) -> None:
    """Measure and print."""
    print(header("from a loss to a picture"))
    print(f"  load of the machine before: {os.getloadavg()[0]:.1f}")
    loss = encoder(1)
    for trace in (True, False):
        with cabw_viz.capture(loss[0], gradients="leaves", trace=trace) as session:
            loss[1]().backward()  # what is slow the first time in a process
        session[0].to_html(Path(tempfile.gettempdir()) / "inspector.html")
    if not TORCHVIZ:
        print("  torchviz is not installed, so it is not measured; try: pip install torchviz")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n{name}\n  watched: {ours(*MODELS[name](), Path(folder), trace=False)}", flush=True)
            print(f"  inspector: {ours(*MODELS[name](), Path(folder), trace=True)}", flush=True)
            if TORCHVIZ:
                print(f"  torchviz: {theirs(*MODELS[name](), Path(folder))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(MODELS))
