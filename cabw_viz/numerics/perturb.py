"""A dispatch mode that changes the results of operators at random, as other kernels might have rounded them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.numerics.choices import WHOLE, operator_name
from cabw_viz.numerics.chunks import chunks
from cabw_viz.numerics.constants import SMALLEST_SIZE
from cabw_viz.numerics.tolerance import HALF_DTYPES, TOLERANCES, step_of, unit_of

Rounding = Callable[[torch.Tensor], torch.Tensor]
"""Gives the elements of a tensor as another kernel might have rounded them."""


class PerturbedResults(torch_adapter.InfraMode):
    """Rounds each new floating tensor that an operator returns otherwise.

    What that changes in a gradient is what rounding may change in it: next to nothing in most, everything in one that
    should be zero, such as that of a bias before a batch norm.

    Args:
        rounding: the other values of a tensor.
        only_differentiable: whether results on which no gradient depends stay as they are, for an index may be made of
            them.
    """

    def __init__(self, rounding: Rounding, *, only_differentiable: bool = False) -> None:
        super().__init__()
        self._rounding, self._only_differentiable = rounding, only_differentiable
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
            return torch_adapter.call_below_autograd(func, args, kwargs or {})
        leaves = torch_adapter.tree_leaves((args, kwargs or {}))
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        returned = torch_adapter.call_below_autograd(func, args, kwargs or {})
        if is_rounded(func) and (not self._only_differentiable or _is_differentiable(inputs)):
            for tensor in torch_adapter.tree_leaves(returned):
                if type(tensor) is torch.Tensor and tensor.dtype in TOLERANCES and not shares_memory(tensor, inputs):
                    with torch_adapter.below_modes():
                        self._change(tensor)
        return returned

    def _change(self, tensor: torch.Tensor) -> None:
        is_plain = not (tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        for (chunk,) in chunks(tensor) if is_plain else ((tensor,),):  # in place, without a temporary of its size
            chunk.copy_(self._rounding(chunk))


def _is_differentiable(inputs: list[torch.Tensor]) -> bool:
    """Whether a gradient depends on the results of an operator: in a forward by its inputs, in a backward always."""
    in_backward = torch_adapter.backward_is_running() and not torch.is_grad_enabled()
    return in_backward or any(tensor.requires_grad for tensor in inputs)


def is_rounded(operator: Any) -> bool:
    """Whether an operator makes new tensors, with elements that another kernel might round differently."""
    return torch_adapter.returns_new_tensors(operator) and operator_name(operator) not in WHOLE


def shares_memory(tensor: torch.Tensor, others: list[torch.Tensor]) -> bool:
    """Whether a tensor lies where another does, which some operators do without declaring it (`_unsafe_view`)."""
    own = _address(tensor)
    return own is None or any(_address(other) == own for other in others)


def _address(tensor: torch.Tensor) -> int | None:
    """Where a tensor's values lie; None for one without such an address, sparse or empty."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr()


# ----------------------------------------------------------------------------------------------------------- roundings


class _Generators:
    """A random generator for each device. The generators that the program uses stay as they are."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __getitem__(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


NUMBERS = 1_048_573
"""How many random numbers are drawn once and used in turn on the CPU, where drawing one takes longer than all else
that is done with it. A prime, so that they do not come again in the rows of a matrix."""


class UniformRounding:
    """Factors within half a unit of 1, in float64: rounding to a precision coarser than that of the run.

    Args:
        unit: the spacing of numbers around 1 in that precision.
        seed: of the random numbers.
        scale: of the perturbation, in units.
    """

    def __init__(self, unit: float, seed: int = 0, scale: float = 1.0) -> None:
        self._unit, self._generators = unit * scale, _Generators(seed)
        self._numbers = torch.empty(0, dtype=torch.float64)
        self._next = 0

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Draw other values for a tensor."""
        return tensor * (1 + (self._uniform(tensor) - 0.5) * self._unit)

    def _uniform(self, tensor: torch.Tensor) -> torch.Tensor:
        """Numbers from 0 to 1 in float64, in the shape of a tensor."""
        device, count = tensor.device, tensor.numel()
        if device.type != "cpu" or count > NUMBERS:
            return torch.rand(tensor.shape, dtype=torch.float64, device=device, generator=self._generators[device])
        self._draw_further(count)
        first = self._next
        self._next = (first + count) % NUMBERS
        numbers = self._numbers[first : first + count]
        if len(numbers) < count:
            numbers = torch.cat((numbers, self._numbers[: count - len(numbers)]))
        return numbers.reshape(tensor.shape)

    def _draw_further(self, count: int) -> None:
        """Draw as many more numbers as are needed, as long as there are not all."""
        wanted = min(NUMBERS, self._next + count)
        if wanted > len(self._numbers):
            size = min(NUMBERS, max(wanted, 2 * len(self._numbers))) - len(self._numbers)
            generator = self._generators[self._numbers.device]
            self._numbers = torch.cat((self._numbers, torch.rand(size, dtype=torch.float64, generator=generator)))


class SteppedRounding(UniformRounding):
    """The same, and numbers that are subnormal in a dtype rounded to a multiple of its smallest step.

    Args:
        dtype: that dtype.
        unit: the spacing of numbers around 1.
        seed: of the random numbers.
        random: whether a number is rounded up or down at random, in proportion; else to the nearest, by which all
            that is less than half a step becomes 0.
    """

    def __init__(self, dtype: torch.dtype, unit: float, seed: int = 0, *, random: bool = False) -> None:
        super().__init__(unit, seed)
        self._step, self._random = step_of(dtype), random
        self._smallest_normal = torch.finfo(dtype).smallest_normal
        self.has_rounded = False
        """Whether there was any such number."""

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Draw other values for a tensor."""
        values = super().__call__(tensor)
        if not values.is_complex():
            return self._stepped(values)
        return torch.view_as_complex(self._stepped(torch.view_as_real(values.resolve_conj())))

    def _stepped(self, values: torch.Tensor) -> torch.Tensor:
        subnormal = (values.abs() < self._smallest_normal) & (values != 0)
        if self._step < SMALLEST_SIZE or not bool(subnormal.any()):  # float64 has no finer dtype to show it
            return values
        self.has_rounded = True
        steps = values / self._step
        steps = torch.floor(steps + self._uniform(steps)) if self._random else torch.round(steps)
        return torch.where(subnormal, steps * self._step, values)


class RoundingTo:
    """Numbers rounded to a dtype, and given in their own again; what overflows there stays as it is."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Round a tensor."""
        if tensor.is_complex():
            return torch.view_as_complex(self(torch.view_as_real(tensor.resolve_conj())))
        rounded = tensor.to(self._dtype).to(tensor.dtype)
        return torch.where(rounded.isfinite(), rounded, tensor)


class LastBitRounding:
    """Numbers one unit of their dtype larger or smaller: another rounding in the precision of the run.

    In half precision, where a last bit is much, most numbers stay, so that the change is on average that of rounding,
    a third of the last bit; in the other dtypes every element is changed. Subnormal numbers change by the smallest
    step.
    """

    def __init__(self, seed: int = 0) -> None:
        self.dtypes: set[torch.dtype] = set()
        """The dtypes of all tensors that were changed."""
        self._generators = _Generators(seed)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Draw other values for a tensor."""
        self.dtypes.add(tensor.dtype)
        device, choices = tensor.device, 16 if tensor.dtype in HALF_DTYPES else 2
        drawn = torch.randint(0, choices, tensor.shape, generator=self._generators[device], device=device)
        signs = (drawn == 0).to(tensor.dtype) - (drawn == 1).to(tensor.dtype)
        changed = tensor * (1 + signs * unit_of(tensor.dtype))
        if tensor.is_complex():
            return changed
        subnormal = (tensor.abs() < torch.finfo(tensor.dtype).smallest_normal) & (tensor != 0)
        return torch.where(subnormal, tensor + signs * step_of(tensor.dtype), changed)
