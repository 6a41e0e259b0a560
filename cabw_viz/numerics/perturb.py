"""A dispatch mode that changes the results of operators at random, as other kernels might have rounded them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.numerics.tolerance import HALF_DTYPES, TOLERANCES, unit_of

Factors = Callable[[torch.Tensor], torch.Tensor]
"""Draws a factor for each element of a tensor."""


class PerturbedResults(torch_adapter.InfraMode):
    """Multiplies each new floating tensor that an operator returns by random factors.

    What that changes in a gradient is what rounding may change in it: next to nothing in most, everything in one that
    should be zero, such as that of a bias before a batch norm.

    Args:
        factors: draws the factors.
        only_differentiable: whether results on which no gradient depends stay as they are, for an index may be made of
            them.
    """

    def __init__(self, factors: Factors, *, only_differentiable: bool = False) -> None:
        super().__init__()
        self._factors, self._only_differentiable = factors, only_differentiable
        self._is_paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which results stay as they are."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._is_paused:
            return func(*args, **(kwargs or {}))
        leaves = torch_adapter.tree_leaves((args, kwargs or {}))
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        returned = func(*args, **(kwargs or {}))
        if is_rounded(func) and (not self._only_differentiable or _is_differentiable(inputs)):
            for tensor in torch_adapter.tree_leaves(returned):
                if type(tensor) is torch.Tensor and tensor.dtype in TOLERANCES and not shares_memory(tensor, inputs):
                    tensor.copy_(tensor * self._factors(tensor))
        return returned


def _is_differentiable(inputs: list[torch.Tensor]) -> bool:
    """Whether a gradient depends on the results of an operator: in a forward by its inputs, in a backward always."""
    in_backward = torch_adapter.backward_is_running() and not torch.is_grad_enabled()
    return in_backward or any(tensor.requires_grad for tensor in inputs)


WHOLE = frozenset({"floor", "ceil", "round", "trunc", "sign", "sgn", "floor_divide", "heaviside"})
"""Operators whose results are whole numbers, from which indices are made."""


def is_rounded(operator: Any) -> bool:
    """Whether an operator makes new tensors, with elements that another kernel might round differently."""
    return torch_adapter.returns_new_tensors(operator) and str(operator).split(".")[1] not in WHOLE


def shares_memory(tensor: torch.Tensor, others: list[torch.Tensor]) -> bool:
    """Whether a tensor lies where another does, which some operators do without declaring it (`_unsafe_view`)."""
    own = _address(tensor)
    return own is None or any(_address(other) == own for other in others)


def _address(tensor: torch.Tensor) -> int | None:
    """Where a tensor's values lie; None for one without such an address, sparse or empty."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr()


# ------------------------------------------------------------------------------------------------------------- factors


class _Generators:
    """A random generator for each device. The generators that the program uses stay as they are."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __getitem__(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


class UniformFactors:
    """Factors in float64 within half a unit of 1: rounding to a precision coarser than that of the run.

    Args:
        unit: the spacing of numbers around 1 in that precision.
        seed: of the random numbers.
    """

    def __init__(self, unit: float, seed: int = 0) -> None:
        self._unit, self._generators = unit, _Generators(seed)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Draw the factors for a tensor."""
        device = tensor.device
        drawn = torch.rand(tensor.shape, dtype=torch.float64, device=device, generator=self._generators[device])
        return 1 + (drawn - 0.5) * self._unit


class LastBitFactors:
    """Factors one unit of a tensor's dtype above or below 1: another rounding in the precision of the run.

    In half precision, where a last bit is much, most factors are 1, so that the change is on average that of rounding,
    a third of the last bit; in the other dtypes every element is changed.
    """

    def __init__(self, seed: int = 0) -> None:
        self.dtypes: set[torch.dtype] = set()
        """The dtypes of all tensors for which factors were drawn."""
        self._generators = _Generators(seed)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Draw the factors for a tensor."""
        self.dtypes.add(tensor.dtype)
        device, choices = tensor.device, 16 if tensor.dtype in HALF_DTYPES else 2
        drawn = torch.randint(0, choices, tensor.shape, generator=self._generators[device], device=device)
        signs = (drawn == 0).to(tensor.dtype) - (drawn == 1).to(tensor.dtype)
        return 1 + signs * unit_of(tensor.dtype)
