"""How time and memory grow with the graph: captures, records, what is computed of them, and what is shown.

    python benchmarks/bench_growth.py [--shapes encoder,...] [--stages capture,...] [--largest 100000] [--repeats 3]
    python benchmarks/bench_growth.py --memory [--shapes encoder,...] [--largest 100000]

Each size runs in a process of its own, so that none pays for the objects of another. Of each stage: CPU seconds at
each size, best of `--repeats`, the exponent of the power law that fits them (least squares over the logarithms), and
the exponent between the two largest sizes alone, where constant costs weigh least. The bar is 1.1 for both.

With `--memory`: by how much the resident memory rose at most during a stage, over what the plain trace's graph and the
gradients that the capture keeps take by themselves. The bar is 1.5. Linux only (`/proc/self/clear_refs`).

The shapes are backwards that are long, wide or deep in different ways:
`encoder` is a transformer of more and more layers, `recurrent` one cell called again and again (its parameters get as
many gradients), `chain` one op after the other without modules, `fan` many parameters that meet in one `stack`,
`listed` many leaves of a plain list.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._dynamo import compiled_autograd

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import cpu_seconds, header, transformer
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.results import Results
from cabw_viz.surfaces.capture import Capture
from cabw_viz.surfaces.session import Session
from cabw_viz.tracing.backward_trace import BackwardTrace
from cabw_viz.views.inspector import columns, findings
from cabw_viz.views.inspector.page import inspector_page
from cabw_viz.views.render import graph_view

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
BAR, MEMORY_BAR = 1.1, 1.5

Loss = Callable[[], torch.Tensor]


def encoder(nodes: int) -> tuple[object, Loss]:
    """A transformer encoder: about 1,070 graph nodes a layer."""
    model, batch = transformer(max(1, round(nodes / 1_070)))
    return model, lambda: model(batch).square().mean()


def recurrent(nodes: int) -> tuple[object, Loss]:
    """One recurrent cell, called again and again: about 84 graph nodes a step."""
    torch.manual_seed(0)
    cell, inputs = nn.RNNCell(8, 8), torch.randn(4, 8)

    def loss() -> torch.Tensor:
        hidden = torch.zeros(4, 8)
        for _ in range(max(1, nodes // 84)):
            hidden = cell(inputs, hidden)
        return hidden.square().mean()

    return cell, loss


def chain(nodes: int) -> tuple[object, Loss]:
    """One op after the other, in no module: about 7 graph nodes each."""
    start = torch.randn(8, requires_grad=True)

    def loss() -> torch.Tensor:
        value = start
        for _ in range(max(1, nodes // 7)):
            value = value.sin()
        return value.sum()

    return {"start": start}, loss


def fan(nodes: int) -> tuple[object, Loss]:
    """Many parameters that meet in one `stack`: about 34 graph nodes each."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(max(1, nodes // 34)))
    batch = torch.randn(2, 4)
    return model, lambda: torch.stack([layer(batch) for layer in model]).square().mean()


def listed(nodes: int) -> tuple[object, Loss]:
    """Many leaves of a plain list, each used twice, in a chain of sums: about 21 graph nodes each."""
    torch.manual_seed(0)
    leaves = {f"w{index}": torch.randn(4, requires_grad=True) for index in range(max(1, nodes // 21))}

    def loss() -> torch.Tensor:
        total = torch.zeros(4)
        for leaf in leaves.values():
            total = total + leaf * leaf
        return total.sum()

    return leaves, loss


SHAPES = {shape.__name__: shape for shape in (encoder, recurrent, chain, fan, listed)}


OF_A_CAPTURE: dict[str, Callable[[Capture], object]] = {
    "replay": lambda cap: cap.replay(),
    "parity": lambda cap: cap.parity(),
    "parity float64": lambda cap: cap.parity(dtype="float64"),
    "divergence": lambda cap: cap.divergence(),
    "audit": lambda cap: cap.audit(),
    "times": lambda cap: cap.times(1),
    "lower": lambda cap: cap.lower(),
    "packing": lambda cap: packed(cap.record, cap.results),
    "drawing": lambda cap: graph_view(cap.record, results=cap.results).source,
    "outline": lambda cap: cap.outline(full=True),
    "tables": lambda cap: (cap.nodes, cap.memory(), cap.touches()),
    "HTML": lambda cap: inspector_page("bench", [(cap.record, cap.results)]),
}
"""What is done with a capture, by name."""

RECORD = "of it record"
STAGES = ("trace by PyTorch", "capture", RECORD, *OF_A_CAPTURE)


def packed(record: CaptureRecord, results: Results) -> None:
    """All parts that the inspector's browser gets."""
    columns.pack_graph(record, results)
    columns.pack_code(record)
    columns.pack_lowered(record, results)
    findings.pack_results(record, results)


class Backward:
    """One backward that is captured again and again; what is done with a capture is done with the last one."""

    def __init__(self, shape: str, nodes: int) -> None:
        self.subject, self.loss = SHAPES[shape](nodes)
        self.session: Session | None = None
        self.record_seconds: list[float] = []

    @property
    def captured(self) -> Capture:
        """The last capture."""
        assert self.session is not None
        return self.session[0]

    def run(self, stage: str) -> float:
        """Run a stage once; its CPU seconds."""
        if stage == "trace by PyTorch":
            return self.trace()[1]
        if stage == "capture":
            return self.capture()
        if stage == RECORD:
            return self.record_seconds.pop(0)
        return cpu_seconds(lambda: OF_A_CAPTURE[stage](self.captured))

    def trace(self) -> tuple[torch.fx.GraphModule, float]:
        """PyTorch's own trace without us, which runs the graph too; and its CPU seconds."""
        graphs: list[torch.fx.GraphModule] = []
        root = self.loss()
        torch._C._dynamo.compiled_autograd.clear_cache()
        with compiled_autograd._enable(lambda graph: graphs.append(graph) or graph):  # type: ignore[func-returns-value]  # None, hence the graph
            seconds = cpu_seconds(root.backward)
        torch._C._dynamo.compiled_autograd.clear_cache()
        return graphs[0], seconds

    def capture(self) -> float:
        """Capture; CPU seconds of the call of `backward`."""
        self.close()
        root, parts = self.loss(), []
        with cabw_viz.capture(self.subject) as self.session, timed("record", parts), timed("prepare", parts):
            seconds = cpu_seconds(root.backward)
        self.record_seconds.append(sum(parts))
        return seconds

    def close(self) -> None:
        """Let the last capture go."""
        if self.session is not None:
            self.session.close()
        self.session = None
        gc.collect()


@contextmanager
def timed(method: str, seconds: list[float]) -> Iterator[None]:
    """Note the CPU seconds of each call of a method of BackwardTrace."""
    inner = getattr(BackwardTrace, method)

    def outer(*arguments: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return inner(*arguments, **options)
        finally:
            seconds.append(time.process_time() - start)

    with mock.patch.object(BackwardTrace, method, outer):
        yield


# -- in a process for each size ---------------------------------------------------------------------------------------


def times(shape: str, nodes: int, stages: Sequence[str], repeats: int) -> dict[str, float]:
    """The best CPU seconds of each stage, and how many graph nodes there were."""
    small = Backward(shape, SIZES[0] // 3)
    for stage in stages:
        small.run(stage)  # imports, and what is made once for a process
    small.close()
    backward = Backward(shape, nodes)
    best = {stage: min(backward.run(stage) for _ in range(repeats)) for stage in stages}
    return {"nodes": len(backward.captured.record.graph_nodes), **best}


def peaks(shape: str, nodes: int, stages: Sequence[str], _: int) -> dict[str, float]:
    """MiB by which the resident memory rises at most in each stage, over what it was before the capture."""
    small = Backward(shape, SIZES[0] // 3)
    for stage in stages:
        small.run(stage)
    small.close()
    backward = Backward(shape, nodes)
    backward.loss().backward()  # makes each `.grad`
    before = resident("VmRSS")
    graph = backward.trace()[0]
    gc.collect()
    found = {"graph": resident("VmRSS") - before}
    del graph
    for stage in stages:
        before = resident("VmRSS") if stage in ("trace by PyTorch", "capture") else before
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        backward.run(stage)
        found[stage] = resident("VmHWM") - before
        if stage == "capture":
            found["kept"] = resident("VmRSS") - before
    gradients = backward.captured._captured.state.node_gradients
    found["gradients"] = 0.0 if gradients is None else gradients.bytes / 2**20
    return {"nodes": len(backward.captured.record.graph_nodes), **found}


def resident(what: str) -> float:
    """MiB of this process in memory, now (VmRSS) or at most (VmHWM), without what is free in the heap."""
    if what == "VmRSS":
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) / 1024


# -- all of them ------------------------------------------------------------------------------------------------------


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent of the power law that fits best: least squares over the logarithms."""
    slope, _ = statistics.linear_regression([math.log(size) for size in sizes], [math.log(s) for s in seconds])
    return slope


def child(shape: str, nodes: int, stages: Sequence[str], options: argparse.Namespace) -> dict[str, float]:
    """What a process of its own has measured at one size."""
    inner = ["--child", str(nodes), "--shapes", shape, "--stages", ",".join(stages), "--repeats", str(options.repeats)]
    command = [sys.executable, __file__, *inner, *(["--memory"] if options.memory else [])]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return measured


def print_times(rows: list[dict[str, float]], stages: Sequence[str]) -> None:
    """A line for each stage: seconds by size, and exponents."""
    sizes = [row["nodes"] for row in rows]
    print(f"    {'graph nodes':18}{''.join(f'{size:11,.0f}' for size in sizes)}   exponent   of the last two")
    for stage in stages:
        seconds = [max(row[stage], 1e-6) for row in rows]
        whole, last = exponent(sizes, seconds), exponent(sizes[-2:], seconds[-2:])
        over = "  above the bar" if max(whole, last) > BAR else ""
        print(f"    {stage:18}{''.join(f'{each:11.4f}' for each in seconds)}   {whole:8.2f}   {last:.2f}{over}")


def print_peaks(rows: list[dict[str, float]], stages: Sequence[str]) -> None:
    """A line for each stage: the peak over graph and gradients, by size."""
    sizes = [row["nodes"] for row in rows]
    print(f"    {'graph nodes':18}{''.join(f'{size:11,.0f}' for size in sizes)}")
    for name in ("graph", "gradients", "kept"):
        print(f"    {name + ', MiB':18}{''.join(f'{row[name]:11.1f}' for row in rows)}")
    for stage in stages:
        ratios = [row[stage] / (row["graph"] + row["gradients"]) for row in rows]
        over = "  above the bar" if ratios[-1] > MEMORY_BAR else ""
        print(f"    {stage:18}{''.join(f'{ratio:11.2f}' for ratio in ratios)}{over}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    shapes, wanted = options.shapes.split(","), options.stages.split(",")
    stages = [stage for stage in STAGES if stage in {*wanted, "capture"} and not (options.memory and stage == RECORD)]
    torch.set_num_threads(1)
    if options.child:
        warnings.simplefilter("ignore")
        measure = peaks if options.memory else times
        print(json.dumps(measure(shapes[0], options.child, stages, options.repeats)))
        return
    what = "peak memory over graph and gradients" if options.memory else f"CPU seconds, best of {options.repeats}"
    print(header(f"Growth: {what}"))
    for shape in shapes:
        rows = [child(shape, nodes, stages, options) for nodes in SIZES if nodes <= options.largest]
        print(f"  {shape}", flush=True)
        (print_peaks if options.memory else print_times)(rows, stages)


if __name__ == "__main__":
    main()
