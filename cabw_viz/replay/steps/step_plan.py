"""The plan of a comparison of whole steps: all arguments, checked before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.numerics.tolerance import tolerance_for
from cabw_viz.record.options import EAGER
from cabw_viz.replay.placement.devices import Compiler, resolve_compiler, resolve_device, resolve_dtype
from cabw_viz.replay.steps.parameter_state import StepUnderTest

AGAINST = "against={'mine': torch.compile(step)}"
BUILD = "def build(device='cpu', dtype=torch.float32): ...; return step, model"


@dataclass(frozen=True)
class CompareArguments:
    """The arguments of `cabw_viz.compare`, unchecked."""

    step: Any
    params: Any
    backward: Callable[[Any], Any] | None
    devices: Sequence[str | torch.device] | None
    dtypes: Sequence[str | torch.dtype] | None
    backends: str | Compiler | Sequence[str | Compiler]
    against: Mapping[str, Any]
    repeats: Any
    rtol: float | None
    atol: float | None


@dataclass(frozen=True)
class Variant:
    """Device and dtype to build the step with; None means the builder's default."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None

    def name(self, base: Variant) -> str:
        """The device and dtype that differ from another variant's: `cuda/bfloat16`."""
        device = str(self.device) if self.device != base.device else ""
        dtype = str(self.dtype).removeprefix("torch.") if self.dtype != base.dtype else ""
        return "/".join(filter(None, (device, dtype)))


StepFactory = Callable[[Variant], StepUnderTest]
"""Returns a step: a new one from a function that builds, or else always the same."""


@dataclass(frozen=True)
class StepMode:
    """One way to run a step."""

    name: str
    description: str
    prepare: Callable[[StepUnderTest], Callable[[], Any]]
    """Returns what is called for a step."""
    context: Callable[[], AbstractContextManager[Any]]
    """The context of each call."""
    compiled_count: Callable[[], int] | None = None
    """Counts what was compiled so far; None for a mode in which nothing is compiled."""
    replay_backend: str | Compiler | None = None
    """The backend under which a captured graph of the backward computes as in this mode; None where none does."""


def step_function(step: StepUnderTest) -> Callable[[], Any]:
    """The step's own function, unchanged."""
    return step.function


EAGER_STEP = StepMode(
    "eager", "the step in eager, nothing in it compiled", step_function, torch_adapter.nothing_compiled
)
EAGER_RERUN = replace(EAGER_STEP, description="the same once more: what it differs by is eager's own noise")
AS_IS = StepMode("as_is", "the step as it is, its own compiled parts too", step_function, nullcontext)
COMPILED_AUTOGRAD = StepMode(
    "compiled_autograd",
    "the step as it is, its backward through compiled autograd (the captured graph op by op)",
    step_function,
    torch_adapter.compiled_autograd_op_by_op,
    torch_adapter.count_of_captures,
    EAGER,
)


def mode_for(backend: str | Compiler) -> StepMode:
    """How to run a step under a backend: `eager`, `compiled_autograd`, or one of torch.compile."""
    known = {mode.name: mode for mode in (EAGER_STEP, COMPILED_AUTOGRAD)}  # AS_IS runs only where it adds something
    if isinstance(backend, str) and backend in known:
        return known[backend]
    compiler = resolve_compiler(backend, also=tuple(known))
    name = compiler if isinstance(compiler, str) else getattr(compiler, "__name__", type(compiler).__name__)

    def compiled_step(step: StepUnderTest) -> Callable[[], Any]:
        function: Callable[[], Any] = torch.compile(step.function, backend=compiler)
        return function

    description = f"the step under torch.compile(backend={name!r}), its backward in the eager engine"
    return StepMode(name, description, compiled_step, nullcontext, torch_adapter.count_of_graphs, backend)


def own_step_mode(name: str) -> StepMode:
    """How to run a step of the user's own, given in `against`."""
    return StepMode(name, "a step of your own, run as it is", step_function, nullcontext)


@dataclass(frozen=True)
class Plan:
    """What a comparison runs."""

    factory: StepFactory
    backward: Callable[[Any], Any] | None
    variants: tuple[Variant, ...]
    """The first is that of the reference."""
    modes: tuple[StepMode, ...]
    against: tuple[tuple[StepMode, StepFactory], ...]
    repeats: int
    rtol: float | None
    atol: float | None


def plan_of(arguments: CompareArguments) -> Plan:
    """The plan for arguments, each of them checked.

    Raises:
        CabwError: an argument is not one that `compare` takes.
    """
    tolerance_for(torch.float32, arguments.rtol, arguments.atol)
    if isinstance(arguments.repeats, bool) or not isinstance(arguments.repeats, int) or arguments.repeats < 1:
        raise CabwError(f"compare() got repeats={arguments.repeats!r}", expected="a whole number from 1")
    backends = arguments.backends
    backends = [backends] if isinstance(backends, str) or callable(backends) else backends
    modes = tuple(mode_for(backend) for backend in backends)
    factory = _factory(arguments.step, arguments.params)
    _check_against(arguments.against)
    against = tuple(
        (own_step_mode(name), _against_factory(arguments, name, other)) for name, other in arguments.against.items()
    )
    _check_names([mode.name for mode in modes], [mode.name for mode, _ in against])
    return Plan(
        factory,
        arguments.backward,
        _variants(arguments),
        modes,
        against,
        arguments.repeats,
        arguments.rtol,
        arguments.atol,
    )


def _check_against(against: Any) -> None:
    if isinstance(against, Mapping) and all(isinstance(name, str) for name in against):
        return
    seen = (
        f"with the key {next(name for name in against if not isinstance(name, str))!r}"
        if isinstance(against, Mapping)
        else f"of type {type(against).__name__}"
    )
    raise CabwError(f"compare() got against {seen}", expected="a mapping of names to steps", try_=AGAINST)


def _check_names(backends: list[str], against: list[str]) -> None:
    reserved = {EAGER_STEP.name, AS_IS.name} - set(backends)
    names = [*reserved, *backends, *against]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise CabwError(f"two runs are called {double!r}", expected="a name of its own for each backend and step")


def _factory(step: Any, params: Any) -> StepFactory:
    if not callable(step):
        raise CabwError(f"compare() got a {type(step).__name__} as its step", expected="a function without arguments")
    if params is None:
        return _Builder(step)
    step_under_test = StepUnderTest(step, params)
    step_under_test.check()
    return lambda _: step_under_test


def _against_factory(arguments: CompareArguments, name: str, other: Any) -> StepFactory:
    """A step of `against`: with the same parameters, with its own, or built as the first step is."""
    if isinstance(other, tuple) and len(other) == 2:
        return _factory(*other)
    if not callable(other):
        raise CabwError(
            f"against[{name!r}] is a {type(other).__name__}",
            expected="a step, or a pair of a step and its parameters",
            try_=AGAINST,
        )
    return _factory(other, arguments.params)


class _Builder:
    """Calls the user's function that builds a step, with the device and dtype of a variant."""

    def __init__(self, build: Callable[..., Any]) -> None:
        self._build = build

    def __call__(self, variant: Variant) -> StepUnderTest:
        options = {"device": variant.device, "dtype": variant.dtype}
        built = self._build(**{name: value for name, value in options.items() if value is not None})
        if not (isinstance(built, tuple) and len(built) == 2 and callable(built[0])):
            raise CabwError(
                f"without parameters the function must build the step, and it returned a {type(built).__name__}",
                expected="a pair: the step and its parameters",
                try_=f"compare(step, model), or {BUILD}; compare(build)",
            )
        step = StepUnderTest(*built, is_fresh=True)
        step.check()
        return step


def _variants(arguments: CompareArguments) -> tuple[Variant, ...]:
    devices = _named(arguments, "device", arguments.devices, resolve_device)
    dtypes = _named(arguments, "dtype", arguments.dtypes, resolve_dtype)
    return tuple(Variant(device, dtype) for device in devices for dtype in dtypes)


def _named(arguments: CompareArguments, what: str, names: Any, find: Callable[[Any], Any]) -> list[Any]:
    """The devices or dtypes of these names. Raises a CabwError unless the step can be built for each."""
    if not names:
        return [None]
    names = [names] if isinstance(names, str | torch.device | torch.dtype) else names
    if arguments.params is not None or not _takes(arguments.step, what):
        raise CabwError(
            f"a step cannot be moved to another {what}: the tensors that it uses are its own",
            expected=f"a function that builds step and parameters, with an argument {what!r}",
            try_=f"{BUILD}; compare(build, {what}s={list(map(str, names))})",
        )
    return list(dict.fromkeys(find(name) for name in names))


def _takes(function: Any, argument: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable in C
        return False
    return argument in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
