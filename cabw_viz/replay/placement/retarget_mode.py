"""A dispatch mode that rewrites dtypes and replaces missing kernels in a replay on another device or dtype."""

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
"""Operands that half-precision kernels take in single precision, by operator. On the CPU the statistics of norms are in
half precision too, and must be."""

IN_THE_CAPTURED_DTYPE = frozenset({"aten._cudnn_rnn_backward.default", "aten.miopen_rnn_backward.default"})
"""Operators that take bytes which their forward has left (`reserve`), valid in that one dtype only, and which have no
formula here."""


class RetargetMode(torch_adapter.InfraMode):
    """Maps the dtypes in the arguments of operators, and computes what a device has no kernel for.

    A graph holds dtypes as plain numbers that cannot be told from sizes; once a call reaches the dispatcher they have
    a type. Backwards of fused attention exist on one kind of device only; on others their formula is computed.
    Norms on an accelerator take their statistics in single precision where all else is in half.
    """

    def __init__(self, mapping: DeviceDtypeMap) -> None:
        super().__init__()
        self._mapping = mapping
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
            return torch_adapter.call_below_autograd(func, args, kwargs)
        if self._mapping.target.dtype is not None:
            args, kwargs = torch_adapter.tree_map_only(torch.dtype, self._mapping.dtype, (args, kwargs))
        name = str(func)
        if name in DECOMPOSITIONS:
            operands = torch_adapter.operands(func, args, kwargs)
            if not _has_kernel(DECOMPOSITIONS[name], operands) or (
                DECOMPOSITIONS[name].workspace and self._mapping.retypes
            ):
                self.decomposed[name] = None
                with torch_adapter.as_below_autograd():
                    return DECOMPOSITIONS[name].compute(operands)
        if name in IN_THE_CAPTURED_DTYPE and self._mapping.retypes:
            raise CabwError(
                f"{name} takes bytes that its forward has left, which are valid in the captured dtype only",
                expected="the dtype of the capture for this backward",
                try_="torch.backends.cudnn.flags(enabled=False) around the forward",
            )
        if name in IN_SINGLE_PRECISION and self._mapping.target.dtype in _HALF:
            args, kwargs = (), _with_single(IN_SINGLE_PRECISION[name], torch_adapter.operands(func, args, kwargs))
        return torch_adapter.call_below_autograd(func, args, kwargs)


def _has_kernel(formula: Formula, operands: Operands) -> bool:
    tensor = next(value for value in operands.values() if isinstance(value, torch.Tensor))
    return formula.device in (None, tensor.device.type) and tensor.dtype in formula.dtypes


def _with_single(names: tuple[str, ...], operands: Operands) -> dict[str, Any]:
    """Operands with those of some names in single precision."""

    def operand(name: str, value: Any) -> Any:
        is_single = name in names and isinstance(value, torch.Tensor)
        return value.float() if is_single and (name == "logsumexp" or value.device.type != "cpu") else value

    return {name: operand(name, value) for name, value in operands.items()}
