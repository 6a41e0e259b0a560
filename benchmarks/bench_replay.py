"""Parity of replays on the best device there is: models, dtypes and backends; then the workloads of the tests.

    python benchmarks/bench_replay.py [--device cuda] [--backends eager,aot_eager,inductor] [--workloads]

Each model is built, run and captured on the device: the reference is eager there. The graph is run again by each
backend. Seconds are wall time, the compiler's included. No bar: reported.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import header
from cabw_viz.errors import CabwError
from tests import corpus, definitions

MODELS = {"GPT-2, 2 layers": definitions.gpt2, "ResNet, 8 convolutions": definitions.resnet}
DTYPES = (torch.float32, torch.bfloat16)
LONG = ("cs_deep_chain", "view_loop_write_rows")
"""Workloads of many hundred nodes, which take a compiler minutes."""


def captured_on(device: torch.device, build, dtype: torch.dtype, *, training: bool = True) -> cabw_viz.Capture:
    """The backward of a model, made on a device in a dtype."""
    torch.manual_seed(0)
    with torch.device(device):
        model, _ = build()
    model = model.to(device, dtype).train(training)
    step = step_of(model, device, dtype)
    with cabw_viz.capture(model) as session:
        step().backward()
    return session[0]


def step_of(model: torch.nn.Module, device: torch.device, dtype: torch.dtype):
    """A forward with a loss, on inputs there."""
    torch.manual_seed(0)
    if hasattr(model, "lm_head"):
        ids = definitions.tokens().to(device)
        return lambda: model(ids, labels=ids).loss
    images, labels = torch.randn(2, 3, 16, 16).to(device, dtype), torch.tensor([1, 3], device=device)
    return lambda: torch.nn.functional.cross_entropy(model(images), labels)


def row(capture: cabw_viz.Capture, **options: object) -> str:
    """One line of the table: verdicts, worst errors, seconds."""
    start = time.perf_counter()
    try:
        report = capture.parity(**options)
    except CabwError as error:
        return f"refused: {error.seen[:160]}"
    seconds = time.perf_counter() - start
    verdicts = ", ".join(f"{count} {name}" for name, count in Counter(report.frame["verdict"]).items())
    worst = report.frame["max_rel_err"].max()
    return f"{'agrees' if report.ok else 'DIFFERS'}: {verdicts} | worst {worst:.1e} | {seconds:.1f} s"


def models(device: torch.device, backends: list[str]) -> None:
    """Print the table of models."""
    for name, build in MODELS.items():
        for dtype in DTYPES:
            capture = captured_on(device, build, dtype)
            for backend in backends:
                torch._dynamo.reset()
                print(f"  {name} | {dtype} | {backend} | {row(capture, backend=backend)}", flush=True)
            print(f"  {name} | {dtype} | eager in float64 | {row(capture, dtype='float64')}", flush=True)


def workloads(options: dict[str, dict[str, object]]) -> None:
    """Print in how many workloads a replay agrees, differs, or is refused, and the names of the latter two."""
    for label, given in options.items():
        outcomes: Counter[str] = Counter()
        for name in corpus.NAMES:
            if name in LONG and "backend" in given:
                continue
            for capture, text in outcomes_of(name, given):
                outcomes[text.partition(":")[0]] += 1
                if not text.startswith("agrees"):
                    print(f"    {name} [{capture}]: {text}", flush=True)
        print(f"  {label}: {dict(outcomes)}", flush=True)


def outcomes_of(name: str, given: dict[str, object]):
    """The first step of a workload captured, and a line for each capture that can be run again as it is."""
    lines = []

    @contextlib.contextmanager
    def around(params):
        with cabw_viz.capture(params) as session:
            yield
        for index, capture in enumerate(session):
            if not row(capture).startswith("refused"):
                lines.append((index, row(capture, **given)))

    corpus.observe(name, steps=1, around=around)
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    parser.add_argument("--device", default=str(accelerator or "cpu"))
    parser.add_argument("--backends", default="eager,aot_eager,inductor")
    parser.add_argument("--workloads", action="store_true")
    asked = parser.parse_args()
    device, backends = torch.device(asked.device), asked.backends.split(",")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    print(header(f"Replays on {name}; eager there is the reference"))
    models(device, backends)
    if asked.workloads:
        given = {backend: {"backend": backend} for backend in backends if backend != "eager"}
        there = {} if device.type == "cpu" else {f"captured on the CPU, run on {device}": {"device": str(device)}}
        workloads({"eager in float64": {"dtype": "float64"}, **there, **given})


if __name__ == "__main__":
    main()
