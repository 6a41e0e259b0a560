"""What a dispatcher is told while a graph runs at a target it was not captured for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.replay.placement.decompositions import DECOMPOSITIONS, Formula, Operands
from cabw_viz.replay.placement.device_dtype_map import DeviceDtypeMap

_HALF = (torch.float16, torch.bfloat16)
_STATISTICS = ("mean", "rstd", "running_mean", "running_var", "save_mean", "save_invstd")
_NORMS = ("native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm")
_ATTENTIONS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")

IN_SINGLE_PRECISION: dict[str, tuple[str, ...]] = {
    **{f"aten.{name}_backward.default": _STATISTICS for name in _NORMS},
    **{f"aten._scaled_dot_product_{name}_backward.default": ("logsumexp",) for name in _ATTENTIONS},
}
"""What kernels that compute in half precision take in single precision, by the operator. The statistics of norms they
take in half too on the CPU, and only so."""

IN_THE_CAPTURED_DTYPE = frozenset({"aten._cudnn_rnn_backward.default", "aten.miopen_rnn_backward.default"})
"""What takes bytes that its forward has left (`reserve`), which mean something in that one dtype only, and for which
there is no formula here."""


class RetargetMode(torch_adapter.InfraMode):
    """Maps the dtypes that operators are asked for, and stands in for kernels that a device does not have.

    A graph holds dtypes as plain numbers that cannot be told from sizes; once a call reaches the dispatcher they have
    a type. Backwards of fused attention exist on one kind of device only; elsewhere their formula is computed. Norms
    on an accelerator want their statistics in single precision where all else is in half.
    """

    def __init__(self, moving: DeviceDtypeMap) -> None:
        super().__init__()
        self._moving = moving
        self._paused = False
        self.decomposed: dict[str, None] = {}
        """Operators that were computed by their formula, in order."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which operators are called as they are."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        if self._moving.target.dtype is not None:
            args, kwargs = torch_adapter.tree_map_only(torch.dtype, self._moving.dtype, (args, kwargs))
        name = str(func)
        if name in DECOMPOSITIONS:
            operands = torch_adapter.operands(func, args, kwargs)
            if not _has_kernel(DECOMPOSITIONS[name], operands) or (
                DECOMPOSITIONS[name].workspace and self._moving.retypes
            ):
                self.decomposed[name] = None
                return DECOMPOSITIONS[name].compute(operands)
        if name in IN_THE_CAPTURED_DTYPE and self._moving.retypes:
            raise CabwError(
                f"{name} takes bytes that its forward has left, which mean something in the captured dtype only",
                expected="the dtype of the capture for this backward",
                try_="torch.backends.cudnn.flags(enabled=False) around the forward",
            )
        if name in IN_SINGLE_PRECISION and self._moving.target.dtype in _HALF:
            return func(**_with_single(IN_SINGLE_PRECISION[name], torch_adapter.operands(func, args, kwargs)))
        return func(*args, **kwargs)


def _has_kernel(formula: Formula, operands: Operands) -> bool:
    tensor = next(value for value in operands.values() if isinstance(value, torch.Tensor))
    return tensor.device.type == formula.device and tensor.dtype in formula.dtypes


def _with_single(names: tuple[str, ...], operands: Operands) -> dict[str, Any]:
    """Operands with those of some names in single precision."""

    def one(name: str, value: Any) -> Any:
        wanted = name in names and isinstance(value, torch.Tensor)
        return value.float() if wanted and (name == "logsumexp" or value.device.type != "cpu") else value

    return {name: one(name, value) for name, value in operands.items()}
