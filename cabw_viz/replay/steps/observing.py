"""One call of a user's step, and what came of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from cabw_viz.record.kinds import Compared
from cabw_viz.replay.steps.step_under_test import Subject
from cabw_viz.runtime.gradient_snapshots import Gradient, detached_copy, strides_of

Key = tuple[Compared, str]
Seen = Gradient | str
"""A tensor or number, or a text."""

DEEPEST = 8
"""Results that are nested deeper are not looked at."""


@dataclass
class Observed:
    """What a call of a step left: gradients, loss, further results and buffers, or an exception."""

    values: dict[Key, Seen] = field(default_factory=dict)
    raised: str = ""
    own_backward: bool | None = None
    """Whether the step made its backward itself; None where it did not come so far."""

    def kept(self) -> Observed:
        """The same with copies, which later calls do not change."""
        values = {key: seen if isinstance(seen, str) else _kept(seen) for key, seen in self.values.items()}
        return Observed(values, self.raised, self.own_backward)


def _kept(seen: Gradient) -> Gradient:
    return Gradient(detached_copy(seen.value), seen.strides)


def observe(
    subject: Subject,
    step: Callable[[], Any],
    backward: Callable[[Any], Any] | None,
    own_backward: bool | None,
) -> Observed:
    """Call a step, and its backward unless it makes that itself.

    Args:
        subject: whose parameters' `.grad` is looked at; None at the beginning.
        step: what to call; the subject's own or a compiled form of it.
        backward: the user's own, called with what the step returned.
        own_backward: whether the reference made its own; a step does so too, or if it left a gradient, or returned
            nothing that needs one.
    """
    for place in subject.places():
        place.tensor.grad = None
    seen = Observed(own_backward=own_backward)
    try:
        returned = step()
        loss, results = _parts(returned)
        if backward is not None:
            results += list(leaves(backward(returned)))
        else:
            wants = isinstance(loss, torch.Tensor) and loss.requires_grad
            if not own_backward:
                seen.own_backward = not wants or any(place.tensor.grad is not None for place in subject.places())
            if wants and not seen.own_backward:
                loss.backward()
        seen.values = dict(_values(subject, loss, results))
    except Exception as error:  # noqa: BLE001  # whatever a user's step raises is what is to be told
        seen.raised = f"{type(error).__name__}: {error}"
    return seen


def _values(subject: Subject, loss: Any, results: list[tuple[str, Seen]]) -> Iterator[tuple[Key, Seen]]:
    places = list(subject.places())
    for place in places:
        grad = place.tensor.grad
        if grad is not None:
            yield ("gradient", place.name), Gradient(grad.detach(), strides_of(grad))
    yield from ((("loss", ""), seen) for _, seen in itertools.islice(leaves(loss), 1))
    yield from ((("result", name), seen) for name, seen in results)
    for place in places:
        if place.is_buffer:
            yield ("buffer", place.name), Gradient(place.tensor.detach(), None)


def _parts(returned: Any) -> tuple[Any, list[tuple[str, Seen]]]:
    """The loss among what a step returned, and the leaves of the rest."""
    if isinstance(returned, Mapping):
        others = {key: value for key, value in returned.items() if key != "loss"}
        return returned.get("loss"), list(leaves(others))
    if isinstance(returned, list | tuple):
        rest = [seen for at, value in enumerate(returned) if at for seen in leaves(value, f"[{at}]")]
        return returned[0] if returned else None, rest
    return returned, []


def leaves(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Seen]]:
    """The tensors, numbers and texts in a value, each under a name such as `logits[0]`."""
    if isinstance(value, torch.Tensor):
        yield name, Gradient(value.detach(), None)
    elif isinstance(value, str):
        yield name, value
    elif isinstance(value, bool | int | float | complex):
        yield name, _number(value)
    elif depth < DEEPEST and isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}" if name else str(key), depth + 1)
    elif depth < DEEPEST and isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from leaves(item, f"{name}[{at}]", depth + 1)


def _number(value: complex) -> Seen:
    """A number as a tensor of its widest dtype; as text, where it fits into none."""
    dtype = next(dtype for kind, dtype in _WIDEST.items() if isinstance(value, kind))
    try:
        return Gradient(torch.tensor(value, dtype=dtype, device="cpu"), None)
    except (OverflowError, RuntimeError):
        return str(value)


_WIDEST: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}
