"""In what precision the two sides of a parity compute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from cabw_viz.numerics.constants import HALF_UNIT, TF32_UNIT
from cabw_viz.numerics.tolerance import coarsest, unit_of
from cabw_viz.record.model import CaptureRecord


@dataclass(frozen=True)
class Precision:
    """How the two sides of a comparison round."""

    reference: torch.dtype
    """The coarsest dtype in which the reference computes."""
    candidate: torch.dtype
    """That of the candidate."""
    tf32: tuple[bool, bool] = (False, False)
    """Whether the reference's, the candidate's products of matrices or convolutions round their operands to TF32."""

    @property
    def unit(self) -> float:
        """The spacing of numbers around 1 in which the reference computes."""
        return _unit(self.reference, tf32=self.tf32[0])

    @property
    def unit_of_candidate(self) -> float:
        """That of the candidate."""
        return _unit(self.candidate, tf32=self.tf32[1])

    @property
    def halves(self) -> tuple[bool, bool]:
        """Whether the reference, the candidate computes in half precision, or in TF32, which has no more digits."""
        return self.unit > HALF_UNIT, max(self.unit, self.unit_of_candidate) > HALF_UNIT

    @property
    def half(self) -> bool:
        """Whether either does."""
        return any(self.halves)

    @property
    def coarser(self) -> float:
        """How many times coarser the candidate rounds than the reference; 1 where it does not."""
        return max(1.0, self.unit_of_candidate / self.unit)


def _unit(dtype: torch.dtype, *, tf32: bool) -> float:
    return max(unit_of(dtype), TF32_UNIT) if tf32 else unit_of(dtype)


def precision_of_sides(
    record: CaptureRecord,
    gradients: Iterable[torch.Tensor],
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    *,
    eager: bool = True,
) -> Precision | None:
    """How both sides of a parity round; None where nothing is rounded.

    Under autocast, gradients in single precision were computed in half: the dtypes of the lifted tensors show it.

    Args:
        record: the capture.
        gradients: of the user's run.
        device: where the graph runs again; None where it was captured.
        dtype: in what; None for the dtypes of the capture.
        eager: whether the user's run is the reference; else it is the candidate.
    """
    gradients = list(gradients)
    lifted = (getattr(torch, row.dtype.removeprefix("torch."), None) for row in record.inputs)
    dtypes = [each for each in lifted if isinstance(each, torch.dtype)]
    computed = coarsest([*dtypes, *(gradient.dtype for gradient in gradients)])
    if computed is None:
        return None
    run_devices = {gradient.device.type for gradient in gradients}
    graph_devices = run_devices if device is None else {device.type}
    run, graph = (computed, _uses_tf32(record, run_devices)), (dtype or computed, _uses_tf32(record, graph_devices))
    reference, candidate = (run, graph) if eager else (graph, run)
    return Precision(reference[0], candidate[0], (reference[1], candidate[1]))


def _uses_tf32(record: CaptureRecord, devices: set[str]) -> bool:
    """Whether products in single precision round to TF32 on a device; for convolutions that is CUDA's default."""
    if "cuda" not in devices:
        return False
    has_convolutions = any("Convolution" in node.name for node in record.autograd_nodes)
    try:
        products, convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the user has set them by their newer names, and then these cannot be read
        return True
    return products or (convolutions and has_convolutions)
