"""What rounding does to a step: eager, with every result changed in its last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.numerics.tolerance import TOLERANCES


class Rounding(torch_adapter.InfraMode):
    """Changes each new tensor that a gradient depends on by the precision of its dtype, up or down at random.

    So another kernel might have rounded it. What that changes in a gradient is what rounding may change in it: next to
    nothing in most, everything in one that should be zero, such as that of a bias before a batch norm. Numbers that no
    gradient depends on are left alone, for an index may be made of them.
    """

    def __init__(self, signs: Callable[[torch.Tensor], torch.Tensor], dtypes: set[torch.dtype]) -> None:
        super().__init__()
        self._signs, self._dtypes = signs, dtypes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in torch_adapter.tree_leaves((args, kwargs or {})) if isinstance(leaf, torch.Tensor)]
        returned = func(*args, **(kwargs or {}))
        backward = torch_adapter.backward_is_running() and not torch.is_grad_enabled()
        if rounds(func) and (backward or any(tensor.requires_grad for tensor in given)):
            for tensor in torch_adapter.tree_leaves(returned):
                if type(tensor) is torch.Tensor and tensor.dtype in TOLERANCES and not shares_memory(tensor, given):
                    self._dtypes.add(tensor.dtype)
                    tensor.mul_(1 + self._signs(tensor) * torch.finfo(tensor.dtype).eps)
        return returned


WHOLE = frozenset({"floor", "ceil", "round", "trunc", "sign", "sgn", "floor_divide", "heaviside"})
"""Operators whose results are whole numbers, from which indices are made."""


def rounds(operator: Any) -> bool:
    """Whether an operator makes new tensors, with elements that another kernel might round otherwise."""
    return torch_adapter.returns_new_tensors(operator) and str(operator).split(".")[1] not in WHOLE


def shares_memory(tensor: torch.Tensor, others: list[torch.Tensor]) -> bool:
    """Whether a tensor lies where another does, which some operators do without saying so (`_unsafe_view`)."""
    own = _address(tensor)
    return own is None or any(_address(other) == own for other in others)


def _address(tensor: torch.Tensor) -> int | None:
    """Where a tensor's values lie; None for one without such a place, sparse or empty."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr()


def random_signs(seed: int = 0) -> Callable[[torch.Tensor], torch.Tensor]:
    """Draws a sign for each element of a tensor, without touching the generators that the step uses.

    In half precision, where a last bit is much, most elements get 0, so that the change is on average that of rounding,
    a third of the last bit; in the others every element is changed.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def draw(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device not in generators:
            generators[tensor.device] = torch.Generator(tensor.device).manual_seed(seed)
        of = 16 if tensor.dtype in (torch.bfloat16, torch.float16) else 2
        drawn = torch.randint(0, of, tensor.shape, generator=generators[tensor.device], device=tensor.device)
        return (drawn == 0).to(tensor.dtype) - (drawn == 1).to(tensor.dtype)

    return draw


class Roundings:
    """Makes contexts in which eager rounds otherwise, each in another way."""

    def __init__(self) -> None:
        self.dtypes: set[torch.dtype] = set()
        """The dtypes of all that was changed so far."""
        self._signs = random_signs()

    @contextmanager
    def context(self) -> Iterator[None]:
        """The next of them."""
        with torch.compiler.set_stance("force_eager"), Rounding(self._signs, self.dtypes):
            yield
