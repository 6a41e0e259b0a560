"""Measuring ratios on machines whose clocks wander: CPU time, sides interleaved, best of several, spread shown."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Measured:
    """CPU seconds of one side, a value for each repeat."""

    name: str
    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The least, which other processes have disturbed the least."""
        return min(self.seconds)

    def __str__(self) -> str:
        spread = (max(self.seconds) - self.best) / self.best
        return f"{self.name}: {self.best:.3f} s (best of {len(self.seconds)}, the worst {spread:.0%} above it)"


def interleaved(sides: dict[str, Callable[[], float]], repeats: int = 7) -> list[Measured]:
    """Run each side once to warm up, then all in turn, `repeats` times.

    Args:
        sides: name and a function that does the work and returns the CPU seconds that count.
        repeats: how often.
    """
    for side in sides.values():
        side()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            gc.collect()
            seconds[name].append(side())
    return [Measured(name, tuple(values)) for name, values in seconds.items()]


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process that a call takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def header(title: str) -> str:
    """What was measured on what."""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} thread"
    return f"{title}\n  {versions}, {platform.machine()}"


def transformer(layers: int = 12, width: int = 64) -> tuple[torch.nn.Module, torch.Tensor]:
    """A transformer encoder in training mode and a batch for it: (2, 16, width)."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers), torch.randn(2, 16, width)
