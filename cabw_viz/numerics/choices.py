"""Choices: results of operators that jump where their inputs change a little, and modes that keep or repeat them.

An index of the largest element, a mask of what is above a bound, a rounding to whole numbers: rounding may turn each
over, and what depends on it then computes something else, by any amount. Perturbed runs in which the choices are held
show what rounding does apart from that, and two runs whose choices are compared show where one chose otherwise.

What cannot be held: choices inside a kernel. A few kernels that choose by saved numbers are known (`FUSED_CHOICES`);
where choices are held, these run in the dtype of the capture. Others show in that the noise is out of proportion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.numerics.tolerance import has_digits

Place = Callable[[], str]
"""The name of the graph node that runs."""

Choices = dict[tuple[str, str, int], list[torch.Tensor]]
"""What operators chose in one run, by graph node, operator, and how many of that operator came before in the node."""

WHOLE = frozenset({"floor", "ceil", "round", "trunc", "sign", "sgn", "floor_divide", "heaviside"})
"""Operators whose results are whole numbers, from which indices are made."""

FUSED_CHOICES = frozenset(
    {
        "_cdist_backward",
        "_pdist_backward",
        "_segment_reduce_backward",
        "grid_sampler_2d_backward",
        "_grid_sampler_2d_cpu_fallback_backward",
        "grid_sampler_3d_backward",
    }
)
"""Operators that choose inside their kernel, in the dtype of their arguments: the elements that equal a maximum which
the forward has saved, or the pixels around a point. What they choose is known by that dtype alone."""

_UNWRITTEN = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})
"""Operators whose results hold what was in the memory before."""

UNWRITTEN_VALUE = 1733.0
"""What `FilledMemory` writes: no number that a gradient is likely to consist of; finite, so that 0 times it is 0."""


@cache
def operator_name(operator: Any) -> str:
    """The name of an operator without its namespace and overload: `topk`."""
    return str(operator).split(".")[1] if "." in str(operator) else str(operator)


def chosen_tensors(operator: Any, args: Any, kwargs: Any, returned: Any) -> list[torch.Tensor]:
    """Those results of an operator that are choices made by numbers that are rounded."""
    name = operator_name(operator)
    if name in _UNWRITTEN or not torch_adapter.returns_new_tensors(operator):
        return []
    inputs = torch_adapter.tree_leaves((args, kwargs))
    if not any(isinstance(value, torch.Tensor) and has_digits(value.dtype) for value in inputs):
        return []
    results = [value for value in torch_adapter.tree_leaves(returned) if isinstance(value, torch.Tensor)]
    if name in FUSED_CHOICES:
        return [torch.tensor(results[0].element_size())] if results else []
    return [value for value in results if name in WHOLE or not has_digits(value.dtype)]


class _ChoosingMode(torch_adapter.InfraMode):
    """Finds the choices of a run, one operator after another."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self._counts: Counter[tuple[str, str]] = Counter()

    def _key(self, operator: Any) -> tuple[str, str, int]:
        place = self._place(), operator_name(operator)
        self._counts[place] += 1
        return *place, self._counts[place]


class RecordedChoices(_ChoosingMode):
    """Keeps what operators choose in a run."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.choices: Choices = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        returned = torch_adapter.call_below_autograd(func, args, kwargs)
        with torch_adapter.below_modes():
            chosen = chosen_tensors(func, args, kwargs, returned)
            if chosen:
                self.choices[self._key(func)] = [value.detach().clone() for value in chosen]
        return returned


class HeldChoices(_ChoosingMode):
    """Lets operators choose as they did in an earlier run of the same graph.

    Args:
        place: the graph node that runs.
        choices: of the earlier run; None where they are not known.
        dtype: that in which `FUSED_CHOICES` are made; None for that of the run.
        missing: gets the names of operators that choose while the choices are not known.
    """

    def __init__(
        self,
        place: Place,
        choices: Choices | None,
        dtype: torch.dtype | None = None,
        missing: set[str] | None = None,
    ) -> None:
        super().__init__(place)
        self._choices, self._dtype = choices or {}, dtype
        self._missing = missing if choices is None else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operator_name(func) in FUSED_CHOICES:
            return (
                torch_adapter.call_below_autograd(func, args, kwargs)
                if self._dtype is None
                else _run_in(self._dtype, func, args, kwargs)
            )
        returned = torch_adapter.call_below_autograd(func, args, kwargs)
        with torch_adapter.below_modes():
            chosen = chosen_tensors(func, args, kwargs, returned)
            if chosen and self._missing is not None:
                self._missing.add(operator_name(func))
            earlier = self._choices.get(self._key(func), []) if chosen else []
            for value, held in zip(chosen, earlier, strict=False):
                if value.shape == held.shape:
                    value.copy_(held)
        return returned


def _run_in(dtype: torch.dtype, func: Any, args: Any, kwargs: Any) -> Any:
    """An operator run in a dtype, its results as they would be without."""
    before: list[torch.dtype] = []

    def lowered(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        before.append(tensor.dtype)
        return tensor.to(dtype)

    args, kwargs = torch_adapter.tree_map_only(torch.Tensor, lowered, (args, kwargs))
    returned = torch_adapter.call_below_autograd(func, args, kwargs)
    return torch_adapter.tree_map_only(torch.Tensor, lambda tensor: tensor.to(before[0]), returned)


class FilledMemory(torch_adapter.InfraMode):
    """Writes to memory that an operator hands out unwritten, so that what reads it gives something else."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = torch_adapter.call_below_autograd(func, args, kwargs or {})
        if operator_name(func) in _UNWRITTEN and isinstance(returned, torch.Tensor) and has_digits(returned.dtype):
            with torch_adapter.below_modes():
                returned.fill_(UNWRITTEN_VALUE)
        return returned


def differing_choices(one: Choices, other: Choices) -> list[tuple[str, str]]:
    """Graph node and operator of each choice that two runs made otherwise, in the order of the first.

    What only one of the two made, such as a formula in place of a kernel, is left out.
    """
    return list(
        dict.fromkeys(key[:2] for key, values in one.items() if key in other and not _are_equal(values, other[key]))
    )


def _are_equal(values: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(values) == len(others) and all(
        one.shape == other.shape and torch.equal(one.to(other.device, other.dtype), other)
        for one, other in zip(values, others, strict=True)
    )
