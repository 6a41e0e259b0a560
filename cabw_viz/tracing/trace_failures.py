"""What stopped a trace, in one sentence: the autograd node, its module and line, the cause, and a way out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from cabw_viz import torch_adapter
from cabw_viz.record.model import AutogradNode, Failure
from cabw_viz.torch_adapter import EngineCall
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes

_ASIDES = re.compile(
    r"\nException raised from .* \(most recent call first\)"  # C++ frames
    r"|\n?C\+\+ CapturedTraceback:"
    r"|\s*You can (?:turn off|disable) compiled autograd\b"  # which the user may not have switched on
    r"|\s*This could be because (?:the operator|this operator)"  # and all backends that do have the operator
    r"|\s*Hint: enable anomaly detection"
)
"""Where a message of PyTorch's turns from what happened to something else."""


_END_OF_SENTENCE = re.compile(r"""(?<=[a-z)\]'"])\.\s+(?=[A-Z])""")


def brief(message: str) -> str:
    """The first sentence of a message, in one line: no frames of C++ and no general advice."""
    lines = [line.strip() for line in _ASIDES.split(message, maxsplit=1)[0].splitlines()]
    first = next((line for line in lines if line), "")
    return _END_OF_SENTENCE.split(first, maxsplit=1)[0].rstrip(" .")


def failure_of(error: BaseException) -> Failure:
    """An exception as plain data, so that its traceback keeps no tensor alive."""
    text = str(error)
    return Failure(type(error).__name__, brief(text), details=text)


@dataclass(frozen=True)
class StoppedTrace:
    """A trace that an exception has ended."""

    error: BaseException
    engine_call: EngineCall
    numbering: NumberedNodes
    nodes: Sequence[AutogradNode]
    """The same nodes as records."""
    traced: tuple[int, str] | None
    """The autograd node in whose turn the tracer was: number and name."""

    @property
    def message(self) -> str:
        """What the exception says."""
        return str(self.error)

    @property
    def failure(self) -> Failure:
        """What stopped the trace, as plain data."""
        cause = next((cause for cause in _CAUSES if cause.applies(self)), None)
        number = self._number(cause)
        plain = failure_of(self.error)
        node = self.nodes[number] if number is not None and number < len(self.nodes) else None
        return Failure(
            plain.type,
            plain.message if cause is None else cause.words.format(message=plain.message),
            number,
            node.name if node is not None else self.traced[1] if self.traced is not None else "",
            node.module if node is not None else "",
            node.line if node is not None else None,
            "" if cause is None else cause.try_,
            plain.details,
        )

    def _number(self, cause: Cause | None) -> int | None:
        """The number of the autograd node at which the trace stopped; None where that is not known."""
        if self.traced is not None:
            return self.traced[0]
        # C++ collects what all nodes have saved before it calls the tracer.
        numbers = cause.nodes(self) if cause is not None else ()
        number = next(iter(numbers), None)
        return next(self._nodes_with_such_an_error(), None) if number is None else number

    def _nodes_with_such_an_error(self) -> Iterator[int]:
        """The nodes whose saved tensors raise the same, or whose class the message has in quotes."""
        for number, node in enumerate(self.numbering.nodes):
            if self.message in torch_adapter.saved_tensor_errors(node):
                yield number
        yield from (node.number for node in self.nodes if f"'{node.name}'" in self.message)


@dataclass(frozen=True)
class Cause:
    """A known reason for which PyTorch cannot trace a backward."""

    sign: str
    """Regular expression that its message matches somewhere."""
    words: str
    """What is not possible, in words; `{message}` stands for PyTorch's own."""
    try_: str
    nodes: Callable[[StoppedTrace], Sequence[int]] = lambda _: ()
    """Numbers of the autograd nodes that it can be, where C++ stops before the tracer is at any."""
    also: Callable[[StoppedTrace], bool] = lambda _: True
    """What else must hold."""

    def applies(self, trace: StoppedTrace) -> bool:
        """Whether it is the reason."""
        return re.search(self.sign, trace.message) is not None and self.also(trace)


def _with_nested_gradients(trace: StoppedTrace) -> Sequence[int]:
    """The nodes that pass a nested tensor on, which C++ finds in what the next node expects."""
    edges = (trace.numbering.roots if node is ROOT else node.next_functions for node in trace.numbering.nodes)
    return [
        number
        for number, targets in enumerate(edges)
        if any(node is not None and torch_adapter.expects_nested(node, nr) for node, nr in targets)
    ]


def _named_in(trace: StoppedTrace) -> Sequence[int]:
    """The nodes whose whole C++ name the message ends in."""
    nodes = enumerate(trace.numbering.nodes)
    return [number for number, node in nodes if node is not ROOT and node.name() in brief(trace.message)]


def _only_one(kind: str) -> Callable[[StoppedTrace], Sequence[int]]:
    """The node of a kind where there is no other of it, so that no one is accused wrongly."""

    def nodes(trace: StoppedTrace) -> Sequence[int]:
        numbers = [node.number for node in trace.nodes if node.kind == kind]
        return numbers if len(numbers) == 1 else []

    return nodes


def _has_batched_gradients(trace: StoppedTrace) -> bool:
    return any(isinstance(grad, torch.Tensor) and torch_adapter.is_batched(grad) for grad in trace.engine_call.grads)


_CAUSES = (
    Cause(
        r"NestedTensor support not implemented|is_nested_tensor\(\)",
        "a gradient that flows out of it is a nested tensor, which compiled autograd does not support",
        "a padded tensor in its place (torch.nested.to_padded_tensor) with a mask",
        _with_nested_gradients,
    ),
    Cause(
        r"compiled_args not implemented: torch::jit::",
        "compiled autograd cannot trace the backward of what torch.jit.script has compiled",
        "the module itself instead of the scripted one; PYTORCH_JIT=0 in the environment switches scripting off",
        _named_in,
    ),
    Cause(
        r"compiled_args (?:not implemented|nyi)",
        "compiled autograd cannot trace this autograd node, since its C++ code does not say what it has saved",
        "",
        _named_in,
    ),
    Cause(
        r"not compatible with C\+\+ DDP Reducer",
        "compiled autograd cannot trace the C++ reducer of DistributedDataParallel",
        'torch._dynamo.config.optimize_ddp = "python_reducer" before DistributedDataParallel(model) is made',
        _only_one("accumulate_grad"),
    ),
    Cause(
        r"view_fn not supported by compiled autograd",
        "compiled autograd cannot trace an in-place write to a view that is no plain slice of its base"
        " (torch.view_as_real of a complex tensor)",
        "the write out of place: torch.view_as_complex(torch.view_as_real(y) * 3) for torch.view_as_real(y).mul_(3)",
        _only_one("copy_slices"),
    ),
    Cause(
        r"not supported by FakeTensorMode",
        "is_grads_batched=True (vectorize=True of torch.autograd.functional) hands it gradients of the older vmap,"
        " which compiled autograd does not support",
        "one call for each row of grad_outputs, with retain_graph=True",
        also=_has_batched_gradients,
    ),
    Cause(
        r"modified by an inplace operation",
        "{message}",
        "the in-place operation on a clone() of that tensor, or out of place",
    ),
    Cause(
        r"Trying to backward through the graph a second time",
        "a backward before this one has freed what it had saved",
        "retain_graph=True in the backward before this one",
    ),
    Cause(
        r"does not currently support (?:higher order gradients|double backward)|CompiledFunctionBackwardBackward",
        "torch.compile supports no second derivative through what it has compiled",
        "that part of the model without torch.compile",
    ),
    Cause(
        r"Re-entrant into Compiled Autograd|within another compiled autograd call",
        "a backward inside this one would run through compiled autograd too, which PyTorch does not support",
        "torch._dynamo.compiled_autograd._disable() around the inner backward",
    ),
)
"""In the order in which they are tried."""
