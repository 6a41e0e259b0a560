"""Operators that have a kernel on some devices or in some dtypes only, computed by their formula from plain operators.

A graph captured on the CPU calls the CPU's fused attention, one captured on CUDA calls CUDA's. On other devices, and in
a dtype that the kernel does not take, the same gradients are computed op by op, from what the forward saved. Grouped
products of matrices have no kernel in float64 anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cabw_viz.errors import CabwError

_HALF = frozenset({torch.float16, torch.bfloat16})
_FLOATS = _HALF | {torch.float32, torch.float64}

Tensor = torch.Tensor
Operands = Mapping[str, Any]
"""An operator's arguments by their names in its schema."""


@dataclass(frozen=True)
class Formula:
    """How to compute the results of a kernel from plain operators."""

    device: str | None
    """The kind of device that has the kernel; None where all have."""
    dtypes: frozenset[torch.dtype]
    """The dtypes that the kernel takes."""
    compute: Callable[[Operands], Any]
    workspace: bool = False
    """Whether the kernel also takes bytes that its forward has left, valid in that one dtype only. In another dtype it
    would read them as something else, and write to them."""


# ---------------------------------------------------------------------------------------------------------- attention


def attention_backward(of: Operands) -> tuple[Tensor, ...]:
    """Gradients of scaled dot product attention: of query, key, value.

    Args:
        of: `grad_out` or `grad_out_` and `value` (batch, heads, keys or queries, size of a value), `query` and `key`
            (batch, heads, queries or keys, size of a key); key and value may have a divisor of the query's heads.
            `attn_mask` or `attn_bias`, added to the scores, or a boolean mask of those that count. `is_causal`,
            `scale`, `dropout_p`.

    Raises:
        CabwError: dropout was drawn inside of the kernel, which alone knows what it dropped.
    """
    return _attention(of)[:3]


def attention_backward_with_bias(of: Operands) -> tuple[Tensor | None, ...]:
    """The same, and the gradient of the bias, where the fourth of `grad_input_mask` wants it."""
    *grads, scores = _attention(of)
    bias = of["attn_bias"]
    return *grads, scores.sum_to_size(bias.shape) if of["grad_input_mask"][3] and bias is not None else None


def _attention(of: Operands) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, and of the scores once they are scaled."""
    if of["dropout_p"] > 0:
        raise CabwError(
            f"fused attention with dropout {of['dropout_p']} has drawn inside of its kernel what it drops",
            expected="the device and dtype of the capture for this backward, or attention without dropout",
            try_="torch.nn.attention.sdpa_kernel(SDPBackend.MATH) around the forward",
        )
    grad = of["grad_out_"] if "grad_out_" in of else of["grad_out"]
    query, key, value = of["query"], of["key"], of["value"]
    groups = query.shape[1] // key.shape[1]
    scale = 1 / math.sqrt(query.shape[-1]) if of.get("scale") is None else of["scale"]
    keys, values = (side.repeat_interleave(groups, 1) if groups > 1 else side for side in (key, value))
    bias = of.get("attn_mask", of.get("attn_bias"))
    weights = _weights(query @ keys.transpose(-2, -1) * scale, bias, causal=of.get("is_causal", False))
    grad_weights = grad @ values.transpose(-2, -1)
    grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
    grad_query = grad_scores @ keys * scale
    grad_key = _summed(grad_scores.transpose(-2, -1) @ query * scale, groups)
    return grad_query, grad_key, _summed(weights.transpose(-2, -1) @ grad, groups), grad_scores


def _weights(scores: Tensor, bias: Tensor | None, *, causal: bool) -> Tensor:
    if bias is not None:
        scores = scores.masked_fill(bias.logical_not(), -math.inf) if bias.dtype is torch.bool else scores + bias
    if causal:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(unseen, -math.inf)
    weights = torch.softmax(scores, -1)
    blind = (scores == -math.inf).all(-1, keepdim=True)  # what sees nothing has no weights, as in the kernels
    return weights if bias is None else weights.masked_fill(blind, 0.0)


def _summed(grad: Tensor, groups: int) -> Tensor:
    """The gradient of heads that several heads of the query share."""
    batch, heads, *rest = grad.shape
    return grad.reshape(batch, heads // groups, groups, *rest).sum(2) if groups > 1 else grad


# ---------------------------------------------------------------------------------------------------------- batch norm


def batch_norm_backward(of: Operands) -> Any:
    """Gradients of a batch norm of cuDNN's, in training: of input, weight and bias."""
    names = ("grad_output", "input", "weight", "running_mean", "running_var", "save_mean", "save_var")
    how = {"train": True, "eps": of["epsilon"], "output_mask": [True, True, True]}
    return torch.ops.aten.native_batch_norm_backward.default(*(of[name] for name in names), **how)


# ---------------------------------------------------------------------------------------------------------------- LSTM

_LSTM = 2
"""`mode` of oneDNN's recurrent layers (rnn_kind in aten/src/ATen/native/mkldnn/RNN.cpp)."""


def lstm_layer_backward(of: Operands) -> tuple[Tensor, ...]:
    """Gradients of one direction of one layer of an LSTM: of input, the four weights, and the two initial states."""
    if of["mode"] != _LSTM:
        raise CabwError(f"a recurrent layer of oneDNN's kind {of['mode']} has no formula here", expected="an LSTM")
    value, weight_ih, weight_hh = of["input"], of["weight1"], of["weight2"]
    bias = of["weight3"] + of["weight4"] if of["has_biases"] else torch.zeros_like(weight_ih[:, 0])
    h, c = (of[name].reshape(-1, of[name].shape[-1]) for name in ("hx_", "cx_tmp"))
    states = []
    for step in range(value.shape[0])[:: -1 if of["reverse"] else 1]:
        gates = value[step] @ weight_ih.t() + h @ weight_hh.t() + bias
        states.append((step, h, c, gates))
        h, c = _lstm_cell(gates, c)
    grad_h, grad_c = (
        torch.zeros_like(c) if of[name] is None else of[name].reshape(c.shape) for name in ("grad_hy", "grad_cy")
    )
    grad_value, of_ih, of_hh, of_bias = (torch.zeros_like(x) for x in (value, weight_ih, weight_hh, bias))
    for step, before, cell, gates in reversed(states):
        grad_h = grad_h if of["grad_output"] is None else grad_h + of["grad_output"][step]
        grad_gates, grad_c = _lstm_cell_backward(gates, cell, grad_h, grad_c)
        grad_value[step] = grad_gates @ weight_ih
        of_ih += grad_gates.t() @ value[step]
        of_hh += grad_gates.t() @ before
        of_bias += grad_gates.sum(0)
        grad_h = grad_gates @ weight_hh
    grads = grad_h.reshape(of["hx_"].shape), grad_c.reshape(of["cx_tmp"].shape)
    return grad_value, of_ih, of_hh, of_bias, of_bias.clone(), *grads


def _lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, -1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _lstm_cell_backward(gates: Tensor, cell: Tensor, grad_h: Tensor, grad_c: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the gates before their activations, and of the cell state that came in."""
    i, f, g, o = gates.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    out = (f * cell + i * g).tanh()
    grad_c = grad_c + grad_h * o * (1 - out * out)
    parts = grad_c * g * i * (1 - i), grad_c * cell * f * (1 - f), grad_c * i * (1 - g * g), grad_h * out * o * (1 - o)
    return torch.cat(parts, -1), grad_c * f


# ----------------------------------------------------------------------------------------------------- grouped products


def grouped_mm(of: Operands) -> Tensor:
    """Products of matrices by groups, of which `offs` has the ends (`torch.nn.functional.grouped_mm`).

    Args:
        of: `self` and `mat2`, of which either may have a dimension of groups in front. What the two lack it in is cut
            into groups: the rows of `self`, the columns of `mat2`, or, where both lack it, what is summed over.
            `offs`: whole numbers, one for each group; None where both have groups. `bias`, `out_dtype`: as there.
    """
    a, b, offs, bias = of["self"], of["mat2"], of["offs"], of["bias"]
    result: Tensor
    if offs is None:
        result = a @ b
    elif a.dim() == b.dim():
        result = torch.stack([a[:, start:end] @ b[start:end] for start, end in _spans(offs)])
    elif b.dim() == _GROUPED:
        products = [a[start:end] @ weight for (start, end), weight in zip(_spans(offs), b, strict=True)]
        result = _padded(torch.cat(products), 0, a.shape[0])
    else:
        products = [weight @ b[:, start:end] for (start, end), weight in zip(_spans(offs), a, strict=True)]
        result = _padded(torch.cat(products, 1), 1, b.shape[1])
    return result if bias is None else result + bias


_GROUPED = 3
"""How many dimensions a matrix has that has one of groups in front."""


def _spans(offs: Tensor) -> list[tuple[int, int]]:
    ends = offs.tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _padded(result: Tensor, dim: int, size: int) -> Tensor:
    """A result with zeros for what belongs to no group; the kernel leaves that unwritten."""
    shape = list(result.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([result, result.new_zeros(shape)], dim) if shape[dim] else result


DECOMPOSITIONS: dict[str, Formula] = {
    f"aten.{name}.default": formula
    for name, formula in {
        "_scaled_dot_product_flash_attention_for_cpu_backward": Formula("cpu", _FLOATS, attention_backward),
        "_scaled_dot_product_flash_attention_backward": Formula("cuda", _HALF, attention_backward),
        "_scaled_dot_product_cudnn_attention_backward": Formula("cuda", _HALF, attention_backward),
        "_scaled_dot_product_efficient_attention_backward": Formula(
            "cuda", _HALF | {torch.float32}, attention_backward_with_bias
        ),
        "cudnn_batch_norm_backward": Formula("cuda", _HALF | {torch.float32}, batch_norm_backward),
        "mkldnn_rnn_layer_backward": Formula("cpu", _HALF | {torch.float32}, lstm_layer_backward, workspace=True),
        "_grouped_mm": Formula(None, _HALF | {torch.float32}, grouped_mm),
    }.items()
}
"""By the name of the operator."""


_GROUPED_MM_IN_HALF_ONLY = "Expected inputs of BF16 type"
"""What PyTorch's fake kernel of `grouped_mm` says of any other dtype, though the real ones take three."""


def way_around(reason: str) -> str | None:
    """What to try where PyTorch gave this reason, and the way out is known."""
    if _GROUPED_MM_IN_HALF_ONLY not in reason:
        return None
    return (
        "bfloat16, in which alone PyTorch traces grouped_mm; or experts without it: "
        'from_pretrained(..., experts_implementation="eager") of transformers; '
        "or cap.replay() and cap.parity(), which run on real tensors"
    )
