"""Tensors: storages, views, versions, and tensors of subclasses that report reads of their metadata."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses import fake_tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cabw_viz.torch_adapter.modes import below_modes

FakeTensor = fake_tensor.FakeTensor
tree_leaves, tree_map, tree_map_only = _pytree.tree_leaves, _pytree.tree_map, _pytree.tree_map_only


def is_fake(tensor: Any) -> bool:
    """Whether a tensor is a FakeTensor, as the tracer's dummies are."""
    return isinstance(tensor, FakeTensor)


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of vmap's, of the older or the present one."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor) or torch._C._functorch.is_batchedtensor(tensor)


def plain_values(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in which vmap and torch.func's transforms hold the elements of one of theirs; any other as it is.

    Batch dimensions stand in front, that of the innermost vmap first.
    """
    if torch._C._functorch.is_legacy_batchedtensor(tensor):
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        with torch.no_grad():
            return plain_values(torch._remove_batch_dim(tensor, level, 1, 0))
    if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return tensor
    with temporarily_clear_interpreter_stack(), torch.no_grad():
        return _unwrapped(tensor)[0]


def _unwrapped(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The tensor behind torch.func's wrappers, and how many batch dimensions it has in front."""
    if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return tensor, 0
    inner, batches = _unwrapped(torch._C._functorch.get_unwrapped(tensor))
    if not torch._C._functorch.is_batchedtensor(tensor):
        return inner, batches
    return inner.movedim(batches + torch._C._functorch.maybe_get_bdim(tensor), 0), batches + 1


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that another is a view of; None for what is no view."""
    return tensor._base


def version(tensor: torch.Tensor) -> int:
    """How often a tensor's storage has been written to in place."""
    return tensor._version


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set how often a tensor's storage counts as written to."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def storage_identity(storage: torch.UntypedStorage) -> int:
    """The identity of a storage in C++, which stays when it is resized."""
    return int(storage._cdata)


def share_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two strided tensors lie in the same memory; False where one has none of its own (functorch's)."""
    try:
        return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
    except RuntimeError:
        return False


def wrapper_tensor(cls: type[torch.Tensor], inner: torch.Tensor) -> Any:
    """A tensor of a subclass that looks like another and asks Python for its metadata, from C++ too."""
    strided = inner.layout is torch.strided
    tensor = torch.Tensor._make_wrapper_subclass(
        cls,
        inner.size(),
        strides=inner.stride() if strided else None,
        storage_offset=inner.storage_offset() if strided else None,
        dtype=inner.dtype,
        layout=inner.layout,
        device=inner.device,
        requires_grad=inner.requires_grad,
        dispatch_sizes_strides_policy="sizes",
        dispatch_device=True,
        dispatch_layout=True,
    )
    # Formulas look at these marks, and the kernels that answer to them run above the wrapper.
    if inner.is_conj():
        torch._C._set_conj(tensor, True)  # noqa: FBT003  # C++, positional only
    if inner.is_neg():
        torch._C._set_neg(tensor, True)  # noqa: FBT003  # as above
    tensor._is_param = isinstance(inner, torch.nn.Parameter)
    return tensor


def is_wrapper_subclass(tensor: Any) -> bool:
    """Whether a tensor is made of others that only its class knows (DTensor)."""
    return is_traceable_wrapper_subclass(tensor)


def inner_tensors(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Names and values of the tensors of which a wrapper subclass is made, as its `__tensor_flatten__` names them.

    Empty for any other tensor.
    """
    if not is_wrapper_subclass(tensor):
        return []
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # of the subclass, as was checked
    inner = ((name, getattr(tensor, name)) for name in names)  # others are objects: a DTensor's device mesh
    return [(name, value) for name, value in inner if isinstance(value, torch.Tensor)]


def can_be_watched(value: Any) -> bool:
    """Whether a value is a fake tensor whose alias is like it: strided, no view, and without a history."""
    return (
        type(value) is FakeTensor
        and value.layout is torch.strided
        and value.grad_fn is None
        and not value._is_view()
        and not value.is_nested
    )


def alias_asking_python(cls: type[FakeTensor], inner: FakeTensor) -> Any:
    """An alias of a fake tensor, of a subclass, that asks Python for its metadata, from C++ too."""
    with below_modes():
        return torch.Tensor._make_subclass(  # type: ignore[call-arg]  # the stub lacks two of its arguments
            cls,
            inner,
            inner.requires_grad,
            dispatch_sizes_strides_policy="sizes",
            dispatch_device=True,
            dispatch_layout=True,
            device_for_backend_keys=inner.fake_device,
        )


def wrapper_without_memory(cls: type[FakeTensor], dtype: torch.dtype, device: torch.device, requires_grad: bool) -> Any:
    """A tensor of a subclass that asks Python for all other metadata, from C++ too."""
    return torch.Tensor._make_wrapper_subclass(
        cls,
        _DUMMY_SIZE,
        dtype=dtype,
        device=device,
        requires_grad=requires_grad,
        dispatch_sizes_strides_policy="sizes",
        dispatch_device=True,
        dispatch_layout=True,
    )


_DUMMY_SIZE = torch.Size((0, 123456789))


def is_plain_input(tensor: Any) -> bool:
    """Whether a tensor is strided and without marks, as its base is: one that becomes a FakeTensor without fail."""
    return _is_plain(tensor) and (not tensor._is_view() or (_is_plain(tensor._base) and _same_elements(tensor)))


def _same_elements(view: torch.Tensor) -> bool:
    return view._base is not None and view._base.dtype == view.dtype


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_inference())
        and not (tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor())
        and not (torch._C._functorch.is_functorch_wrapped_tensor(tensor) or is_batched(tensor))
    )


def storages_of(tensor: Any) -> tuple[tuple[int, int], ...]:
    """(identity, bytes) of each storage behind a tensor; several for a sparse one or a wrapper subclass, or none."""
    if is_traceable_wrapper_subclass(tensor):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    elif tensor.layout is torch.sparse_coo:
        inner = [tensor._indices(), tensor._values()]
    elif tensor.layout is not torch.strided:
        return ()
    else:
        try:
            storage = tensor.untyped_storage()
        except RuntimeError:  # functorch's wrappers have none
            return ()
        return ((storage._cdata, storage.nbytes()),)
    return tuple(storage for part in inner if isinstance(part, torch.Tensor) for storage in storages_of(part))


_PLAIN = torch._C._disabled_torch_dispatch_impl


def memory_of(tensor: Any) -> list[torch.Tensor]:
    """The plain strided tensors that hold the elements of a tensor, without history; none where they cannot be read."""
    if is_wrapper_subclass(tensor):
        return [part for _, inner in inner_tensors(tensor) for part in memory_of(inner)]
    if not isinstance(tensor, torch.Tensor) or type(tensor).__torch_dispatch__ is not _PLAIN:
        return []
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor.is_quantized or tensor.is_meta:
        return []
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor] if tensor.layout is torch.strided and not tensor.is_nested else []


NO_NUMBER = -1
"""Stands for a size that is no number."""


def plain_size(size: Any) -> int:
    """A size as a plain number; -1 for the ragged dimension of a jagged tensor and for a symbol without a value."""
    if isinstance(size, torch.SymInt):
        value = None if size.node.is_nested_int() else size.node.maybe_as_int() or getattr(size.node, "hint", None)
        return value if type(value) is int else NO_NUMBER  # a question to the symbol itself would add a guard
    return int(size)


def plain_shape(shape: Iterable[Any]) -> tuple[int, ...]:
    """A shape as plain numbers; see `plain_size`."""
    return tuple(plain_size(size) for size in shape)


def plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that hold a tensor's elements: itself, or what a wrapper subclass is made of."""
    if is_wrapper_subclass(tensor):
        return [part for _, each in inner_tensors(tensor) for part in plain_parts(each)]
    return [tensor] if tensor.layout is torch.strided and not tensor.is_nested else []


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory was freed while the tensor lives on, as FSDP does with parameters between uses."""
    return any(_lacks_memory(part) for part in plain_parts(tensor))


def _lacks_memory(tensor: torch.Tensor) -> bool:
    if not tensor.numel() or tensor.device.type == "meta":
        return False
    reach = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    try:
        available = tensor.untyped_storage().nbytes()
    except RuntimeError:  # functorch's wrappers have none
        return False
    return bool(available < (tensor.storage_offset() + reach + 1) * tensor.element_size())


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """A tensor's shape as plain numbers; empty for a nested tensor of the strided layout, which has none."""
    return () if tensor.is_nested and tensor.layout is torch.strided else plain_shape(tensor.shape)


def bytes_of_elements(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements; of a jagged one, those of the tensors inside."""
    count = plain_size(tensor.numel())
    if count != NO_NUMBER:
        return count * tensor.element_size()
    return sum(bytes_of_elements(inner) for _, inner in inner_tensors(tensor))


def class_of_constant(value: Any) -> str:
    """The class of an object of C++ that a traced graph holds, by its last name: `ProcessGroup`."""
    inner = getattr(value, "real_obj", value)  # of a stand-in for one
    qualified = inner._type().qualified_name() if hasattr(inner, "_type") else type(inner).__qualname__
    return f"a {qualified.rpartition('.')[2]}"
