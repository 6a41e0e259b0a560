"""Autograd nodes for which PyTorch has another formula when it is traced."""

from __future__ import annotations

from cabw_viz.record.model import CaptureRecord

OTHER_FORMULAS = {
    "ProdBackward0": "other products",
    "ProdBackward1": "other products",
    "CumprodBackward0": "other products",
    "MaskedFillBackward1": "a sum over zeros too",
    "MaxBackward1": "zeros of the other sign",
    "MinBackward1": "zeros of the other sign",
    "MedianBackward0": "zeros of the other sign",
    "NanmedianBackward0": "zeros of the other sign",
}
"""What a trace computes in place of eager's formula. In torch/csrc/autograd/FunctionsManual.cpp: `prod_backward`,
`cumprod_backward` (seen to differ for complex numbers), `masked_fill_backward` (of a value that is a tensor) and
`evenly_distribute_backward` (of all elements) ask `areAnyTensorSubclassLike`, which holds in any trace. All others of
PyTorch's operator database (torch 2.13: 1042 samples in float32, 631 in complex64) give the bits of a replay."""


def nodes_with_other_formulas(record: CaptureRecord) -> tuple[str, ...]:
    """The autograd nodes of a capture whose gradients may differ in their last bits: `ProdBackward0 (#2)`."""
    return tuple(
        f"{record.label(node)} (#{node.number})" for node in record.autograd_nodes if node.name in OTHER_FORMULAS
    )
