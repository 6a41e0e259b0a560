"""Hooks on tensors that are no leaves, noted when they are registered.

An autograd node's hooks on the gradients that enter it can be listed by C++ alone, and a captured graph shows what it
lists. Where nothing is traced, what was registered in the block is what is known.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import warn
from cabw_viz.record.kinds import HookKind
from cabw_viz.record.model import Hook
from cabw_viz.tracing.extract import describe_function


def hook_row(kind: HookKind, function: Any, position: int | None = None) -> Hook:
    """A Python hook as a record.

    Args:
        kind: where it hangs.
        function: the hook.
        position: for a hook on a tensor, which of the node's gradients it sees.
    """
    stand_in = torch_adapter.without_framework(function)
    if isinstance(stand_in, torch_adapter.FrameworkHook):
        return Hook(kind, *describe_function(stand_in.described), input=position, framework=stand_in.framework)
    return Hook(kind, *describe_function(function), input=position)


class _Registered(NamedTuple):
    """A hook of `Tensor.register_hook`; keeps neither the function nor the tensor."""

    number: int
    """Sequence number of the autograd node that the tensor came from when the hook was registered, and stays on."""
    row: Hook
    handle: Any

    def is_there(self) -> bool:
        """Whether the node is there, and the hook on it."""
        hooks = self.handle.hooks_dict_ref()
        return hooks is not None and self.handle.id in hooks


class TensorHooks:
    """The hooks that were registered in a block, in one thread."""

    def __init__(self) -> None:
        self._hooks: list[_Registered] = []
        self._retaining: list[Callable[[], torch.Tensor | None]] = []
        """The tensors of `retain_grad()`, weakly: their hook moves on when they are changed in place."""
        self._limit = MOST

    def note(self, function: Any, args: Any, result: Any) -> None:
        """Note what a call of `Tensor.register_hook` or `Tensor.retain_grad` has registered."""
        try:
            with torch_adapter.without_any_torch_function():
                self._note(function, args[0], args[1:], result)
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's forward must go on
            warn(f"a hook on a tensor will be missing in the record ({type(error).__name__}: {error})")

    def _note(self, function: Any, tensor: torch.Tensor, hook: tuple[Any, ...], handle: Any) -> None:
        number = None if tensor.grad_fn is None else torch_adapter.sequence_number_of(tensor.grad_fn)
        if number is None:
            return
        if function is torch.Tensor.retain_grad:
            self._retaining.append(weakref.ref(tensor))
        else:
            self._hooks.append(_Registered(number, hook_row("tensor_pre_hook", hook[0], tensor.output_nr), handle))
        if len(self._hooks) + len(self._retaining) > self._limit:
            self._drop_removed()

    def by_node(self) -> dict[int, list[Hook]]:
        """The hooks that are registered now, by the sequence number of the node whose gradients they see."""
        rows: dict[int, list[Hook]] = {}
        for each in self._hooks:
            if each.is_there():
                rows.setdefault(each.number, []).append(each.row)
        for tensor in (reference() for reference in self._retaining):
            if tensor is not None and tensor.retains_grad and tensor.grad_fn is not None:
                number = torch_adapter.sequence_number_of(tensor.grad_fn)
                if number is not None:
                    row = Hook("cpp_tensor_pre_hook", "<C++>", input=tensor.output_nr)
                    rows.setdefault(number, []).append(row)
        return rows

    def _drop_removed(self) -> None:
        """Forget the hooks whose tensors and nodes are gone."""
        self._hooks = [each for each in self._hooks if each.is_there()]
        self._retaining = [reference for reference in self._retaining if reference() is not None]
        self._limit = max(MOST, 2 * (len(self._hooks) + len(self._retaining)))


MOST = 1000
"""So many hooks are kept before those that are gone are looked for."""


def is_hooking(function: Any) -> bool:
    """Whether a function of torch registers a hook on a tensor."""
    return function is torch.Tensor.register_hook or function is torch.Tensor.retain_grad
