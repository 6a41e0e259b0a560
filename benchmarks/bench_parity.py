"""CPU time and peak memory of parities with a judgement against `cap.parity()`, of divergences against replays.

    python benchmarks/bench_parity.py [--model gpt2] [--repeats 7] [--calls parity,float64] [--memory]

GPT-2 small (transformers' definition, random weights, 1x128 tokens) and ResNet-50 (the same, 2x3x224x224), on one
thread. Bars: `parity(dtype="float64")` at most 3 times, `parity(dtype="bfloat16")` at most 5 times `parity()` in time,
and 1.5 times in memory. The divergences are reported against `cap.replay()`: without a fault, with a factor of 1.01
planted in one hook that only the replay has, and in half precision. Peak memory is that of a process of its own for
each call; what the process held when the call began stands beside it.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import cpu_seconds, header, interleaved

torch.set_num_threads(1)

MEBIBYTE = 2**10
"""Of `ru_maxrss`, which counts in KiB on Linux."""


def gpt2() -> Callable[[], torch.Tensor]:
    """GPT-2 small: 124 million parameters."""
    transformers = __import__("transformers")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    ids = torch.randint(0, 50_000, (1, 128))
    return model, lambda: model(ids, labels=ids).loss


def resnet50():
    """ResNet-50 in training mode: 26 million parameters."""
    transformers = __import__("transformers")
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)).train()
    images, labels = torch.randn(2, 3, 224, 224), torch.tensor([1, 3])
    return model, lambda: model(images, labels=labels).loss


MODELS = {"gpt2": gpt2, "resnet50": resnet50}


class PlantedFactor:
    """A hook that multiplies by 1.01 from its second call on: the run is right, every replay is not."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient that goes on."""
        self.calls += 1
        return gradient * 1.01 if self.calls > 1 else gradient


def captured(name: str, *, fault: bool = False, gradients: str = "leaves") -> cabw_viz.Capture:
    """A capture of one backward."""
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    if fault:
        layers = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm | torch.nn.BatchNorm2d)]
        hook = PlantedFactor()
        layers[len(layers) // 2].register_forward_hook(lambda _module, _args, out: out.register_hook(hook) and None)
    with cabw_viz.capture(model, gradients=gradients) as session:
        loss().backward()
    return session[0]


CALLS: dict[str, tuple[dict[str, object], Callable[[cabw_viz.Capture], object]]] = {
    "replay": ({}, lambda capture: capture.replay()),
    "parity": ({}, lambda capture: capture.parity()),
    "float64": ({}, lambda capture: capture.parity(dtype="float64")),
    "bfloat16": ({}, lambda capture: capture.parity(dtype="bfloat16")),
    "node replay": ({"gradients": "nodes"}, lambda capture: capture.replay()),
    "divergence": ({"gradients": "nodes"}, lambda capture: capture.divergence()),
    "divergence fault": ({"gradients": "nodes", "fault": True}, lambda capture: capture.divergence()),
    "divergence bfloat16": ({"gradients": "nodes"}, lambda capture: capture.divergence(dtype="bfloat16")),
}
"""By name: how to capture, and what is measured."""


def verdicts(report: object) -> str:
    """How many rows have each verdict."""
    frame = getattr(report, "frame", None)
    if frame is None:
        return ""
    column = "verdict" if "verdict" in frame else "own"
    return ", ".join(f"{count} {name}" for name, count in Counter(frame[column].dropna()).items())


def times(name: str, calls: list[str], repeats: int) -> None:
    """Print the CPU time of each call, as a ratio to the first of its kind of capture."""
    captures: dict[str, cabw_viz.Capture] = {}
    texts: dict[str, str] = {}
    for call in calls:
        key = str(CALLS[call][0])
        captures.setdefault(key, captured(name, **CALLS[call][0]))

    def timed(call: str) -> float:
        options, run = CALLS[call]
        reports: list[object] = []
        seconds = cpu_seconds(lambda: reports.append(run(captures[str(options)])))
        texts[call] = verdicts(reports[0])
        return seconds

    sides = interleaved({call: lambda call=call: timed(call) for call in calls}, repeats)
    best = {side.name: side.best for side in sides}
    for side in sides:
        base = "node replay" if side.name.startswith("divergence") else "parity"
        ratio = f" | {side.best / best[base]:.2f} of {base}" if base in best else ""
        print(f"  {side}{ratio} | {texts[side.name]}", flush=True)


def memory(name: str, calls: list[str]) -> None:
    """Print the peak memory of each call, in a process of its own."""
    peaks: dict[str, int] = {}
    for call in calls:
        command = [sys.executable, __file__, "--model", name, "--calls", call, "--child"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        before, peak = map(int, lines[-2:])
        peaks[call] = peak
        base = "node replay" if call.startswith("divergence") else "parity"
        ratio = f", {peak / peaks[base]:.2f} of {base}" if base in peaks else ""
        print(f"  {call}: peak {peak} MiB{ratio}; {before} MiB when the call began", flush=True)


def child(name: str, call: str) -> None:
    """Make one call, and print what the process held before it and at most during it, in MiB."""
    options, run = CALLS[call]
    capture = captured(name, **options)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    run(capture)
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    print(pages * resource.getpagesize() // 2**20, peak // MEBIBYTE)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--calls", default=",".join(CALLS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory", action="store_true", help="memory alone")
    parser.add_argument("--times", action="store_true", help="times alone")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    calls = [call for call in CALLS if call in asked.calls.split(",")] if not asked.child else [asked.calls]
    for name in asked.model or MODELS:
        if asked.child:
            child(name, calls[0])
            continue
        print(header(name), flush=True)
        if not asked.memory:
            times(name, calls, asked.repeats)
        if not asked.times:
            memory(name, calls)


if __name__ == "__main__":
    main()
