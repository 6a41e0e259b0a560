"""The workloads, and what a user sees of one.

A workload is a file in `tests/workloads`: a small backward that once went wrong in a user's program, with what PyTorch
itself makes of it under compiled autograd (`EXPECT`). Several keep state in their module, so `load` runs the file
anew each time, and `isolated` undoes what they do to the process: configuration, compiled code, random state.

What it does not undo is a process group of one rank, which stays until the process ends. Destroying one soon after
its last collective can hang PyTorch 2.13: a gloo thread that is done with the work needs the GIL to let go of it,
and the destructor waits for that thread while it holds the GIL.

    eager = observe("ck_selective")
    ours = observe("ck_selective", around=lambda params: cabw_viz.capture(params))
    assert_same(eager, ours)
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch._dynamo
import torch._dynamo.compiled_autograd
import torch.nested._internal.nested_tensor

FOLDER = Path(__file__).parent / "workloads"

GARBAGE = ("ck_rrelu_early_stop",)
"""Those whose gradients in eager are made of uninitialised memory, and so are others in each run."""

NAMES = tuple(sorted({path.stem for path in FOLDER.glob("*.py")} - {"__init__", *GARBAGE}))
"""All others: eager gives the same each time."""

SHORTENED: dict[str, dict[str, Any]] = {
    # 10,000 nodes take 26 s under compiled autograd; 1,200 are still more than Python's recursion limit.
    "cs_deep_chain": {"depth": 1200},
}

DISTRIBUTED = tuple(name for name in NAMES if "torch.distributed" in (FOLDER / f"{name}.py").read_text("utf-8"))
"""Those that start a process group of one rank, or use the one that is there."""

Params = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """One freshly loaded file of `tests/workloads`."""

    name: str
    point: str
    expect: str
    """`parity`, `rounding: WHY`, `raises: TEXT` or `differs: WHERE`: compiled autograd with an identity compiler,
    against eager."""
    expect_compiled: str | None
    """The same for the compiled step against the eager one; None where the workload has no compiled form."""
    steps: int
    """How many steps show the point; 3 unless the file says otherwise."""
    build: Callable[..., tuple[dict[str, torch.Tensor], Callable[[], Any]]]
    backward: Callable[[Any, Params], dict[str, Any] | None]
    compiled: Callable[..., Callable[[], Any]] | None
    otherwise: Callable[..., tuple[dict[str, torch.Tensor], Callable[[], Any]]] | None
    """Builds a step that computes the same in another way; None where there is none."""


def load(name: str, *, full: bool = False) -> Workload:
    """Runs the workload's file in a new module. `full` lifts what SHORTENED shortens."""
    module_name = f"cabw_workloads.{name}"
    spec = importlib.util.spec_from_file_location(module_name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # Dynamo looks a function's globals up there
    spec.loader.exec_module(module)
    return Workload(
        name=module.NAME,
        point=module.POINT,
        expect=module.EXPECT,
        expect_compiled=getattr(module, "EXPECT_COMPILED", None),
        steps=getattr(module, "REPEAT", 3),
        build=functools.partial(module.build, **({} if full else SHORTENED.get(name, {}))),
        backward=getattr(module, "backward", backward_of),
        compiled=getattr(module, "compiled", None),
        otherwise=getattr(module, "otherwise", None),
    )


def backward_of(returned: Any, params: Params) -> dict[str, Any] | None:
    """The backward of what a step returned: the loss, or a pair of the loss and another result.

    A step that makes its backward itself returns what needs no gradient. The other result is read after the backward.
    """
    loss, *others = returned if isinstance(returned, tuple) else (returned,)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        loss.backward()
    return {"others": others} if others else None


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Leaves random state, and Dynamo's configuration and caches, as they were."""
    _clear_caches()
    config = torch._dynamo.config.patch(optimize_ddp=torch._dynamo.config.optimize_ddp)
    try:
        with torch.random.fork_rng(devices=[]), config:
            torch.manual_seed(0)
            yield
    finally:
        _clear_caches()
        for name in [name for name in sys.modules if name.startswith("cabw_workloads.")]:
            del sys.modules[name]


def _clear_caches() -> None:
    torch._dynamo.reset()
    torch._C._dynamo.compiled_autograd.clear_cache()
    torch.nested._internal.nested_tensor._tensor_id_counter = 0  # jagged sizes are named by it: j1, j2


# ------------------------------------------------------------------------------------------------- what a user sees


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor's description and a copy of its values; a subclass is the copies of its inner tensors."""

    description: dict[str, Any]
    values: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Step:
    """One step: forward, backward, and what was left in `.grad`."""

    raised: str | None
    loss: Any
    results: Any
    """What the workload's own `backward` returned."""
    gradients: dict[str, Any]
    random_state: str
    """Digest of the CPU generator's state afterwards."""


@dataclass(frozen=True, eq=False)
class Observation:
    """All that a user sees of a workload's run."""

    workload: str
    steps: tuple[Step, ...]

    @property
    def raised(self) -> str | None:
        """The first exception, `Type: message`."""
        return next((step.raised for step in self.steps if step.raised), None)


def observe(
    workload: Workload | str,
    steps: int | None = None,
    around: Callable[[Params], AbstractContextManager[object]] = nullcontext,
    scope: Literal["run", "step", "backward"] = "run",
) -> Observation:
    """Runs a workload and returns what its user sees.

    Args:
        workload: a name, or what `load` returned; loaded once more if it was built before, its state is its own.
        steps: how many; the workload's own number unless given. `.grad` is None before each.
        around: called with the parameters, returns the context to run in.
        scope: what the context is entered around: all the steps at once, each step, or each backward.
    """
    with isolated():
        workload = load(workload) if isinstance(workload, str) else workload
        params, step = workload.build()

        def context(place: str) -> AbstractContextManager[object]:
            return around(params) if place == scope else nullcontext()

        seen = []
        with context("run"):
            for _ in range(workload.steps if steps is None else steps):
                for param in params.values():
                    param.grad = None
                with context("step"):
                    seen.append(_observe_step(workload, params, step, context))
        return Observation(workload.name, tuple(seen))


def _observe_step(
    workload: Workload,
    params: Params,
    step: Callable[[], Any],
    context: Callable[[str], AbstractContextManager[object]],
) -> Step:
    loss = results = raised = None
    try:
        result = step()
        loss = snapshot(result)
        with context("backward"):
            results = snapshot(workload.backward(result, params))
    except Exception as error:  # noqa: BLE001 (what is raised is part of what is observed)
        raised = f"{type(error).__name__}: {_without_addresses(str(error))}"
    return Step(
        raised=raised,
        loss=loss,
        results=results,
        gradients={name: snapshot(param.grad) for name, param in params.items()},
        random_state=hashlib.sha256(bytes(torch.get_rng_state().tolist())).hexdigest()[:12],
    )


def _without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x…", text)


@torch.no_grad()
def snapshot(value: Any) -> Any:
    """A copy of plain data and tensors that later steps do not change. An unknown type is refused by name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        return _snapshot_tensor(value)
    if isinstance(value, Mapping):
        return {key: snapshot(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [snapshot(item) for item in value]
    raise TypeError(f"an observation cannot hold a {type(value).__qualname__}")


def _snapshot_tensor(tensor: torch.Tensor) -> Tensor:
    description = {
        "type": type(tensor).__name__,
        "shape": tuple(tensor.shape),
        "dtype": tensor.dtype,
        "layout": tensor.layout,
        "device": tensor.device,
        "requires_grad": tensor.requires_grad,
        "stride": tensor.stride() if tensor.layout == torch.strided else None,
        "coalesced": tensor.is_coalesced() if tensor.layout == torch.sparse_coo else None,
    }
    inner: dict[str, Any]
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        parts = {name: getattr(tensor, name) for name in names}  # a DTensor names its device mesh here too
        inner = {name: snapshot(part) if isinstance(part, torch.Tensor) else repr(part) for name, part in parts.items()}
    elif tensor.layout == torch.sparse_coo:
        inner = {"indices": tensor._indices().clone(), "values": tensor._values().clone()}
    else:
        inner = {"values": tensor.detach().clone().resolve_conj().resolve_neg()}
    return Tensor(description, inner)


# --------------------------------------------------------------------------------------------------------- comparing


def assert_same(reference: Observation, candidate: Observation) -> None:
    """Fails with the first difference, in words."""
    difference = first_difference(reference, candidate)
    assert difference is None, f"{reference.workload}: {difference}"


def first_difference(reference: Observation, candidate: Observation) -> str | None:
    """The first difference in words, such as `step 0: gradients['w']: 3 of 16 values differ`; None where all is
    the same to the last bit."""
    if len(reference.steps) != len(candidate.steps):
        return f"{len(reference.steps)} steps against {len(candidate.steps)}"
    for number, (one, other) in enumerate(zip(reference.steps, candidate.steps, strict=True)):
        for part in ("raised", "loss", "results", "gradients", "random_state"):
            difference = _difference(getattr(one, part), getattr(other, part), part)
            if difference is not None:
                return f"step {number}: {difference}"
    return None


def _difference(one: Any, other: Any, where: str) -> str | None:
    if type(one) is not type(other):
        return f"{where}: {_brief(one)} against {_brief(other)}"
    if isinstance(one, torch.Tensor):
        return _difference_of_values(one, other, where)
    if isinstance(one, Tensor):
        return _difference(one.description, other.description, where) or _difference(one.values, other.values, where)
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"{where}: keys {list(one)} against {list(other)}"
        return _first(_difference(one[key], other[key], f"{where}[{key!r}]") for key in one)
    if isinstance(one, list):
        if len(one) != len(other):
            return f"{where}: {len(one)} items against {len(other)}"
        return _first(_difference(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True)))
    return None if repr(one) == repr(other) else f"{where}: {one!r} against {other!r}"  # NaN is not equal to itself


def _first(differences: Iterator[str | None]) -> str | None:
    return next((difference for difference in differences if difference is not None), None)


def _difference_of_values(one: torch.Tensor, other: torch.Tensor, where: str) -> str | None:
    """Compares bits, so that NaN equals itself and 0.0 is not -0.0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{where}: {one.dtype} {tuple(one.shape)} against {other.dtype} {tuple(other.shape)}"
    if torch.equal(_bits(one), _bits(other)):
        return None
    differ = (_bits(one) != _bits(other)).any(-1).sum().item()
    largest = (one.to(torch.complex128) - other.to(torch.complex128)).abs().max().item()
    return f"{where}: {differ} of {one.numel()} values differ, by at most {largest:.3g}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1, 1).view(torch.uint8)


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return "{dtype} tensor {shape}".format(**value.description)
    return repr(value)
