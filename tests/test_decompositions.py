"""Backwards computed by their formula, against autograd through plain operators and against the kernels themselves."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.replay.placement.decompositions import DECOMPOSITIONS

aten = torch.ops.aten
BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 4, 5, 7, 8


def formula(name):
    return DECOMPOSITIONS[f"aten.{name}.default"].compute


def close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def attention(mask=None, *, causal=False, scale=None, heads=HEADS):
    """Operands in float64, and the gradients that autograd gives through a softmax written out."""
    torch.manual_seed(0)
    shapes = (BATCH, HEADS, QUERIES, SIZE), (BATCH, heads, KEYS, SIZE), (BATCH, heads, KEYS, SIZE)
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    keys, values = (x.repeat_interleave(HEADS // heads, 1) for x in (k, v))
    scores = q @ keys.mT * (scale or 1 / math.sqrt(SIZE))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    if causal:
        scores = scores + torch.full((QUERIES, KEYS), -math.inf).triu(1)
    out = torch.softmax(scores, -1).nan_to_num() @ values
    grad = torch.randn_like(out)
    wanted = [q, k, v] + ([mask] if mask is not None and mask.requires_grad else [])
    expected = torch.autograd.grad(out, wanted, grad)
    operands = {
        "grad_out": grad,
        "query": q,
        "key": k,
        "value": v,
        "dropout_p": 0.0,
        "is_causal": causal,
        "scale": scale,
    }
    return {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in operands.items()}, expected


@pytest.mark.parametrize("name", ["flash_attention_for_cpu", "flash_attention", "cudnn_attention"])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"scale": 0.3}, {"heads": 2}, {"heads": 1, "causal": True}],
    ids=["plain", "causal", "scaled", "grouped", "one head"],
)
def test_attention(name, options):
    operands, expected = attention(**options)
    close(formula(f"_scaled_dot_product_{name}_backward")(operands), expected)


def test_attention_with_masks():
    torch.manual_seed(1)
    boolean = torch.rand(BATCH, 1, QUERIES, KEYS) > 0.3
    boolean[0, 0, 2] = False  # a query that sees nothing
    operands, expected = attention(boolean)
    close(formula("_scaled_dot_product_flash_attention_for_cpu_backward")(operands | {"attn_mask": boolean}), expected)
    added = torch.randn(QUERIES, KEYS, dtype=torch.float64)
    operands, expected = attention(added)
    close(formula("_scaled_dot_product_flash_attention_for_cpu_backward")(operands | {"attn_mask": added}), expected)


def test_attention_with_a_bias_that_needs_a_gradient():
    bias = torch.randn(1, HEADS, QUERIES, KEYS, dtype=torch.float64, requires_grad=True)
    operands, expected = attention(bias)
    operands["grad_out_"] = operands.pop("grad_out")
    operands |= {"attn_bias": bias.detach(), "grad_input_mask": [True] * 4}
    compute = formula("_scaled_dot_product_efficient_attention_backward")
    close(compute(operands), expected)
    assert compute(operands | {"grad_input_mask": [True, True, True, False]})[3] is None


def test_attention_as_the_kernel_of_the_cpu_gives_it():
    torch.manual_seed(0)
    q, k, v = (torch.randn(BATCH, HEADS, KEYS, SIZE, dtype=torch.float64) for _ in range(3))
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    args = torch.randn_like(out), q, k, v, out, logsumexp, 0.0, True
    operator = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    found = formula("_scaled_dot_product_flash_attention_for_cpu_backward")(torch_adapter.operands(operator, args, {}))
    close(found, operator(*args))


def test_dropout_inside_of_the_kernel_is_refused():
    operands, _ = attention()
    with pytest.raises(CabwError, match=r"dropout 0\.1 has drawn inside of its kernel"):
        formula("_scaled_dot_product_flash_attention_backward")(operands | {"dropout_p": 0.1})


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_lstm_layer(biases, reverse):
    """One direction of one layer; the other way round, the sequence is turned."""
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4, bias=biases).double()
    x = torch.randn(6, 2, 3, dtype=torch.float64, requires_grad=True)
    h, c = (torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    out, (hy, cy) = lstm(x.flip(0) if reverse else x, (h, c))
    grads = torch.randn_like(out), torch.randn_like(hy), torch.randn_like(cy)
    weights = list(lstm.parameters())
    expected = torch.autograd.grad((out, hy, cy), [x, *weights, h, c], grads)
    none = torch.zeros(16, dtype=torch.float64)
    names = "input", "weight1", "weight2", "weight3", "weight4", "hx_", "cx_tmp"
    given = x, *weights, *([] if biases else [none, none]), h, c
    operands = {name: value.detach() for name, value in zip(names, given, strict=True)}
    operands |= {"grad_output": grads[0].flip(0) if reverse else grads[0], "grad_hy": grads[1], "grad_cy": grads[2]}
    found = formula("mkldnn_rnn_layer_backward")(operands | {"reverse": reverse, "mode": 2, "has_biases": biases})
    found = found if biases else (*found[:3], *found[5:])
    close(found, expected)


def test_other_recurrent_layers_are_refused():
    with pytest.raises(CabwError, match="kind 3 has no formula"):
        formula("mkldnn_rnn_layer_backward")({"mode": 3})


def test_batch_norm():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mean, var = x.mean((0, 2)), x.var((0, 2), unbiased=False)
    out = (x - mean[:, None]) / (var[:, None] + 1e-5).sqrt() * weight[:, None] + bias[:, None]
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, [x, weight, bias], grad)
    operands = {
        "input": x,
        "grad_output": grad,
        "weight": weight,
        "running_mean": None,
        "running_var": None,
        "save_mean": mean,
        "save_var": (var + 1e-5).rsqrt(),  # cuDNN's: one over the deviation
        "epsilon": 1e-5,
    }
    with torch.no_grad():
        close(formula("cudnn_batch_norm_backward")(operands), expected)


@pytest.mark.parametrize("sizes", [(4, 4, 8), (0, 16, 0), (3, 3, 3)], ids=["full", "empty groups", "rows of no group"])
def test_grouped_products(sizes):
    """Against the products of each group, written out; and against the kernel, in float32."""
    torch.manual_seed(0)
    offs = torch.tensor(sizes).cumsum(0).to(torch.int32)
    x, weight, wide = (torch.randn(shape, dtype=torch.float64) for shape in ((16, 8), (3, 8, 8), (8, 16)))
    groups = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))
    operands = {"offs": offs, "bias": None, "out_dtype": None}
    rows = formula("_grouped_mm")({"self": x, "mat2": weight} | operands)
    expected = [x[i] @ weight[group] for i, group in enumerate(groups)]
    close(
        [rows[: len(groups)], rows[len(groups) :]], [torch.stack(expected), torch.zeros(16 - len(groups), 8).double()]
    )
    columns = formula("_grouped_mm")({"self": weight.mT, "mat2": wide} | operands)
    expected = [weight[group].T @ wide[:, i] for i, group in enumerate(groups)]
    close([columns[:, : len(groups)]], [torch.stack(expected, 1)])
    summed = formula("_grouped_mm")({"self": wide, "mat2": x} | operands)
    expected = [
        sum((torch.outer(wide[:, i], x[i]) for i in range(len(groups)) if groups[i] == g), torch.zeros(8, 8).double())
        for g in range(3)
    ]
    close([summed], [torch.stack(expected)])
    kernel = aten._grouped_mm.default(x.float(), weight.float(), offs)
    torch.testing.assert_close(rows[: len(groups)].float(), kernel[: len(groups)])


def test_the_names_are_operators():
    for name in DECOMPOSITIONS:
        packet = name.removeprefix("aten.").removesuffix(".default")
        assert hasattr(getattr(aten, packet), "default")
