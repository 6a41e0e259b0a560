"""One call of a user's step, and the values that it leaves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cabw_viz.record.kinds import Compared
from cabw_viz.replay.steps.accumulated import accumulated_gradients
from cabw_viz.replay.steps.parameter_state import StepUnderTest
from cabw_viz.runtime.gradient_snapshots import Gradient, detached_copy, strides_of
from cabw_viz.runtime.random_state import RandomState

ValueKey = tuple[Compared, str]
CallValue = Gradient | str
"""A tensor or number, or a text."""

DEEPEST = 8
"""Results that are nested deeper are not compared."""


@dataclass
class CallResult:
    """What a call of a step left: gradients, loss, further results and buffers, or an exception."""

    values: dict[ValueKey, CallValue] = field(default_factory=dict)
    raised: str = ""
    own_backward: bool | None = None
    """Whether the step made its backward itself; None where it raised before that was known."""
    without_gradient: bool = False
    """Whether a leaf that needs a gradient was left without one."""
    cleared: bool = False
    """Whether `.grad` was accumulated into and is None at the end."""
    draws: bool = False
    """Whether the call drew random numbers."""
    random_state: bytes = b""
    """A digest of the random state after the call: equal if the same numbers were drawn."""

    def copy(self) -> CallResult:
        """The same with copies of the tensors, which later calls do not change."""
        values = {key: value if isinstance(value, str) else _copy(value) for key, value in self.values.items()}
        return replace(self, values=values)


def _copy(gradient: Gradient) -> Gradient:
    return Gradient(detached_copy(gradient.value), gradient.strides)


def observe(
    step: StepUnderTest,
    function: Callable[[], Any],
    backward: Callable[[Any], Any] | None,
    own_backward: bool | None,
    *,
    at_accumulation: bool = False,
) -> CallResult:
    """Call a step, and its backward unless it makes that itself.

    Args:
        step: the `.grad` of its parameters is set to None first, and read afterwards.
        function: what to call: the step's own function or a compiled form of it.
        backward: the user's own, called with what the step returned.
        own_backward: True if the reference made its own backward; then this call makes its own too. Otherwise it does
            if it leaves a gradient, or returns nothing that requires one.
        at_accumulation: whether to look at gradients where they are accumulated too, for steps that clear `.grad`.
    """
    slots = list(step.slots())
    for slot in slots:
        slot.tensor.grad = None
    result = CallResult(own_backward=own_backward)
    random = RandomState().digest()
    try:
        with accumulated_gradients(slot.tensor for slot in slots if at_accumulation) as accumulated:
            loss, others = _call(step, function, backward, result, accumulated)
            result.values = dict(_values(step, loss, others, accumulated))
            left = [slot.tensor for slot in step.slots() if slot.tensor.grad is None]
            result.without_gradient = any(tensor.requires_grad for tensor in left)
            result.cleared = any(id(tensor) in accumulated for tensor in left)
    except Exception as error:  # noqa: BLE001  # whatever a user's step raises is a result to report
        result.raised = f"{type(error).__name__}: {error}"
    result.random_state = RandomState().digest()
    result.draws = result.random_state != random
    return result


def _call(
    step: StepUnderTest,
    function: Callable[[], Any],
    backward: Callable[[Any], Any] | None,
    result: CallResult,
    accumulated: dict[int, Gradient],
) -> tuple[Any, list[tuple[str, CallValue]]]:
    """The loss and the other results of one call; notes in `result` whether it made its own backward."""
    returned = function()
    loss, others = _loss_and_others(returned)
    if backward is not None:
        return loss, others + list(leaves(backward(returned)))
    requires_grad = isinstance(loss, torch.Tensor) and loss.requires_grad
    if not result.own_backward:
        has_gradients = bool(accumulated) or any(slot.tensor.grad is not None for slot in step.slots())
        result.own_backward = not requires_grad or has_gradients
    if requires_grad and not result.own_backward:
        loss.backward()
    return loss, others


def _values(
    step: StepUnderTest, loss: Any, others: list[tuple[str, CallValue]], accumulated: dict[int, Gradient]
) -> Iterator[tuple[ValueKey, CallValue]]:
    slots = list(step.slots())
    for slot in slots:
        grad = slot.tensor.grad
        value = accumulated.get(id(slot.tensor)) if grad is None else Gradient(grad.detach(), strides_of(grad))
        if value is not None:
            yield ("gradient", slot.name), value
    yield from ((("loss", ""), value) for _, value in itertools.islice(leaves(loss), 1))
    yield from ((("result", name), value) for name, value in others)
    for slot in slots:
        if slot.is_buffer:
            yield ("buffer", slot.name), Gradient(slot.tensor.detach(), None)


def _loss_and_others(returned: Any) -> tuple[Any, list[tuple[str, CallValue]]]:
    """The loss among what a step returned, and the leaves of the rest."""
    if isinstance(returned, Mapping):
        others = {key: value for key, value in returned.items() if key != "loss"}
        return returned.get("loss"), list(leaves(others))
    if isinstance(returned, list | tuple):
        rest = [leaf for index, value in enumerate(returned) if index for leaf in leaves(value, f"[{index}]")]
        return returned[0] if returned else None, rest
    return returned, []


def leaves(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, CallValue]]:
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
        for index, item in enumerate(value):
            yield from leaves(item, f"{name}[{index}]", depth + 1)


def _number(value: complex) -> CallValue:
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
