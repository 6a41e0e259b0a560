"""Operators of PyTorch's database, lowered with and without symbols: the bits of a replay, and the same operators."""

from __future__ import annotations

import warnings

import pytest

import cabw_viz
from cabw_viz import torch_adapter
from tests.sweeps.cases import Case, program
from tests.sweeps.checks import same_bits

OPERATORS = [
    # name and samples: among them sizes of 1 and 0, broadcasting, strides of every kind
    ("std", (0, 1)), ("var_mean", (0,)), ("std.unbiased", (0,)), ("norm", (0, 3)), ("renorm", (0,)),
    ("reshape", (0, 3)), ("view_as", (0,)), ("unflatten", (0,)), ("flatten", (1,)), ("as_strided", (0,)),
    ("expand", (0, 2)), ("add", (0, 4)), ("where", (0, 2)), ("index_add", (0,)), ("gather", (0, 2)),
    ("cumprod", (0, 3)), ("logcumsumexp", (0,)), ("amax", (0,)), ("cdist", (0, 1)), ("matmul", (0, 5)),
    ("linalg.inv", (0, 2)), ("linalg.svdvals", (0,)), ("einsum", (0, 4)), ("tensordot", (0,)),
    ("nn.functional.layer_norm", (0, 2)), ("nn.functional.group_norm", (0,)), ("nn.functional.batch_norm", (0,)),
    ("nn.functional.conv2d", (0, 3)), ("nn.functional.conv_transpose2d", (0,)),
    ("nn.functional.interpolate.bilinear", (0,)), ("nn.functional.grid_sample", (0,)),
    ("nn.functional.max_pool2d", (0,)), ("nn.functional.adaptive_avg_pool2d", (0,)),
    ("nn.functional.embedding", (0, 2)), ("nn.functional.cross_entropy", (0, 3)),
    ("nn.functional.scaled_dot_product_attention", (0, 2)), ("nn.functional.pixel_shuffle", (0,)),
]  # fmt: skip
CASES = [Case("operator", name, "float32", sample) for name, samples in OPERATORS for sample in samples]
RENAMED = {"aten._unsafe_view.default": "aten.view.default"}
"""`matmul` calls one with numbers and the other with symbols; both are the same view."""


def capture(case):
    """A capture of the case's backward."""
    subject = program(case)
    with warnings.catch_warnings(), cabw_viz.capture(subject.subject) as session:
        warnings.simplefilter("ignore")
        subject.backward()
    return session[0]


def operators(lowered):
    targets = [node.target for node in lowered.graph.nodes if torch_adapter.is_aten_call(node.target)]
    names = [str(target) for target in targets if not torch_adapter.is_size_arithmetic(target)]
    return [RENAMED.get(name, name) for name in names]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_operator_is_lowered_to_the_bit(case):
    cap = capture(case)
    numbers, symbols = cap.lower(), cap.lower(symbolic=True)
    replayed = cap.replay()
    assert bool(numbers.inexact) == (case.name == "cumprod")  # real ones happen to be the same
    assert same_bits(numbers.gradients(), replayed)
    assert same_bits(symbols.gradients(), replayed)
    assert operators(numbers) == operators(symbols)


def test_other_bits_are_seen():
    """A wrong operator in the place of one, and a wrong sign of a zero."""
    cap = capture(Case("operator", "cos", "float32", 0))
    lowered, replayed = cap.lower(), cap.replay()
    (name,) = replayed
    assert same_bits(lowered.gradients(), replayed)
    assert not same_bits({name: lowered.gradients()[name] * (1 + 2**-22)}, replayed)
    zero = replayed[name] * 0
    assert not same_bits({name: zero}, {name: -zero})
