"""The stacks: how people build and train models."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


@dataclass
class Training:
    """A model in training."""

    model: nn.Module
    optimizer: Any
    """None where the optimizer steps in the backward."""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Makes a context for forward and backward."""

    def loss(self, index: int) -> torch.Tensor:
        """The loss of one step, on this process's own data."""
        return self.model(data(index)).float().square().mean()


@dataclass(frozen=True)
class Stack:
    """One way to train."""

    build: Callable[[], Training]
    ranks: int = 0
    """Processes; 0 for one without a process group."""
    refused: dict[str, str] = field(default_factory=dict)
    """Calls that are refused, by name, with words of the reason; `*` for all that are not named."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the capture."""


def data(index: int) -> torch.Tensor:
    rank = dist.get_rank() if dist.is_initialized() else 0
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(100 * rank + index))


class Counting(nn.Module):
    """Batch normalization, dropout, a moving average and a counter: what a forward writes to."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.drop = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.2)
        self.register_buffer("average", torch.zeros(16))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = self.norm(self.inner(x)).tanh()
        with torch.no_grad():
            self.average.lerp_(x.mean(0), 0.1)
        return self.drop(x) + self.average


def body() -> nn.Sequential:
    """The model of all stacks without a process group."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Counting(), nn.Linear(16, 4))


def plain_layers() -> nn.Sequential:
    """The model of the distributed ones: every parameter has a shape of its own."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 4))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


# ------------------------------------------------------------------------------------------------------- one process


def norm_and_counters() -> Training:
    model = body()
    return Training(model, sgd(model.parameters()))


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool):
        super().__init__()
        self.layers, self.reentrant = body(), reentrant

    def forward(self, x):
        x = self.layers[0](x)
        for layer in self.layers[1:-1]:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return self.layers[-1](x)


def checkpoints(*, reentrant: bool) -> Training:
    model = Checkpointed(reentrant=reentrant)
    return Training(model, sgd(model.parameters()))


def saved_on_cpu() -> Training:
    model = body()
    return Training(model, sgd(model.parameters()), torch.autograd.graph.save_on_cpu)


@contextlib.contextmanager
def offloaded() -> Iterator[None]:
    """Saved tensors go elsewhere, and are deleted there when they come back: a second unpacking finds nothing."""
    store: dict[int, torch.Tensor] = {}

    def pack(tensor):
        store[len(store)] = tensor
        return len(store) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, store.pop):
        yield


def deleted_on_unpacking() -> Training:
    model = body()
    return Training(model, sgd(model.parameters()), offloaded)


def optimizer_after_accumulation() -> Training:
    model = body()
    for parameter in model.parameters():
        optimizer = sgd([parameter])

        def step(leaf, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()
            assert leaf.grad is None

        parameter.register_post_accumulate_grad_hook(step)
    return Training(model, None)


def optimizer_on_the_accumulating_node() -> Training:
    from torch.distributed.optim import _apply_optimizer_in_backward

    model = body()
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    return Training(model, None)


def hooks_of_the_users_own() -> Training:
    model = body()
    model[0].weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
    model[2].register_full_backward_hook(lambda module, grads, _: tuple(grad * 0.5 for grad in grads))
    return Training(model, sgd(model.parameters()))


# ---------------------------------------------------------------------------------------------------- process groups


def data_parallel(*, python_reducer: bool = False, static: bool = False) -> Training:
    if python_reducer:
        torch._dynamo.config.optimize_ddp = "python_reducer"
    model = DistributedDataParallel(body(), static_graph=static)
    return Training(model, sgd(model.parameters()))


def fsdp1(*, original: bool) -> Training:
    from torch.distributed.fsdp import FullyShardedDataParallel

    layers = plain_layers()
    wrap = functools.partial(FullyShardedDataParallel, device_id=torch.device("cpu"), use_orig_params=original)
    layers[2] = wrap(layers[2])
    model = wrap(layers)
    return Training(model, sgd(model.parameters()))


def fsdp2(*, half: bool = False, recomputes: bool = False) -> Training:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = plain_layers()
    if recomputes:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        model[2] = checkpoint_wrapper(model[2])
    for module in (model[0], model[2], model[4], model):
        fully_shard(module, mesh=mesh, **({"mp_policy": policy} if half else {}))
    return Training(model, sgd(model.parameters()))


def tensor_parallel() -> Training:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(plain_layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return Training(model, sgd(model.parameters()))


NOT_TRACED = {"*": "has no complete graph"}
IN_FSDP = {"*": "takes saved tensors from a checkpoint, which calls modules of FSDP again"}
USED_UP = {"*": "raised KeyError"}
WRAPPED = {"audit": "cannot be watched", "lower": "whose class decides what each op does"}

STACKS: dict[str, Stack] = {
    "norm_and_counters": Stack(norm_and_counters),
    "checkpoint": Stack(functools.partial(checkpoints, reentrant=False), refused={"lower": "cannot be lowered"}),
    "reentrant_checkpoint": Stack(
        functools.partial(checkpoints, reentrant=True),
        refused={"lower": "accumulates into .grad", "parity in float64": "cannot be run in torch.float64"},
    ),
    "saved_on_cpu": Stack(saved_on_cpu),
    "deleted_on_unpacking": Stack(deleted_on_unpacking, refused=USED_UP),
    "optimizer_after_accumulation": Stack(optimizer_after_accumulation, options={"snapshot": True}),
    "optimizer_on_the_accumulating_node": Stack(optimizer_on_the_accumulating_node, options={"snapshot": True}),
    "hooks_of_the_users_own": Stack(hooks_of_the_users_own),
    "ddp": Stack(data_parallel, 1, NOT_TRACED),
    "ddp_two_ranks": Stack(data_parallel, 2, NOT_TRACED),
    "ddp_python_reducer": Stack(functools.partial(data_parallel, python_reducer=True), 1),
    "ddp_python_reducer_two_ranks": Stack(functools.partial(data_parallel, python_reducer=True), 2),
    "ddp_python_reducer_static": Stack(functools.partial(data_parallel, python_reducer=True, static=True), 1),
    "fsdp1": Stack(functools.partial(fsdp1, original=True), 1),
    "fsdp1_flat": Stack(functools.partial(fsdp1, original=False), 1),
    "fsdp1_two_ranks": Stack(functools.partial(fsdp1, original=True), 2),
    "fsdp2": Stack(fsdp2, 1),
    "fsdp2_half": Stack(functools.partial(fsdp2, half=True), 1),
    "fsdp2_two_ranks": Stack(fsdp2, 2),
    "fsdp2_half_two_ranks": Stack(functools.partial(fsdp2, half=True), 2),
    "fsdp2_checkpoint": Stack(functools.partial(fsdp2, recomputes=True), 1, IN_FSDP),
    "tensor_parallel": Stack(tensor_parallel, 1, WRAPPED),
    "tensor_parallel_two_ranks": Stack(tensor_parallel, 2, WRAPPED),
}
