"""What is to be run when whole steps are compared, checked before anything runs."""

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
from cabw_viz.replay.placement.devices import Compiler, compiler_named, device_named, dtype_named
from cabw_viz.replay.steps.step_under_test import Subject

AGAINST = "against={'mine': torch.compile(step)}"
BUILD = "def build(device='cpu', dtype=torch.float32): ...; return step, model"


@dataclass(frozen=True)
class Wanted:
    """What a user asked for, as they gave it; see `cabw_viz.compare`."""

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
    """Where and in what a step is built; None is left to whoever builds it."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None

    def name(self, base: Variant) -> str:
        """What sets it apart from another: `cuda/bfloat16`."""
        device = str(self.device) if self.device != base.device else ""
        dtype = str(self.dtype).removeprefix("torch.") if self.dtype != base.dtype else ""
        return "/".join(filter(None, (device, dtype)))


Source = Callable[[Variant], Subject]
"""Makes the step anew where it is built; else gives the one there is."""


@dataclass(frozen=True)
class Manner:
    """One way to run a step."""

    name: str
    words: str
    prepare: Callable[[Subject], Callable[[], Any]]
    """Makes of a step what is called."""
    around: Callable[[], AbstractContextManager[Any]]
    """The context of each call."""
    compiled: Callable[[], int] | None = None
    """Counts what was compiled so far; None where nothing needs to be."""


def as_it_is(subject: Subject) -> Callable[[], Any]:
    """The step itself."""
    return subject.step


def nothing_compiled() -> AbstractContextManager[Any]:
    """Context in which what `torch.compile` made runs as it was before."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


EAGER = Manner("eager", "the step in eager, nothing in it compiled", as_it_is, nothing_compiled)
AGAIN = replace(EAGER, words="the same once more: what it differs by is eager's own noise")
AS_IS = Manner("as_is", "the step as it is, its own compiled parts too", as_it_is, nullcontext)
COMPILED_AUTOGRAD = Manner(
    "compiled_autograd",
    "the step as it is, its backward through compiled autograd (the captured graph op by op)",
    as_it_is,
    torch_adapter.compiled_autograd_op_by_op,
    torch_adapter.count_of_captures,
)


def manner_of(backend: str | Compiler) -> Manner:
    """How to run a step under a backend: `eager`, `compiled_autograd`, or one of torch.compile."""
    known = {manner.name: manner for manner in (EAGER, COMPILED_AUTOGRAD)}  # `as_is` is run where it says something
    if isinstance(backend, str) and backend in known:
        return known[backend]
    compiler = compiler_named(backend, also=tuple(known))
    name = compiler if isinstance(compiler, str) else getattr(compiler, "__name__", type(compiler).__name__)

    def compiled(subject: Subject) -> Callable[[], Any]:
        made: Callable[[], Any] = torch.compile(subject.step, backend=compiler)
        return made

    words = f"the step under torch.compile(backend={name!r}), its backward in the eager engine"
    return Manner(name, words, compiled, nullcontext, torch_adapter.count_of_graphs)


def own(name: str) -> Manner:
    """How to run a step that the user brought."""
    return Manner(name, "a step of your own, run as it is", as_it_is, nullcontext)


@dataclass(frozen=True)
class Plan:
    """What is to be run."""

    source: Source
    backward: Callable[[Any], Any] | None
    variants: tuple[Variant, ...]
    """The first is that of the reference."""
    manners: tuple[Manner, ...]
    against: tuple[tuple[Manner, Source], ...]
    repeats: int
    rtol: float | None
    atol: float | None


def plan_of(wanted: Wanted) -> Plan:
    """Check what a user asked for.

    Raises:
        CabwError: an argument cannot be what it is.
    """
    tolerance_for(torch.float32, wanted.rtol, wanted.atol)
    if isinstance(wanted.repeats, bool) or not isinstance(wanted.repeats, int) or wanted.repeats < 1:
        raise CabwError(f"compare() got repeats={wanted.repeats!r}", expected="a whole number from 1")
    backends = [wanted.backends] if isinstance(wanted.backends, str) or callable(wanted.backends) else wanted.backends
    manners = tuple(manner_of(backend) for backend in backends)
    source = _source(wanted.step, wanted.params)
    _check_against(wanted.against)
    against = tuple((own(name), _other(wanted, name, other)) for name, other in wanted.against.items())
    _check_names([manner.name for manner in manners], [manner.name for manner, _ in against])
    return Plan(source, wanted.backward, _variants(wanted), manners, against, wanted.repeats, wanted.rtol, wanted.atol)


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
    reserved = {EAGER.name, AS_IS.name} - set(backends)
    names = [*reserved, *backends, *against]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise CabwError(f"two runs are called {twice!r}", expected="a name of its own for each backend and step")


def _source(step: Any, params: Any) -> Source:
    if not callable(step):
        raise CabwError(f"compare() got a {type(step).__name__} as its step", expected="a function without arguments")
    if params is None:
        return _Builder(step)
    subject = Subject(step, params)
    subject.check()
    return lambda _: subject


def _other(wanted: Wanted, name: str, other: Any) -> Source:
    """A step to hold against the reference: with the same parameters, with its own, or built as the first is."""
    if isinstance(other, tuple) and len(other) == 2:
        return _source(*other)
    if not callable(other):
        raise CabwError(
            f"against[{name!r}] is a {type(other).__name__}",
            expected="a step, or a pair of a step and its parameters",
            try_=AGAINST,
        )
    return _source(other, wanted.params)


class _Builder:
    """Calls the user's function that builds a step, with as much of a variant as it takes."""

    def __init__(self, build: Callable[..., Any]) -> None:
        self._build = build

    def __call__(self, variant: Variant) -> Subject:
        given = {"device": variant.device, "dtype": variant.dtype}
        built = self._build(**{name: value for name, value in given.items() if value is not None})
        if not (isinstance(built, tuple) and len(built) == 2 and callable(built[0])):
            raise CabwError(
                f"without parameters the function must build the step, and it returned a {type(built).__name__}",
                expected="a pair: the step and its parameters",
                try_=f"compare(step, model), or {BUILD}; compare(build)",
            )
        subject = Subject(*built)
        subject.check()
        return subject


def _variants(wanted: Wanted) -> tuple[Variant, ...]:
    devices = _named(wanted, "device", wanted.devices, device_named)
    dtypes = _named(wanted, "dtype", wanted.dtypes, dtype_named)
    return tuple(Variant(device, dtype) for device in devices for dtype in dtypes)


def _named(wanted: Wanted, what: str, names: Any, find: Callable[[Any], Any]) -> list[Any]:
    """The devices or dtypes of these names; where there are any, the step must be built for each."""
    if not names:
        return [None]
    names = [names] if isinstance(names, str | torch.device | torch.dtype) else names
    if wanted.params is not None or not _takes(wanted.step, what):
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
