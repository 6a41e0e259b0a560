"""The functions that a captured graph calls, and the layouts of their arguments.

Read in `torch/_dynamo/external_utils.py` and `torch/_dynamo/compiled_autograd.py`. The layouts are known nowhere
else; the accessors take the positional arguments of a call, be they values or graph nodes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
import torch.fx
from torch._dynamo import compiled_autograd, external_utils

from cabw_viz.record.kinds import HookKind
from cabw_viz.torch_adapter.dtypes import SCALAR_TYPES, scalar_type

call_accumulate_grad = external_utils.call_accumulate_grad
call_backward = external_utils.call_backward
call_hook = external_utils.call_hook
call_cpp_tensor_pre_hooks = torch._C._dynamo.compiled_autograd.call_cpp_tensor_pre_hooks
copy_slices_prologue = compiled_autograd.copy_slices_prologue
copy_slices_epilogue = compiled_autograd.copy_slices_epilogue
unwrap_size = external_utils.unwrap_maybe_dynamic_int
final_callbacks = external_utils.FakeCompiledAutogradEngine._exec_final_callbacks_stub

NODE_CALL = re.compile(r"(\S.*?) \(NodeCall (\d+)\)\s*$")
"""Last line of a traced graph node's stack trace: `NAME (NodeCall N)`."""


def op_name(target: Any) -> str | None:
    """Name of an opaque backward call (`AddmmBackward0`, `validate_outputs`), or None for other targets.

    A C++ Function's has no number: PyTorch counts up each time it binds one, over the life of the process.
    """
    if isinstance(target, compiled_autograd.Op):
        name = target.__name__
    elif getattr(target, "__name__", "") == "run_non_traceable_cpp_in_eager":
        name = next((name for name, value in vars(compiled_autograd.ops).items() if value is target), "CppNode")
    else:
        return None
    return name.rstrip("0123456789") if name.startswith("CppNode") else name


# -- call_accumulate_grad(variable[, variable_grad], grad, has_post_hooks), the second since torch 2.13 -------


def accumulated_variable(args: Sequence[Any]) -> Any:
    """The leaf to whose `.grad` a call adds."""
    return args[0]


def accumulated_gradient(args: Sequence[Any]) -> Any:
    """The gradient that a call adds to a leaf's `.grad`."""
    return args[-2]


def has_post_hooks(args: Sequence[Any]) -> Any:
    """Whether the node that accumulates has post-hooks."""
    return args[-1]


def has_old_gradient(args: Sequence[Any]) -> bool | None:
    """Whether a call adds to an existing `.grad`; None before torch 2.13, where the graph does not say."""
    return args[1] is not None if len(args) == 4 else None


# -- call_hook(hook, gradients or packed data, ..., hook_type=), call_cpp_tensor_pre_hooks(hook_id, gradient) --


def hook_type(target: Any, kwargs: Mapping[str, Any]) -> HookKind | None:
    """The kind of hook that a call of `call_hook` runs; None for any other target."""
    if target is not call_hook:
        return None
    return cast("HookKind", kwargs["hook_type"])  # one of PyTorch's words


def hook_input(args: Sequence[Any]) -> Any:
    """What a hook is called with: the gradient, the list of gradients, the leaf, or what an unpack hook unpacks."""
    return args[1]


def lifted_index(lifted: Any) -> int | None:
    """The index in the graph's `hooks` of a lifted hook or ctx (`hooks[3]`); None for anything else."""
    if isinstance(lifted, torch.fx.Node) and len(lifted.args) == 2 and isinstance(lifted.args[1], int):
        return lifted.args[1]
    return None


def hook_index(args: Sequence[Any]) -> int | None:
    """The index in the graph's `hooks` of the hook that a call of `call_hook` runs."""
    return lifted_index(args[0])


def packed_index(args: Sequence[Any]) -> int | None:
    """The index in the graph's `packed_data` of what a call of `call_hook` unpacks."""
    return lifted_index(args[1])


# -- call_backward(ctx, saved_tensors, *gradients), opaque calls of built-in nodes (gradients, ...) ------------


def ctx_index(args: Sequence[Any]) -> int | None:
    """The index in the graph's `hooks` of the ctx that a call of `call_backward` uses."""
    return lifted_index(args[0])


def backward_gradients(node: torch.fx.Node) -> Any:
    """The gradients that a graph node hands to an autograd node's backward, Python's or built in."""
    return node.args[2:] if node.target is call_backward else node.args[0]


# -- copy_slices_prologue(gradients, geometry of the base, geometry of the view), copy_slices_epilogue -----------


def copy_slices_geometry(args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Sizes, strides and storage offset of the base, and those of the view."""
    return args[1:4], args[4:7]


def needs_input_grad(args: Sequence[Any]) -> Any:
    """Which inputs of the inner function want a gradient, of a call of the epilogue."""
    return args[0]


# -- what goes before a compiled region's backward -----------------------------------------------------------


def is_aot_prologue(target: Any) -> bool:
    """Whether a target prepares the arguments of a compiled region's backward; it checks the class of its tensors."""
    return getattr(target, "__name__", "") == "call_aot_bwd_prologue"


def aot_prologue_gradients(args: Sequence[Any]) -> Any:
    """The gradients of `(saved tensors, ints[, opaque objects], gradients)`, each by itself up to torch 2.8."""
    return args[-1] if isinstance(args[-1], list | tuple) else args[2:]


def source_before_aot_prologue(node: torch.fx.Node) -> Any:
    """What a graph node was before the prologue, where it is one of a compiled region's saved tensors; else itself.

    The prologue returns its arguments in one list: ints, saved tensors, opaque objects, gradients.
    """
    call = node.args[0] if node.target is operator.getitem else None
    if not isinstance(call, torch.fx.Node) or not is_aot_prologue(call.target):
        return node
    saved, ints, *rest = call.args
    listed = [*cast("Any", ints), *cast("Any", saved), *(each for part in rest for each in cast("Any", part))]
    return listed[cast("int", node.args[1])]


# -- kernels that write to an argument ------------------------------------------------------------------------

_SCRATCH_NODES = {
    "CudnnRnnBackward0",
    "CudnnBatchNormBackward0",
    "MiopenRnnBackward0",
    "MkldnnRnnLayerBackward0",
    "BatchNormWithUpdateBackward0",
    "BatchNormNoUpdateBackward0",
}
_SCRATCH_OPERATORS = {
    "aten._cudnn_rnn_backward.default",
    "aten.cudnn_batch_norm_backward.default",
    "aten.miopen_rnn_backward.default",
    "aten.mkldnn_rnn_layer_backward.default",
    "aten.batch_norm_backward.default",
}


def input_index(node: torch.fx.Node) -> int | None:
    """The index in the graph's `inputs` of a lifted tensor (`inputs[3]`); None for any other graph node."""
    source = node.args[0] if node.target is operator.getitem else None
    is_lifted = isinstance(source, torch.fx.Node) and source.op == "placeholder" and source.target == "inputs"
    return lifted_index(node) if is_lifted else None


def scratch_arguments(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """Graph nodes whose values are arguments of kernels that write to a workspace they are given, without counting it.

    The workspace is among them, and the only one in bytes. derivatives.yaml clones it where the graph is retained
    (`retain_variables ? result3.clone() : result3`), except oneDNN's.
    """
    for node in graph.nodes:
        if op_name(node.target) in _SCRATCH_NODES or str(node.target) in _SCRATCH_OPERATORS:
            for used in node.all_input_nodes:
                source = source_before_aot_prologue(used)
                if isinstance(source, torch.fx.Node):
                    yield source


# -- validate_outputs(gradients, metadata, ...) --------------------------------------------------------------

_OPTIONS_DTYPE, _METADATA_GRAD_DTYPE = 3, 3


def is_validate_outputs(target: Any) -> bool:
    """Whether a target is the engine's check of an autograd node's gradients."""
    return isinstance(target, compiled_autograd.Op) and target.__name__ == "validate_outputs"


def with_output_dtypes(args: Sequence[Any], changed: Callable[[torch.dtype], torch.dtype]) -> tuple[Any, ...]:
    """The arguments of `validate_outputs` with other dtypes in the second.

    That is a list of None or `((requires_grad, memory_format, device, dtype, layout, pinned), sizes, is_subclass[,
    grad_dtype])` (`IValuePacker<InputMetadata>` in torch/csrc/dynamo/compiled_autograd.h; the last since torch 2.10).
    """

    def other(number: Any) -> Any:
        return scalar_type(changed(SCALAR_TYPES[number])) if number in SCALAR_TYPES else number

    def one(entry: Any) -> Any:
        options, *rest = entry
        options = tuple(other(item) if place == _OPTIONS_DTYPE else item for place, item in enumerate(options))
        return (
            options,
            *(other(item) if place == _METADATA_GRAD_DTYPE else item for place, item in enumerate(rest, 1)),
        )

    gradients, metadata, *rest = args
    return gradients, [None if entry is None else one(entry) for entry in metadata], *rest
