"""CPU time of replays by a backend, over what `torch.compile` itself takes for the same graph.

    python benchmarks/bench_backend.py [--backends aot_eager,inductor] [--models plain,...] [--repeats 7] [--whole]

The backward of a transformer of 2 layers: plain, with activation checkpoints, with forward hooks, with hooks on its
parameters. `torch.compile` gets the graph ready-made, with its sizes as numbers and its saved tensors unpacked, and
runs it once. With `--whole`, once: a backward under PyTorch's own compiled autograd with the same backend, which traces
it and has its sizes as symbols; with checkpoints that takes minutes.

The bar is 1.5.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs as a script too

import cabw_viz
from benchmarks.measure import cpu_seconds, header, interleaved, transformer
from cabw_viz import torch_adapter
from cabw_viz.replay.placement.compiled import gradients_as_outputs
from cabw_viz.replay.placement.unpacking import unpack_first
from cabw_viz.replay.replay import Replay

torch.set_num_threads(1)

BAR = 1.5
LAYERS = 2

Loss = Callable[[], torch.Tensor]


def plain() -> tuple[nn.Module, Loss]:
    """As it is."""
    model, batch = transformer(LAYERS)
    return model.eval(), lambda: model(batch).square().mean()


def checkpointed() -> tuple[nn.Module, Loss]:
    """Each layer in a checkpoint."""
    model, batch = transformer(LAYERS)
    model.eval()

    def loss() -> torch.Tensor:
        value = batch
        for layer in model.layers:
            value = checkpoint(layer, value, use_reentrant=False)
        return value.square().mean()

    return model, loss


def forward_hooks() -> tuple[nn.Module, Loss]:
    """A forward hook on each module, which computes."""
    model, loss = plain()
    for module in model.modules():
        if not list(module.children()) and not isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda _module, _args, output: output * 1.0)
    return model, loss


def parameter_hooks() -> tuple[nn.Module, Loss]:
    """A hook on each parameter, which computes."""
    model, loss = plain()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 1.0)
    return model, loss


MODELS = {model.__name__: model for model in (plain, checkpointed, forward_hooks, parameter_hooks)}


def by_torch(cap: cabw_viz.Capture, backend: str) -> float:
    """CPU seconds that `torch.compile` takes to compile the graph and to run it once."""
    placed = Replay(cap._captured).graph
    graph, _, _ = gradients_as_outputs(placed)
    with placed.execution_context():
        inputs, *rest = placed.call_args
        inputs += unpack_first(graph, placed.arguments)
        with torch_adapter.compiling():
            start = time.process_time()
            torch.compile(graph, backend=backend)(inputs, *rest)
            return time.process_time() - start


def whole(loss: Loss, backend: str) -> float:
    """CPU seconds of a backward under PyTorch's compiled autograd."""
    output = loss()
    torch._dynamo.reset()
    start = time.process_time()
    with compiled_autograd._enable(torch.compile(backend=backend)):
        output.backward()
    return time.process_time() - start


def after_reset(side: Callable[[], float]) -> Callable[[], float]:
    """A side that begins with nothing compiled."""

    def measured() -> float:
        torch._dynamo.reset()
        return side()

    return measured


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="aot_eager,inductor")
    parser.add_argument("--models", default=",".join(MODELS), help="some of " + ", ".join(MODELS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--whole", action="store_true")
    asked = parser.parse_args()
    print(header(f"Replays by a backend: a transformer of {LAYERS} layers; bar {BAR}"))
    for name in asked.models.split(","):
        model, loss = MODELS[name]()
        with cabw_viz.capture(model) as session:
            loss().backward()
        cap = session[0]
        for backend in asked.backends.split(","):
            sides = {
                "torch.compile": after_reset(lambda cap=cap, backend=backend: by_torch(cap, backend)),
                "cap.replay": after_reset(
                    lambda cap=cap, backend=backend: cpu_seconds(lambda: cap.replay(backend=backend))
                ),
            }
            theirs, ours = interleaved(sides, asked.repeats)
            nodes = len(cap.record.graph_nodes)
            print(f"  {name}, {nodes} graph nodes, {backend}: {ours.best / theirs.best:.2f} ({ours}; {theirs})")
            if asked.whole:
                print(f"    whole backward under compiled autograd: {whole(loss, backend):.1f} s", flush=True)


if __name__ == "__main__":
    main()
