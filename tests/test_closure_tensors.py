"""Which tensors a hook keeps, by what name: those that would not move with a graph."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from cabw_viz.replay.placement.closure_tensors import tensors_held_by

TENSOR = torch.ones(2)
NAMED_AS_AN_ATTRIBUTE = torch.ones(2)


class Keeps:
    def __init__(self, scale):
        self.scale, self.module = scale, nn.Linear(2, 2)

    def method(self, grad):
        return grad * self.scale

    def __call__(self, grad):
        return grad * self.scale


def closed_over(value):
    return lambda grad: grad * value


def with_default(grad, scale=TENSOR):
    return grad * scale


def keyword_default(grad, *, factor=TENSOR):
    return grad * factor


def reads_global(grad):
    return grad * TENSOR


def reads_an_attribute(grad):
    return grad.NAMED_AS_AN_ATTRIBUTE  # a global of that name is no business of it


def unfilled():
    """A function whose closure is not filled yet."""
    functions = []

    def make():
        functions.append(lambda grad: grad * later)
        return functions[0]

    made = make()
    assert made.__closure__ is not None
    yield made
    later = TENSOR


HOLDING = {
    "closure": (closed_over(TENSOR), "value"),
    "in a list": (closed_over([1, {"a": TENSOR}]), "value"),
    "in a function in a function": (closed_over(closed_over(TENSOR)), "value"),
    "default": (with_default, "a default"),
    "keyword default": (keyword_default, "factor"),
    "global": (reads_global, "TENSOR"),
    "partial": (functools.partial(lambda scale, grad: grad * scale, TENSOR), "an argument"),
    "partial by name": (functools.partial(lambda grad, scale: grad * scale, scale=TENSOR), "scale"),
    "method": (Keeps(TENSOR).method, "scale"),
    "callable": (Keeps(TENSOR), "scale"),
}
NOTHING = {
    "attribute named as a global": reads_an_attribute,
    "a number": closed_over(2.0),
    "a module": closed_over(nn.Linear(2, 2)),
    "a method of a module": nn.Linear(2, 2).forward,
    "built in": len,
    "unfilled": next(unfilled()),
    "a type": closed_over(Keeps),
}


@pytest.mark.parametrize("name", HOLDING)
def test_holding(name):
    function, label = HOLDING[name]
    assert [(found, tensor.shape) for found, tensor in tensors_held_by(function)] == [(label, TENSOR.shape)]


@pytest.mark.parametrize("name", NOTHING)
def test_holding_nothing(name):
    assert list(tensors_held_by(NOTHING[name])) == []


def test_a_function_that_closes_over_itself_ends():
    def hook(grad):
        return hook(grad)

    assert list(tensors_held_by(hook)) == []
