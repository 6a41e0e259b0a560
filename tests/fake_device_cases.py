"""What a fake device shows, run in a process of its own: `python -m tests.fake_device_cases` prints one JSON object.

A case is a function that returns what a test then looks at: plain numbers and texts. What it raises is its result too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import cabw_viz
from cabw_viz.errors import CabwError
from tests import fake_device
from tests.captures import capture_of
from tests.faults import planted, scaled

FAKE, CPU = fake_device.NAME, "cpu"
CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


# ------------------------------------------------------------------------------------------------------------- models


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Half(torch.autograd.Function):
    """A custom Function that keeps its tensors where PyTorch knows of them."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.factor = 0.5
        return x * x * ctx.factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * ctx.factor * x * grad


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return Half.apply(self.inner(x))


class InPlace(nn.Module):
    """Writes to a view of what a parameter made: CopySlices."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x):
        made = self.weight * 2
        made[1].mul_(x[0])
        return made * self.weight + made


class Summed(nn.Module):
    """One parameter used three times, and an embedding tied to the head: gradients are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner = nn.Embedding(9, 6), nn.Linear(6, 6)

    def forward(self, x):
        tokens = (x.abs() * 8).long().clamp(0, 8)[..., 0]
        hidden = self.inner(self.inner(self.embed(tokens)).tanh())
        return hidden @ self.embed.weight.t()


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 3)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)), (5, 6)),
    "attention": (Attention, (2, 5, 16)),
    "convolutions": (convolutions, (2, 1, 4, 6)),
    "custom_function": (Custom, (3, 6)),
    "copy_slices": (InPlace, (2, 6)),
    "summed": (Summed, (4, 6)),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2)), (5, 6)),
}


def capture_and_gradients(name: str, device: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model's backward captured on a device, and the gradients that eager left, on the CPU."""
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model, x = build().to(device), torch.randn(shape).to(device)
    return capture_of(model, lambda: model(x).square().mean()), {
        name: parameter.grad.cpu().clone() for name, parameter in model.named_parameters()
    }


def moved(name: str, source: str, target: str) -> dict[str, Any]:
    capture, eager = capture_and_gradients(name, source)
    if capture.error is not None:
        return {"not captured": str(capture.error)}
    found = capture.replay(device=target)
    report = capture.parity(device=target)
    apart = {key: ((found[key].cpu() - grad).abs().max() / grad.abs().max()).item() for key, grad in eager.items()}
    return {
        "names": sorted(found) == sorted(eager),
        "devices": sorted({gradient.device.type for gradient in found.values()}),
        "apart": max(apart.values()),
        "ok": report.ok,
        "candidate": report.comparison.candidate,
        "reference": report.comparison.reference,
        "notes": list(report.comparison.notes),
    }


for _name in MODELS:
    CASES[f"there_{_name}"] = lambda name=_name: moved(name, CPU, FAKE)
    CASES[f"back_{_name}"] = lambda name=_name: moved(name, FAKE, CPU)


# ----------------------------------------------------------------------------------------------------- more than models


@case
def devices_and_dtypes_together() -> Any:
    capture, eager = capture_and_gradients("mlp", CPU)
    found = capture.replay(device=FAKE, dtype="float64")
    return {
        "dtypes": sorted({str(gradient.dtype) for gradient in found.values()}),
        "devices": sorted({gradient.device.type for gradient in found.values()}),
        "apart": max((found[key].cpu() - grad).abs().max().item() for key, grad in eager.items()),
    }


@case
def the_kernels_ran_there() -> Any:
    capture, _ = capture_and_gradients("mlp", CPU)
    fake_device.CALLED.clear()
    capture.replay(device=FAKE)
    return sorted(fake_device.CALLED)


@case
def auto_is_the_accelerator() -> Any:
    capture, _ = capture_and_gradients("mlp", CPU)
    return sorted({str(gradient.device) for gradient in capture.replay(device="auto").values()})


def searched(name: str, source: str, target: str) -> Any:
    """The first divergence on another device, without a fault and with one in a backward of the middle."""
    capture, _ = capture_and_gradients(name, source)
    nodes = [row for row in capture.record.graph_nodes if row.kind == "backward_call" and row.autograd_node]
    middle = nodes[len(nodes) // 2]
    clean = capture.divergence(device=target)
    with planted(middle.name, scaled):
        first = capture.divergence(device=target).first
    return {"ok": clean.ok, "first": first and first.number, "planted": middle.autograd_node}


for _name in ("mlp", "custom_function", "summed"):
    CASES[f"searched_there_{_name}"] = lambda name=_name: searched(name, CPU, FAKE)
    CASES[f"searched_back_{_name}"] = lambda name=_name: searched(name, FAKE, CPU)


@case
def hooks_run_there() -> Any:
    seen = []
    w = torch.ones(3, requires_grad=True)
    with cabw_viz.capture({"w": w}) as session:
        y = w * 2
        y.register_hook(lambda grad: seen.append(grad.device.type) or grad * 3)
        (y * y).sum().backward()
    eager = w.grad.clone()
    return {"apart": (session[0].replay(device=FAKE)["w"].cpu() - eager).abs().max().item(), "seen": seen}


@case
def packed_tensors_are_moved() -> Any:
    w = torch.randn(3, 3, requires_grad=True)
    with cabw_viz.capture({"w": w}) as session:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: [t * 1], lambda packed: packed[0]):
            loss = (w @ w).tanh().sum()
        loss.backward()
    return (session[0].replay(device=FAKE)["w"].cpu() - w.grad).abs().max().item()


@case
def checkpoints_are_moved() -> Any:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(2, 4)
    capture = capture_of(model, lambda: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum())
    found = capture.replay(device=FAKE)
    return max((found[name].cpu() - p.grad).abs().max().item() for name, p in model.named_parameters())


@case
def a_tied_weight_is_moved_once() -> Any:
    capture, _ = capture_and_gradients("summed", CPU)
    fake_device.CALLED.clear()
    found = capture.replay(device=FAKE)
    return {"names": sorted(found), "shape": list(found["embed.weight"].shape)}


@case
def lengths_stay_on_the_host() -> Any:
    """Packed sequences: their lengths are read on the CPU, wherever they are."""
    torch.manual_seed(0)
    w = torch.randn(2, 4, 3, requires_grad=True)
    capture = capture_of(
        {"w": w}, lambda: nn.utils.rnn.pack_padded_sequence(w, [4, 2], batch_first=True).data.square().sum()
    )
    return (capture.replay(device=FAKE)["w"].cpu() - w.grad).abs().max().item()


@case
def a_compiler_gets_the_operators_as_they_are_called_there() -> Any:
    capture, eager = capture_and_gradients("attention", CPU)
    seen = []

    def compiler(graph):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    found = capture.replay(device=FAKE, backend=compiler)
    apart = max(((found[key].cpu() - g).abs().max() / g.abs().max()).item() for key, g in eager.items())
    return {"apart": apart, "fused": [name for name in seen if "flash" in name], "operators": len(seen)}


@case
def whole_steps() -> Any:
    def build(device="cpu"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        x = torch.randn(3, 4)
        model, x = model.to(device), x.to(device)
        return lambda: model(x).square().sum(), model

    matrix = cabw_viz.compare(build, devices=[CPU, FAKE], backends=["eager", "compiled_autograd"], repeats=1)
    return {"ok": matrix.ok, "runs": list(matrix.frame.columns), "text": repr(matrix)}


# ------------------------------------------------------------------------------------------------------------- refusals


def refused(function: Callable[[], Any]) -> str:
    try:
        function()
    except CabwError as error:
        return str(error)
    return "was not refused"


@case
def a_tensor_on_a_ctx() -> Any:
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mask = torch.ones_like(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2 * ctx.mask

    w = torch.ones(3, requires_grad=True)
    capture = capture_of({"w": w}, lambda: Keeps.apply(w).sum())
    here = capture.replay()["w"].tolist()
    return {"here": here, "there": refused(lambda: capture.replay(device=FAKE))}


@case
def a_tensor_in_a_hook() -> Any:
    w, mask = torch.ones(3, requires_grad=True), torch.tensor([1.0, 0.0, 2.0])
    with cabw_viz.capture({"w": w}) as session:
        y = w * 2
        y.register_hook(lambda grad: grad * mask)
        y.sum().backward()
    there = refused(lambda: session[0].replay(device=FAKE))
    return {"there": there, "dropped": session[0].replay(device=FAKE, hooks="drop")["w"].cpu().tolist()}


SCALES = torch.tensor([1.0, 2.0, 3.0])


@case
def a_global_tensor_in_a_hook() -> Any:
    def scaled(grad):
        return grad * SCALES

    w = torch.ones(3, requires_grad=True)
    with cabw_viz.capture({"w": w}) as session:
        y = w * 2
        y.register_hook(scaled)
        y.sum().backward()
    return refused(lambda: session[0].replay(device=FAKE))


@case
def a_function_that_makes_its_tensors_on_the_cpu() -> Any:
    class Makes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.full((3,), 2.0)

    w = torch.ones(3, requires_grad=True)
    capture = capture_of({"w": w}, lambda: Makes.apply(w).sum())
    return refused(lambda: capture.replay(device=FAKE))


@case
def an_absent_device() -> Any:
    capture, _ = capture_and_gradients("mlp", CPU)
    return {name: refused(lambda name=name: capture.replay(device=name)) for name in ("cuda", "cabw:7", "nonsense")}


def result(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:  # noqa: BLE001 (a test tells which)
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: result(function) for name, function in CASES.items()}))
