"""The cases: a sample of an operator (OpInfo) or module (ModuleInfo) in a dtype, or a model, as a backward.

Source: torch/testing/_internal/common_methods_invocations.py (`op_db`) and common_modules.py (`module_db`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree

from tests.sweeps.models import MODELS

Kind = Literal["operator", "module", "model"]
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "complex64": torch.complex64}
MOST_SAMPLES = 200
"""Samples of an operator that are looked at; a few operators have thousands."""


class Case(NamedTuple):
    """One sample, by its place in the database; plain data, so that it can be sent to a process."""

    kind: Kind
    name: str
    dtype: str
    sample: int

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} #{self.sample}"


class NotACase(Exception):  # noqa: N818  # it says that there is nothing to check
    """The sample has no backward in eager."""


@dataclass(frozen=True)
class Program:
    """A backward that can be made as often as wanted: always on the same leaves, with the same random numbers."""

    leaves: dict[str, torch.Tensor]
    subject: Any
    forward: Callable[[], Any]
    arguments: Sequence[torch.Tensor] = ()
    """Tensors that the forward gets."""
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    """Copies of the module's buffers as they were before the first forward."""

    def outputs(self) -> list[torch.Tensor]:
        """What the forward returns and what has a history; sparse tensors are made dense."""
        seed()
        tensors = [t for t in _pytree.tree_leaves(self.forward()) if isinstance(t, torch.Tensor) and t.requires_grad]
        return [t if t.layout is torch.strided else t.to_dense() for t in tensors if t.grad_fn is not None]

    def backward(self) -> dict[str, torch.Tensor]:
        """Make forward and backward, and give the leaves' gradients; the leaves keep none.

        Raises:
            NotACase: no output has a history, or no leaf gets a gradient.
        """
        for name, value in self.buffers.items():
            self.subject.get_buffer(name).copy_(value)
        outputs = self.outputs()
        if not outputs:
            raise NotACase("no output has a history")
        torch.manual_seed(1)
        torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])
        gradients = {name: leaf.grad for name, leaf in self.leaves.items() if leaf.grad is not None}
        for leaf in self.leaves.values():
            leaf.grad = None
        if not gradients:
            raise NotACase("no leaf gets a gradient")
        return gradients


def seed() -> None:
    """Start every random number generator that a sample may use at the same place."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # the samples of OpInfo draw from the global generator


@cache
def _operators() -> dict[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.full_name: op for op in op_db if op.supports_autograd}


@cache
def _modules() -> dict[str, Any]:
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def names(kind: Kind) -> list[str]:
    """Names of all operators that can be differentiated, of all modules, or of all models."""
    return list({"operator": _operators, "module": _modules, "model": lambda: MODELS}[kind]())


def cases(kind: Kind, dtype: str, samples: int, name: str) -> Iterator[Case]:
    """Up to `samples` cases of an operator or module, spread over all that the database has."""
    if kind == "model":
        if dtype == "float32":
            yield Case(kind, name, dtype, 0)
        return
    try:
        count = len(_samples(kind, name, DTYPES[dtype]))
    except Exception:  # noqa: BLE001  # a dtype or a package that the sample needs and that is not there
        return
    for place in dict.fromkeys(round(i * (count - 1) / max(samples - 1, 1)) for i in range(min(samples, count))):
        yield Case(kind, name, dtype, place)


def program(case: Case) -> Program:
    """The backward of a case.

    Raises:
        NotACase: no tensor of it requires a gradient.
    """
    if case.kind == "model":
        result = _of_model(case.name)
    else:
        sample = _samples(case.kind, case.name, DTYPES[case.dtype])[case.sample]
        of_sample = _of_operator if case.kind == "operator" else _of_module
        result = of_sample(case.name, sample, DTYPES[case.dtype])
    if not result.leaves:
        raise NotACase("no tensor of the sample requires a gradient")
    if any(t.grad_fn is not None for t in result.arguments):
        raise NotACase("a tensor of the sample has a history of its own, which a first backward frees")
    return result


def in_float64(case: Case) -> dict[str, torch.Tensor]:
    """The gradients of a case in float64, by eager, from the same numbers; none where it cannot be run so."""

    def doubled(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        wide = torch.complex128 if value.is_complex() else torch.float64
        return value.detach().to(wide).requires_grad_(value.requires_grad)

    try:
        if case.kind == "model":
            return {}
        sample = _samples(case.kind, case.name, DTYPES[case.dtype])[case.sample]
        if case.kind == "operator":
            sample.input, sample.args, sample.kwargs = _pytree.tree_map(
                doubled, (sample.input, sample.args, sample.kwargs)
            )
            return _of_operator(case.name, sample, torch.float64).backward()
        inputs = sample.forward_input
        inputs.args, inputs.kwargs = _pytree.tree_map(doubled, (inputs.args, inputs.kwargs))
        return _of_module(case.name, sample, torch.float64).backward()
    except Exception:  # noqa: BLE001  # whatever an operator without float64 raises
        return {}


def _samples(kind: Kind, name: str, dtype: torch.dtype) -> list[Any]:
    seed()
    if kind == "operator":
        op = _operators()[name]
        if dtype not in op.supported_backward_dtypes("cpu"):
            return []
        return list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=True), MOST_SAMPLES))
    info = _modules()[name]
    if dtype not in info.dtypes:
        return []
    return list(info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=True))


def _of_operator(name: str, sample: Any, _: torch.dtype) -> Program:
    op = _operators()[name]
    call, process = op.get_op(), sample.output_process_fn_grad

    def forward() -> Any:
        return process(op.gradcheck_wrapper(call, sample.input, *sample.args, **sample.kwargs))

    arguments = _tensors((sample.input, sample.args, sample.kwargs))
    leaves = _leaves(arguments)
    return Program(leaves, leaves, forward, arguments)


def _of_module(name: str, sample: Any, dtype: torch.dtype) -> Program:
    seed()  # the same weights in every dtype
    module = _modules()[name].module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).to(dtype)
    args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
    arguments = _tensors((args, kwargs))
    leaves = dict(module.named_parameters()) | _leaves(arguments)
    return Program(leaves, module, lambda: module(*args, **kwargs), arguments, _buffers(module))


def _of_model(name: str) -> Program:
    seed()
    model, forward = MODELS[name]()
    model.train()
    return Program(dict(model.named_parameters()), model, forward, buffers=_buffers(model))


def _buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [value for value in _pytree.tree_leaves(tree) if isinstance(value, torch.Tensor)]


def _leaves(tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    leaves = dict.fromkeys(tensor for tensor in tensors if tensor.requires_grad and tensor.is_leaf)
    return {f"input_{index}": tensor for index, tensor in enumerate(leaves)}
