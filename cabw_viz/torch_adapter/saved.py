"""What autograd nodes have saved: tensors, and fields that are no tensors."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from cabw_viz.torch_adapter.nodes import is_python_function


def has_freed_buffers(node: Any) -> bool:
    """Whether a Python Function's node has run and was freed; a trace would fail half-way through it."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    try:
        node._raw_saved_tensors  # noqa: B018  # the read raises; unlike saved_tensors it calls no unpack hook
    except RuntimeError:
        return True
    return False


def saved_tensor_errors(node: Any) -> list[str]:
    """The errors that unpacking a node's saved tensors raises: they are freed, or were changed in place.

    Packed ones are skipped, since unpacking would run the user's hook.
    """
    errors = []
    for attribute in dir(node):
        if attribute.startswith("_raw_saved_"):
            try:
                field = getattr(node, attribute)
                for saved in field if isinstance(field, list | tuple) else [field]:
                    if getattr(saved, "unpack_hook", None) is None and hasattr(saved, "unpack"):
                        saved.unpack()
            except RuntimeError as error:
                errors.append(str(error))
    return errors


_SAVED_FROM_OUTPUTS = ("S_sym_argsize_minus_1", "max_k", "max_q", "max_seqlen_batch_k", "max_seqlen_batch_q")
"""The numbers that some nodes save from outputs (derivatives.yaml of 2.13), packed behind the rest. Other fields of
these names may be inputs."""


@functools.cache
def saved_fields(name: str) -> tuple[tuple[str, ...], ...]:
    """Names of a built-in node's saved fields that are no tensors, in the orders in which they may be packed."""
    attributes = dir(getattr(torch._C._functions, name, None))
    saved = [attribute.removeprefix("_saved_") for attribute in attributes if attribute.startswith("_saved_")]
    plain = [field for field in saved if f"_raw_saved_{field}" not in attributes]
    last = [field for field in plain if field in _SAVED_FROM_OUTPUTS]
    others = tuple(field for field in plain if field not in last)
    return (tuple(plain), (*others, *last)) if last else (tuple(plain),)


def field_values(node: Any, name: str) -> dict[str, Any]:
    """Values of these fields in an autograd node, if it is one of that name.

    Their getters copy numbers; those of saved tensors would unpack them, and are left alone.
    """
    if node is None or type(node).__name__ != name:
        return {}
    try:
        return {field: getattr(node, f"_saved_{field}") for field in saved_fields(name)[0]}
    except RuntimeError:  # lists of scalars are freed together with tensors
        return {}


PACKED = object()
"""Stands for a saved tensor that a hook of the user's has packed: only that hook can unpack it."""

DETECTS_PACKED = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
"""Whether this torch shows whether a saved tensor is packed. 2.8 does not: reading one there may call a hook."""

_RAW, _SAVED = "_raw_saved_", "_saved_"


def saved_values(node: Any) -> Iterator[tuple[str, Any, Any]]:
    """(field, tensor or PACKED or None, the autograd node that made it) of all that an autograd node has saved.

    Nothing of a node that was freed, and nothing in torch 2.8. No hook is called. A tensor that was changed in place
    since, which the engine would refuse, comes as it is, without its maker.
    """
    for attribute in _raw_attributes(node):
        try:
            raw = getattr(node, attribute)
        except RuntimeError:  # freed
            continue
        yield from _saved_field(node, attribute.removeprefix(_RAW), raw)


def _raw_attributes(node: Any) -> tuple[str, ...]:
    """The attributes of a node that hold what it has saved, as it is packed."""
    if not DETECTS_PACKED:
        return ()
    return ("_raw_saved_tensors",) if is_python_function(node) else _raw_attributes_of(node.__class__)


@functools.cache
def _raw_attributes_of(cls: type) -> tuple[str, ...]:
    """The same of a class of PyTorch's; a Function's own would be kept alive here."""
    return tuple(attribute for attribute in dir(cls) if attribute.startswith(_RAW))


def unpack_hooks(node: Any) -> Iterator[Any]:
    """The hooks that unpack what an autograd node has saved, in the order of its fields."""
    for attribute in _raw_attributes(node):
        try:
            raw = getattr(node, attribute)
        except RuntimeError:  # freed
            continue
        entries = raw if isinstance(raw, list | tuple) else [raw]
        yield from (hook for entry in entries if (hook := getattr(entry, "unpack_hook", None)) is not None)


def _saved_field(node: Any, name: str, raw: Any) -> Iterator[tuple[str, Any, Any]]:
    several = isinstance(raw, list | tuple)
    entries = raw if several else [raw]
    packed = any(getattr(entry, "unpack_hook", None) is not None for entry in entries)
    label, attribute = ("saved_tensors",) * 2 if is_python_function(node) else (name, _SAVED + name)
    values = None if packed else _unpacked(node, attribute)
    if not several or values is None:
        values = [values] * len(entries)
    for position, (entry, value) in enumerate(zip(entries, values, strict=True)):
        maker = value.grad_fn if isinstance(value, torch.Tensor) else None
        yield f"{label}[{position}]" if several else label, _value(entry) if value is None else value, maker


def _unpacked(node: Any, attribute: str) -> Any:
    """A field as the backward will see it, with its history; None where the engine would refuse it."""
    try:
        return getattr(node, attribute)
    except RuntimeError:
        return None


def _value(entry: Any) -> Any:
    if getattr(entry, "unpack_hook", None) is not None:
        return PACKED
    try:
        return entry.data
    except (AttributeError, RuntimeError):  # an optional tensor that is not there
        return None
