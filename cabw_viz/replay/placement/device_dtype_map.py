"""Takes tensors to another device or dtype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.replay.placement.target import Target

_PLAIN = (torch.Tensor, torch.nn.Parameter)

COMPLEX: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}
"""The complex numbers that go with a real dtype."""


class DeviceDtypeMap:
    """Maps devices, dtypes and tensors to those of a target.

    Where a capture has tensors on an accelerator, those on the CPU beside them (scalars, lengths) stay there, unless
    the target is the CPU. Integers and booleans keep their dtype.

    Args:
        target: device and dtype.
        tensors: all tensors of the capture.
    """

    def __init__(self, target: Target, tensors: Iterable[Any]) -> None:
        self.target = target
        captured = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
        self._kinds = {tensor.device.type for tensor in captured}
        self._dtypes = {tensor.dtype for tensor in captured}
        self._cpu_stays = bool(self._kinds - {"cpu", "meta"})
        self.current: int | None = None
        """The index of the tensor that is being moved."""

    @property
    def relocates(self) -> bool:
        """Whether anything goes to another kind of device."""
        target = self.target.device
        return target is not None and any(self.device(torch.device(kind)).type != kind for kind in self._kinds)

    @property
    def retypes(self) -> bool:
        """Whether anything gets another dtype."""
        target = self.target.dtype
        return target is not None and any(self.dtype(each) is not each for each in self._dtypes)

    @property
    def changes(self) -> bool:
        """Whether anything goes anywhere."""
        return self.target.device is not None or self.target.dtype is not None

    def device(self, device: torch.device) -> torch.device:
        """The device to which a tensor on this one goes."""
        target = self.target.device
        if target is None or device.type == "meta":
            return device
        if device.type == "cpu" and self._cpu_stays and target.type != "cpu":
            return device
        return target

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype that a tensor of this one gets.

        Raises:
            CabwError: for complex numbers, where none go with the target's dtype.
        """
        target = self.target.dtype
        if target is None or dtype not in torch_adapter.SCALAR_TYPES.values():
            return dtype
        if not dtype.is_complex:
            return target
        if target not in COMPLEX:
            raise CabwError(
                f"this backward has complex numbers, and none go with {target}",
                expected="a dtype with complex numbers of its precision: " + ", ".join(map(str, COMPLEX)),
            )
        return COMPLEX[target]

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """One tensor, at the target; it has no history there."""
        return self.tensors([tensor])[0]  # type: ignore[no-any-return]  # a tensor for a tensor

    def tensors(self, tensors: Sequence[Any]) -> list[Any]:
        """Tensors at the target; anything else as it is.

        A tensor that is there twice is moved once, and views of one memory stay that. Strides are kept.

        Raises:
            CabwError: a tensor cannot go there; `current` is its index.
        """
        moved: list[Any] = list(tensors)
        moving = [i for i, tensor in enumerate(tensors) if isinstance(tensor, torch.Tensor) and self._moves(tensor)]
        plain = [i for i in moving if _is_plain(tensors[i])]
        known: dict[int, torch.Tensor] = {}
        for piece in _pieces([(i, tensors[i]) for i in plain]):
            self.current = piece.tensors[0][0]
            memory = self._copy_of(piece.memory())
            for i, tensor in piece.tensors:
                view = memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - piece.start)
                moved[i] = known.setdefault(id(tensor), _like(tensor, view))
        for i in moving:
            if i not in plain and not _is_plain(tensors[i]):
                self.current = i
                moved[i] = known.setdefault(id(tensors[i]), self._moved_by_itself(tensors[i]))
        return moved

    def _moves(self, tensor: torch.Tensor) -> bool:
        return self.device(tensor.device) != tensor.device or self.dtype(tensor.dtype) != tensor.dtype

    def _copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        # One after the other: a device without float64 cannot make a float64 tensor for the CPU.
        return tensor.to(self.device(tensor.device)).to(self.dtype(tensor.dtype))

    def _moved_by_itself(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of a subclass or another layout, moved by its own `.to`."""
        device, dtype = self.device(tensor.device), self.dtype(tensor.dtype)
        try:
            moved = tensor.detach().to(device=device, dtype=dtype)
            arrived = moved.device == device and moved.dtype == dtype
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise _immovable(tensor, device, dtype, f"{type(error).__name__}: {error}") from error
        if not arrived:
            raise _immovable(tensor, device, dtype, f"it came out as {moved.dtype} on {moved.device}")
        return _like(tensor, moved)


def _immovable(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype, why: str) -> CabwError:
    return CabwError(
        f"a {type(tensor).__qualname__} {tuple(tensor.shape)} cannot be taken to {device} in {dtype}: {why}",
        expected="plain tensors, or a subclass that `.to(device, dtype)` moves",
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is strided memory and nothing else."""
    own = type(tensor) in _PLAIN and tensor.layout is torch.strided
    marked = tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_nested
    return own and not marked and bool(torch_adapter.storages_of(tensor))


def _like(original: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """A moved tensor that is a parameter or requires a gradient if the original does."""
    moved = moved.detach()
    if isinstance(original, torch.nn.Parameter):
        return torch.nn.Parameter(moved, original.requires_grad)
    differentiable = moved.is_floating_point() or moved.is_complex()
    return moved.requires_grad_(original.requires_grad and differentiable)


# ------------------------------------------------------------------------------------------ tensors that share memory


@dataclass
class _Piece:
    """A stretch of one storage, and the tensors that lie in it."""

    start: int
    end: int
    tensors: list[tuple[int, torch.Tensor]]

    def memory(self) -> torch.Tensor:
        """The stretch as one flat tensor."""
        tensor = self.tensors[0][1].detach()
        return tensor.as_strided((self.end - self.start,), (1,), self.start)


def _pieces(tensors: Sequence[tuple[int, torch.Tensor]]) -> list[_Piece]:
    """The stretches of memory that tensors cover; tensors that overlap are in one."""
    groups: dict[tuple[Any, torch.dtype], list[_Piece]] = {}
    for index, tensor in tensors:
        key = torch_adapter.storages_of(tensor)[0][0], tensor.dtype
        groups.setdefault(key, []).append(_Piece(*_stretch(tensor), [(index, tensor)]))
    merged: list[_Piece] = []
    for group in groups.values():
        group.sort(key=lambda piece: piece.start)
        own: list[_Piece] = []
        for piece in group:
            if own and piece.start < own[-1].end:
                own[-1].end = max(own[-1].end, piece.end)
                own[-1].tensors += piece.tensors
            else:
                own.append(piece)
        merged += own
    return merged


def _stretch(tensor: torch.Tensor) -> tuple[int, int]:
    """Where in its storage a tensor's elements lie: from, and to the one after the last."""
    start = int(tensor.storage_offset())
    if not tensor.numel():
        return start, start
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return start, start + 1 + int(sum((size - 1) * stride for size, stride in steps))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device has no memory left."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
