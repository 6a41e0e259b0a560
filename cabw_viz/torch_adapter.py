"""Every private name of PyTorch that the package uses, in one place.

Nothing here decides anything: it names, reads and switches. `check()` compares the signatures with those the
package was written for, once, when a name is first needed, so that a PyTorch that moved something gives one
clear error and not a wrong record. Read in torch 2.8 to 2.15: `torch/_dynamo/compiled_autograd.py`,
`torch/csrc/dynamo/python_compiled_autograd.cpp`, `torch/csrc/autograd/engine.cpp`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import operator
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

import torch
import torch.fx
from torch._dynamo import compiled_autograd, convert_frame, eval_frame, external_utils
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.callback import callback_handler
from torch._dynamo.source import ConstantSource, TensorProperty, TensorPropertySource
from torch._subclasses import fake_tensor
from torch.fx.experimental import _config as symbolic_shapes_config
from torch.fx.experimental import proxy_tensor, symbolic_shapes
from torch.utils import _pytree
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._sympy.printers import PythonPrinter

from cabw_viz.errors import CabwError

engine = torch._C._dynamo.compiled_autograd
TracerBase = compiled_autograd.AutogradCompilerInstance
OLDEST = (2, 8)
DOOR = "_engine_run_backward"

FakeTensor = fake_tensor.FakeTensor
disable_dynamo = torch._dynamo.disable
call_accumulate_grad = external_utils.call_accumulate_grad
call_backward = external_utils.call_backward
call_hook = external_utils.call_hook
call_cpp_tensor_pre_hooks = engine.call_cpp_tensor_pre_hooks
copy_slices_prologue = compiled_autograd.copy_slices_prologue
copy_slices_epilogue = compiled_autograd.copy_slices_epilogue
unwrap_size = external_utils.unwrap_maybe_dynamic_int
final_callbacks = external_utils.FakeCompiledAutogradEngine._exec_final_callbacks_stub

NODE_CALL = re.compile(r"(\S.*?) \(NodeCall (\d+)\)\s*$")
"""Last line of a traced graph node's stack trace: `NAME (NodeCall N)`."""

SIGNATURES: dict[str, tuple[tuple[str, ...], ...]] = {
    "begin_capture": (("inputs", "sizes", "scalars", "origins", "accumulate_grad", "check_nans"),),
    "end_capture": (("outputs",),),
    "set_node_origin": (("node_name", "nodecall_index", "pyobj"),),
    "apply_functional": (("fn_name", "grads", "args", "output_metadata"),),
    "proxy_call_backward": (
        ("inputs", "output_metadatas", "saved_tensors", "backward_idx", "ctx", "maybe_backward_state_idx"),
        (
            "inputs",
            "output_metadatas",
            "saved_tensors",
            "backward_idx",
            "ctx",
            "maybe_backward_state_idx",
            "opaque_object_indices",
        ),
    ),
    "remove_unused_sizes": ((),),
}
"""Tracer callbacks whose arguments the package reads, with the argument lists it knows (torch 2.8 to 2.15)."""


@functools.cache
def check() -> None:
    """Raise a CabwError where this PyTorch is not one the package knows how to read."""
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < OLDEST:
        raise CabwError(
            f"torch {torch.__version__} is installed",
            expected="torch 2.8 or newer (2.6 and 2.7 give wrong gradients or assert for in-place writes to views)",
            try_="pip install 'torch>=2.8'",
        )
    for name, known in SIGNATURES.items():
        method = getattr(TracerBase, name, None)
        seen = None if method is None else tuple(inspect.signature(method).parameters)[1:]
        if seen not in known:
            raise CabwError(
                f"compiled autograd's {name} takes {seen} in torch {torch.__version__}",
                expected=" or ".join(str(arguments) for arguments in known),
                try_="a release of cabw_viz made for this torch, or a torch from 2.8 to 2.15",
            )
    if not callable(getattr(torch.autograd, DOOR, None)):
        raise CabwError(
            f"torch.autograd has no {DOOR} in torch {torch.__version__}",
            expected="the function through which every Python backward enters the engine",
            try_="a torch from 2.8 to 2.15",
        )


# -- the door ------------------------------------------------------------------------------------------------


def door() -> Callable[..., Any]:
    """The function through which `.backward()`, `autograd.backward` and `autograd.grad` enter the engine."""
    function: Callable[..., Any] = getattr(torch.autograd, DOOR)
    return function


def set_door(function: Callable[..., Any]) -> None:
    """Put another function in its place."""
    setattr(torch.autograd, DOOR, function)


@dataclass(frozen=True)
class EngineCall:
    """One call of the door, its arguments by name."""

    original: Callable[..., Any]
    roots: tuple[Any, ...]
    """Tensors or GradientEdges."""
    grads: tuple[Any, ...]
    keep_graph: bool
    create_graph: bool
    inputs: tuple[Any, ...]
    """Tensors or GradientEdges; empty for a plain backward."""
    rest: tuple[Any, ...]
    options: dict[str, Any]

    @classmethod
    def parse(cls, original: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> EngineCall:
        """Name the door's positional arguments."""
        roots, grads, keep_graph, create_graph, *more = args
        inputs = tuple(more[0]) if more and more[0] else ()
        return cls(
            original, tuple(roots), tuple(grads), bool(keep_graph), bool(create_graph), inputs, tuple(more), options
        )

    @property
    def accumulates(self) -> bool:
        """Whether gradients go into `.grad` (`backward`) or are returned (`grad`)."""
        return bool(self.options.get("accumulate_grad"))

    def run(self, *, keep_graph: bool | None = None) -> Any:
        """Make the call, as the user made it unless told to keep the graph."""
        keep = self.keep_graph if keep_graph is None else keep_graph
        return self.original(self.roots, self.grads, keep, self.create_graph, *self.rest, **self.options)


def gradient_edge(target: Any) -> tuple[Any, int]:
    """The autograd node that a Tensor's or GradientEdge's gradient enters, and as which of its inputs."""
    edge = torch.autograd.graph.get_gradient_edge(target) if isinstance(target, torch.Tensor) else target
    return edge.node, edge.output_nr


def backward_is_running() -> bool:
    """Whether this thread is inside a backward."""
    return bool(torch._C._current_graph_task_id() != -1)


def compiler_is_tracing() -> bool:
    """Whether Dynamo or AOTAutograd is tracing in this thread."""
    return torch._guards.TracingContext.try_get() is not None


def compiled_autograd_is_forbidden() -> bool:
    """Whether the user has excluded compiled autograd here: `_disable()`, or the stance `force_eager`."""
    return bool(compiled_autograd.active_disable_ctx) or eval_frame._stance.stance == "force_eager"


def compiled_autograd_is_on() -> bool:
    """Whether the user has compiled autograd on, as its own flag says; read without switching anything."""
    return bool(compiled_autograd.compiled_autograd_enabled)


def name_of_node(node: Any) -> str:
    """An autograd node's name without its namespaces; template arguments stay: `CppNode<mine::Scale>`."""
    name: str = node.name()
    head, bracket, tail = name.partition("<")
    return head.rpartition("::")[2] + bracket + tail


def input_count(node: Any) -> int:
    """How many gradients flow into an autograd node."""
    return len(node._input_metadata)


def input_metadata(node: Any, position: int) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a gradient that flows into an autograd node, as the forward op left them."""
    metadata = node._input_metadata[position]
    return tuple(metadata.shape), str(metadata.dtype)


def has_freed_buffers(node: Any) -> bool:
    """Whether a Python Function's node has run and was freed; a trace would fail half-way through it."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    try:
        node._raw_saved_tensors  # noqa: B018  # the read raises; unlike saved_tensors it calls no unpack hook
    except RuntimeError:
        return True
    return False


def is_fake(tensor: Any) -> bool:
    """Whether a tensor is one of the tracer's stand-ins."""
    return isinstance(tensor, FakeTensor)


def saved_tensor_errors(node: Any) -> list[str]:
    """What unpacking a node's saved tensors raises: they are freed, or were changed in place.

    Packed ones are left alone, for unpacking would run the user's hook.
    """
    errors = []
    for attribute in dir(node):
        if attribute.startswith("_raw_saved_"):
            try:
                found = getattr(node, attribute)
                for saved in found if isinstance(found, list | tuple) else [found]:
                    if getattr(saved, "unpack_hook", None) is None and hasattr(saved, "unpack"):
                        saved.unpack()
            except RuntimeError as error:
                errors.append(str(error))
    return errors


def is_python_function(node: Any) -> bool:
    """Whether an autograd node belongs to a Python `autograd.Function`."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def is_aot_context(ctx: Any) -> bool:
    """Whether a Python Function's context belongs to the backward of a compiled region."""
    return hasattr(ctx._forward_cls, "_aot_id")


def is_aot_backward(node: Any) -> bool:
    """Whether an autograd node is the backward of a compiled region."""
    return is_python_function(node) and is_aot_context(node)


# -- switching the tracer on ---------------------------------------------------------------------------------


def clear_cache() -> None:
    """Forget all captures: a cache hit would call neither tracer nor compiler."""
    engine.clear_cache()


@dataclass(frozen=True)
class UsersCompiler:
    """Compiled autograd as the user has switched it on."""

    tracer: type[Any]
    function: Callable[..., Any]
    dynamic: bool


def users_compiler() -> UsersCompiler | None:
    """Who compiles backwards now; None where compiled autograd is off.

    Raises:
        CabwError: the factory is not the partial of a tracer class that `_enable` makes.
    """
    factory, dynamic = engine.set_autograd_compiler(None, False)  # noqa: FBT003  # C++, positional only
    engine.set_autograd_compiler(factory, dynamic)
    if factory is None:
        return None
    if isinstance(factory, functools.partial) and isinstance(factory.func, type) and factory.args:
        return UsersCompiler(factory.func, factory.args[0], dynamic)
    raise CabwError(f"compiled autograd was switched on with a {type(factory).__name__} of its own making")


class _MissLogger:
    """Receives from C++ why a call was captured again, and passes it on to PyTorch's own log where that is on."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def debug(self, text: str) -> None:
        self.reasons.append(text)
        if compiled_autograd.snapshot_verbose_logging_enabled():
            compiled_autograd.verbose_log.debug(text)


# C++ keeps only a borrowed pointer to the logger, so it must live as long as the process.
_MISSES = _MissLogger()


@contextmanager
def unseen() -> Iterator[None]:
    """A trace inside leaves no mark: PyTorch's counters stay, and the user's TorchFunctionModes see nothing of it."""
    counters = dynamo_utils.counters["compiled_autograd"]
    before = dict(counters)
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        counters.clear()
        counters.update(before)


@contextmanager
def tracing(tracer: Callable[..., Any], compiler_fn: Callable[..., Any], *, dynamic: bool) -> Iterator[list[str]]:
    """Compiled autograd on, with a tracer class of ours; yields the list of miss reasons.

    `_enable` does the bookkeeping that a bare `set_autograd_compiler` leaves undone (flag, depth, threads).
    With PyTorch's verbose logger set, captures also know which autograd node lifted what.
    """
    reasons = _MISSES.reasons
    reasons.clear()
    with compiled_autograd._enable(compiler_fn, dynamic=dynamic):
        engine.set_autograd_compiler(functools.partial(tracer, compiler_fn), dynamic)
        engine.set_verbose_logger(_MISSES)  # type: ignore[arg-type]  # the stub is wrong: C++ calls its `debug`
        try:
            yield reasons
        finally:
            wanted = compiled_autograd.snapshot_verbose_logging_enabled()
            engine.set_verbose_logger(compiled_autograd.verbose_log if wanted else None)  # type: ignore[arg-type]


def compiled_autograd_off() -> Any:
    """Context in which a backward runs in the eager engine, whatever was on outside."""
    return compiled_autograd._disable()


def compiled_autograd_as_it_is() -> Any:
    """Context in which backwards run through compiled autograd, their graphs op by op."""
    return compiled_autograd._enable(lambda graph: graph)


def forget_compiled_code() -> None:
    """Drop all that Dynamo has compiled and compiled autograd has captured; both are made anew when called again."""
    torch._dynamo.reset()


def count_of_graphs() -> int:
    """How many graphs Dynamo has compiled in this process."""
    return int(dynamo_utils.counters["stats"]["unique_graphs"])


def count_of_captures() -> int:
    """How many backwards compiled autograd has captured in this process."""
    return int(dynamo_utils.counters["compiled_autograd"]["captures"])


def end_unfinished(tracer: Any) -> None:
    """Take back what `begin_capture` entered, where `end_capture` will not: modes, compile context, event log."""
    tracer.stack.close()
    dynamo_utils.get_chromium_event_logger().log_event_end(
        "compiled_autograd", time.time_ns(), {"graph_id": tracer.id}, tracer.start_time_ns, log_pt2_compile_event=True
    )
    tracer.compile_context.__exit__(None, None, None)


@contextmanager
def unchanged_aot_graph(ctx: Any) -> Iterator[None]:
    """Undo what tracing does to a compiled region's backward: `aten.view` becomes `aten.reshape` in it for good."""
    info = getattr(ctx._forward_cls, "_lazy_backward_info", None)
    module = getattr(info, "bw_module", None)
    before = [(node, node.target) for node in module.graph.nodes] if module is not None else []
    try:
        yield
    finally:
        for node, target in before:
            if node.target is not target:
                node.target = target


# -- reading a traced graph ----------------------------------------------------------------------------------


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


def takes_plain_tensors(target: Any) -> bool:
    """Whether a graph node's target checks the class of its tensors: what goes before a compiled region's backward."""
    return getattr(target, "__name__", "") == "call_aot_bwd_prologue"


def is_operator(target: Any) -> bool:
    """Whether a graph node's target is an operator of the dispatcher (`aten.mm.default`)."""
    return isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket)


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that another is a view of; None for what is no view."""
    return tensor._base


def version(tensor: torch.Tensor) -> int:
    """How often a tensor's storage has been written to in place."""
    return tensor._version


def share_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two strided tensors lie in the same memory; False where one has none of its own (functorch's)."""
    try:
        return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
    except RuntimeError:
        return False


def modes_are_on() -> bool:
    """Whether a TorchDispatchMode sees the ops of this thread."""
    return bool(torch._C._len_torch_dispatch_stack())


# -- saved fields of autograd nodes --------------------------------------------------------------------------

_SAVED_FROM_OUTPUTS = ("S_sym_argsize_minus_1", "max_k", "max_q", "max_seqlen_batch_k", "max_seqlen_batch_q")
"""The numbers that some nodes save from outputs (derivatives.yaml of 2.13), packed behind the rest. Other fields of
these names may be inputs."""


@functools.cache
def saved_fields(name: str) -> tuple[tuple[str, ...], ...]:
    """Names of a built-in node's saved fields that are no tensors, in the orders in which they may be packed."""
    attributes = dir(getattr(torch._C._functions, name, None))
    saved = [attribute.removeprefix("_saved_") for attribute in attributes if attribute.startswith("_saved_")]
    plain = [field for field in saved if f"_raw_saved_{field}" not in attributes]
    last = [field for field in plain if field in _SAVED_FROM_OUTPUTS]
    others = tuple(field for field in plain if field not in last)
    return (tuple(plain), (*others, *last)) if last else (tuple(plain),)


def field_values(node: Any, name: str) -> dict[str, Any]:
    """Values of these fields in an autograd node, if it is one of that name.

    Their getters copy numbers; those of saved tensors would unpack them, and are left alone.
    """
    if node is None or type(node).__name__ != name:
        return {}
    try:
        return {field: getattr(node, f"_saved_{field}") for field in saved_fields(name)[0]}
    except RuntimeError:  # lists of scalars are freed together with tensors
        return {}


def argument_names(target: Any) -> tuple[str, ...]:
    """Names of an operator's arguments, by its schema; empty for other targets."""
    return tuple(argument.name for argument in target._schema.arguments) if hasattr(target, "_schema") else ()


def operands(operator: Any, args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """An operator's arguments by their names; those left out have their defaults."""
    known = operator._schema.arguments
    named = {argument.name: argument.default_value for argument in known if argument.has_default_value()}
    return named | dict(zip((argument.name for argument in known), args, strict=False)) | dict(options)


def returns_new_tensors(operator: Any) -> bool:
    """Whether an operator's results are none of its arguments nor views of them, as far as its schema says."""
    return hasattr(operator, "_schema") and all(result.alias_info is None for result in operator._schema.returns)


def is_arithmetic(target: Any) -> bool:
    """Whether a graph node's target computes with plain numbers."""
    return getattr(target, "__module__", "") == "_operator" and target is not operator.getitem


# -- watching tensors while a graph runs ---------------------------------------------------------------------

without_torch_function = torch._C.DisableTorchFunctionSubclass
"""Context in which a subclass's `__torch_function__` is not asked."""

aten, prim = torch.ops.aten, torch.ops.prim

QUERIES: dict[Any, tuple[str, Callable[..., Any]]] = {
    aten.size.default: ("size", torch.Tensor.size),
    aten.sym_size.default: ("size", torch.Tensor.size),
    aten.size.int: ("size", torch.Tensor.size),
    aten.sym_size.int: ("size", torch.Tensor.size),
    aten.stride.default: ("stride", torch.Tensor.stride),
    aten.sym_stride.default: ("stride", torch.Tensor.stride),
    aten.stride.int: ("stride", torch.Tensor.stride),
    aten.sym_stride.int: ("stride", torch.Tensor.stride),
    aten.storage_offset.default: ("storage_offset", torch.Tensor.storage_offset),
    aten.sym_storage_offset.default: ("storage_offset", torch.Tensor.storage_offset),
    aten.numel.default: ("numel", torch.Tensor.numel),
    aten.sym_numel.default: ("numel", torch.Tensor.numel),
    aten.dim.default: ("dim", torch.Tensor.dim),
    aten.is_contiguous.default: ("contiguity", torch.Tensor.is_contiguous),
    aten.is_contiguous.memory_format: ("contiguity", aten.is_contiguous.memory_format),
    aten.is_strides_like_format.default: ("contiguity", aten.is_strides_like_format.default),
    aten.is_non_overlapping_and_dense.default: ("contiguity", aten.is_non_overlapping_and_dense.default),
    prim.device.default: ("device", lambda tensor: tensor.device),
    prim.layout.default: ("layout", lambda tensor: tensor.layout),
}
"""How C++ asks Python for the metadata of a wrapper: the attribute, and what answers for a tensor.
(`ConcretePyInterpreterVTable` in torch/csrc/PyInterpreter.cpp)"""

if hasattr(aten, "sym_is_contiguous"):  # since torch 2.9
    QUERIES[aten.sym_is_contiguous.default] = ("contiguity", aten.sym_is_contiguous.default)

CONCRETE_QUERIES = {
    aten.size.default: "sizes",
    aten.stride.default: "strides",
    aten.storage_offset.default: "storage_offset",
    aten.numel.default: "numel",
}
"""Those of them that take no symbolic answer, by the name that C++ has for them when it says so."""

_DATA_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


def reads_data(operator: Any, args: Sequence[Any]) -> bool:
    """Whether what an operator returns, or its shape, hangs on a tensor's values (`item`, `equal`, `nonzero`)."""
    if _DATA_TAGS.isdisjoint(getattr(operator, "tags", ())):
        return False
    if operator is aten.index.Tensor:  # tagged for its masks; integer indices give a shape of their own
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return True


def wrapper(cls: type[torch.Tensor], inner: torch.Tensor) -> Any:
    """A tensor of a subclass that looks like another and asks Python for its metadata, from C++ too."""
    strided = inner.layout is torch.strided
    made = torch.Tensor._make_wrapper_subclass(
        cls,
        inner.size(),
        strides=inner.stride() if strided else None,
        storage_offset=inner.storage_offset() if strided else None,
        dtype=inner.dtype,
        layout=inner.layout,
        device=inner.device,
        requires_grad=inner.requires_grad,
        dispatch_sizes_strides_policy="sizes",
        dispatch_device=True,
        dispatch_layout=True,
    )
    # Formulas look at these marks, and the kernels that answer to them run above the wrapper.
    if inner.is_conj():
        torch._C._set_conj(made, True)  # noqa: FBT003  # C++, positional only
    if inner.is_neg():
        torch._C._set_neg(made, True)  # noqa: FBT003  # as above
    made._is_param = isinstance(inner, torch.nn.Parameter)
    return made


_MARKED_TENSORS = (
    torch._C.DispatchKey.Conjugate,
    torch._C.DispatchKey.Negative,
    torch._C.DispatchKey.ZeroTensor,
)


@contextmanager
def as_below_autograd() -> Iterator[None]:
    """In `__torch_dispatch__`, let a kernel do what it does below autograd.

    The way to Python leaves everything above it switched off (`pythonFallback` in ATen/core/PythonFallbackKernel.cpp),
    and with it the handling of conjugated, negated and zero tensors, on which kernels count for what they call:
    `linalg.pinv` of a complex matrix comes out wrong without.
    """
    conjugate, negative, zero = (torch._C._SetExcludeDispatchKeyGuard(key, False) for key in _MARKED_TENSORS)  # noqa: FBT003
    with conjugate, negative, zero:
        yield


@functools.lru_cache(maxsize=4096)
def written_arguments(operator: Any) -> tuple[tuple[int, str], ...]:
    """Places and names of the arguments that an operator writes to."""
    schema = getattr(operator, "_schema", None)
    if schema is None or not schema.is_mutable:
        return ()
    aliases = [(place, argument.name, argument.alias_info) for place, argument in enumerate(schema.arguments)]
    return tuple((place, name) for place, name, alias in aliases if alias is not None and alias.is_write)


def only_passes_on(code: CodeType) -> bool:
    """Whether a frame of torch's only hands a graph node's arguments to what the node calls."""
    return code in _PASSING or code.co_filename == _INTERPRETER


_PASSING = frozenset({compiled_autograd.Op.__call__.__code__, call_backward.__code__, call_hook.__code__})
_INTERPRETER = torch.fx.Interpreter.run.__code__.co_filename


# -- tracing a graph down to aten ops ------------------------------------------------------------------------

UNTRACEABLE: tuple[type[Exception], ...] = (
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.DataDependentOutputException,
    symbolic_shapes.GuardOnDataDependentSymNode,
)
"""What a trace on stand-ins raises where the program asks for a tensor's values."""

NO_STAND_IN: tuple[type[Exception], ...] = (fake_tensor.UnsupportedOperatorException,)
"""What it raises for an op that computes no shapes without values (`torch.library.register_fake` would)."""


@dataclass(frozen=True)
class StandIn:
    """A tensor or a size that a trace computes with, and its numbers as expressions of symbols."""

    value: Any
    shape: tuple[str, ...] | None = None
    strides: tuple[str, ...] | None = None
    text: str = ""
    """Of a size."""


class SymbolicTrace:
    """A trace with stand-ins whose sizes are symbols.

    Sizes up to 1 are numbers, for there the ops themselves go other ways (broadcasting, empty inputs). The others are
    taken to be any from 1: PyTorch is told to answer "is it 1?" with no, where it may, and not to make that a guard.

    Args:
        symbolic: False makes every size a number.
        tied: give one symbol to each dimension of all that have the same shape. A trace takes several times as long
            without.
    """

    def __init__(self, *, symbolic: bool, tied: bool) -> None:
        self._symbolic, self._tied = symbolic, tied
        self._known: dict[tuple[Any, ...], Any] = {}
        self._environment = symbolic_shapes.ShapeEnv(specialize_zero_one=False, duck_shape=False)
        self._mode = fake_tensor.FakeTensorMode(
            shape_env=self._environment if symbolic else None,
            allow_non_fake_inputs=True,
            allow_fallback_kernels=False,
            static_shapes=not symbolic,
        )

    def tensor(self, tensor: torch.Tensor, name: str, *, fixed: bool) -> StandIn:
        """A stand-in for a tensor; its sizes are numbers where `fixed`."""
        source = ConstantSource(name)
        if not self._symbolic or tensor.layout is not torch.strided:
            return self._described(self._mode.from_tensor(tensor, source=source, static_shapes=True))
        numbers = [fixed or size in (0, 1) for size in tensor.shape]
        cache = {}
        for dimension, size in enumerate(tensor.shape):
            if not numbers[dimension]:
                place = TensorPropertySource(source, TensorProperty.SIZE, dimension)
                cache[_name_of(place)] = self._symbol(size, place, (dimension, *tensor.shape))
        manner = symbolic_shapes.DimDynamic
        context: Any = symbolic_shapes.StatefulSymbolicContext(
            dynamic_sizes=[manner.STATIC if number else manner.DYNAMIC for number in numbers],
            tensor_source=source,
            shape_env_to_source_to_symbol_cache={id(self._environment): cache},
        )
        return self._described(self._mode.from_tensor(tensor, source=source, symbolic_context=context))

    def size(self, value: int, name: str, place: tuple[Any, ...], *, fixed: bool) -> StandIn:
        """A stand-in for a size: `place` is its dimension and the shape that it belongs to, or whatever else it is."""
        if not self._symbolic or fixed or value <= 1:
            return StandIn(value, text=str(value))
        source = ConstantSource(name)
        symbolic = self._environment.create_symintnode(self._symbol(value, source, place), hint=value, source=source)
        return StandIn(symbolic, text=_text_of(symbolic))

    def run(self, function: Callable[..., Any], arguments: Sequence[Any]) -> torch.fx.GraphModule:
        """Trace a function of stand-ins into a graph of the ops that it ran."""
        mode: Literal["symbolic", "fake"] = "symbolic" if self._symbolic else "fake"
        with _sizes_are_not_one(), _failures_untold():
            return proxy_tensor.make_fx(function, tracing_mode=mode, _allow_non_fake_inputs=True)(*arguments)

    @property
    def guards(self) -> tuple[str, ...]:
        """What was taken for granted on the way, as Python expressions of the symbols."""
        printer = PythonPrinter()
        return tuple(dict.fromkeys(printer.doprint(guard.expr) for guard in self._environment.guards))

    def _symbol(self, value: int, source: Any, place: tuple[Any, ...]) -> Any:
        key = (value, *place)
        if self._tied and key in self._known:
            return self._known[key]
        manner = symbolic_shapes.DimDynamic.DYNAMIC
        symbol = self._environment.create_symbol(value, source, dynamic_dim=manner, positive=True)
        self._known[key] = symbol
        return symbol

    def _described(self, fake: Any) -> StandIn:
        strides = tuple(map(_text_of, fake.stride())) if fake.layout is torch.strided else None
        return StandIn(fake, tuple(map(_text_of, fake.shape)), strides)


def _text_of(number: int | torch.SymInt) -> str:
    """A number as a Python expression; a symbol as it was made, whatever has become known of it since."""
    return str(number) if isinstance(number, int) else PythonPrinter().doprint(number.node.expr)


def _name_of(source: Any) -> str:
    name = source.name  # a method before torch 2.11
    return str(name() if callable(name) else name)


def _sizes_are_not_one() -> AbstractContextManager[Any]:
    """Context in which a symbol counts as neither 0 nor 1 where an op asks in a way that allows it."""
    config: Any = symbolic_shapes_config  # a module of another class, of which the stub knows nothing
    return config.patch(backed_size_oblivious=True) if hasattr(config, "backed_size_oblivious") else nullcontext()


@contextmanager
def no_nested_accumulation(refusal: Callable[[], Exception]) -> Iterator[None]:
    """A context in which a backward that this thread starts may return gradients, but not add to any `.grad`."""
    original, thread = door(), threading.get_ident()

    def guard(*args: Any, **options: Any) -> Any:
        if options.get("accumulate_grad") and threading.get_ident() == thread:
            raise refusal()
        return original(*args, **options)

    guarded = disable_dynamo(guard)
    set_door(guarded)
    try:
        yield
    finally:
        if door() is guarded:
            set_door(original)


@contextmanager
def _failures_untold() -> Iterator[None]:
    """Context in which PyTorch does not log an op that fails on stand-ins: that is told by whoever traces."""
    log = logging.getLogger(fake_tensor.__name__)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def with_numbers(value: Any) -> Any:
    """A value with numbers for the symbolic sizes in it; that they are these becomes a guard."""
    return _pytree.tree_map_only(torch.SymInt, int, value)


def is_size_arithmetic(target: Any) -> bool:
    """Whether a call of a lowered graph computes with sizes: `aten.sym_size.int`, `operator.mul`."""
    if isinstance(target, torch._ops.OpOverload):
        return target.overloadpacket in _SIZE_READS
    module = getattr(target, "__module__", "")
    return module in ("_operator", "math", "torch") and target is not operator.getitem


_SIZE_READS = frozenset({aten.sym_size, aten.sym_stride, aten.sym_storage_offset, aten.sym_numel})


def is_aten_call(target: Any) -> bool:
    """Whether a graph node's target is one overload of an operator."""
    return isinstance(target, torch._ops.OpOverload)


def is_literal(node: torch.fx.Node) -> bool:
    """Whether a constant of a graph is one that the program wrote down (`torch.tensor([1.0])`), copied when used."""
    return bool(node.users) and all(user.target is aten.lift_fresh_copy.default for user in node.users)


def viewed_argument(node: torch.fx.Node) -> torch.fx.Node | None:
    """What a graph node's result is a view of, or is itself, by the operator's schema; None for a new tensor."""
    if node.target is operator.getitem:
        return node.args[0] if isinstance(node.args[0], torch.fx.Node) else None
    if not isinstance(node.target, torch._ops.OpOverload) or returns_new_tensors(node.target):
        return None
    return next((argument for argument in node.args if isinstance(argument, torch.fx.Node)), None)


def is_subclass(tensor: Any) -> bool:
    """Whether a tensor is made of others that only its class knows (DTensor)."""
    return is_traceable_wrapper_subclass(tensor)


# -- watching the stand-ins of a trace -----------------------------------------------------------------------

below_modes = torch._C._DisableTorchDispatch
"""Context in which no mode and no subclass is asked: C++ answers for itself."""
without_proxies = proxy_tensor.disable_proxy_modes_tracing
"""Context in which the tracer records no ops, nor comparisons of symbolic sizes."""
tree_leaves, tree_map_only = _pytree.tree_leaves, _pytree.tree_map_only


class UnnoticedMode(TorchDispatchMode):
    """A dispatch mode of which PyTorch takes no notice: compiled regions and higher-order ops go on as without it."""

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Not one of the user's."""
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """No reason for Dynamo to leave a function alone."""
        return True


def can_be_watched(value: Any) -> bool:
    """Whether a value is a stand-in whose alias is like it: strided, no view, and without a history."""
    return (
        type(value) is FakeTensor
        and value.layout is torch.strided
        and value.grad_fn is None
        and not value._is_view()
        and not value.is_nested
    )


def alias_that_asks(cls: type[FakeTensor], plain: FakeTensor) -> Any:
    """An alias of a stand-in, of a subclass, that asks Python for its metadata, from C++ too."""
    with below_modes():
        return torch.Tensor._make_subclass(  # type: ignore[call-arg]  # the stub lacks two of its arguments
            cls,
            plain,
            plain.requires_grad,
            dispatch_sizes_strides_policy="sizes",
            dispatch_device=True,
            dispatch_layout=True,
            device_for_backend_keys=plain.fake_device,
        )


def is_called(operator: Any, frame: FrameType | None) -> bool:
    """Whether somebody has called an op by its name, by the frames at its arrival in Python.

    Args:
        operator: the op.
        frame: the innermost frame to look at.
    """
    while frame is not None and frame.f_code.co_filename in _AROUND_MODES:
        frame = frame.f_back
    called = frame is not None and frame.f_code is torch._ops.OpOverload.__call__.__code__
    return called and frame is not None and frame.f_locals.get("self") is operator


def is_symbolic(value: Any) -> bool:
    """Whether a number, or one of several, is not known yet."""
    return any(isinstance(number, torch.SymInt) for number in (value if isinstance(value, tuple) else (value,)))


def graph_node_of(tracer: Any, tensor: torch.Tensor) -> torch.fx.Node | None:
    """The graph node whose output a stand-in is in a tracer; None where it has none."""
    slot = tracer.fx_tracer.tensor_tracker.get(tensor)
    return None if slot is None else slot.proxy.node


def share_proxy(tracer: Any, source: torch.Tensor, target: torch.Tensor) -> None:
    """Let a tensor stand for what another stands for in an fx tracer; nothing if that one stands for nothing."""
    slot = tracer.tensor_tracker.get(source)
    if slot is not None:
        tracer.tensor_tracker[target] = slot


def tracer_at_work() -> Any:
    """The fx tracer that records ops at this moment; None where none does."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return None if mode is None else mode.tracer


def carries_dispatch(code: CodeType) -> bool:
    """Whether a frame of torch's only carries a call from C++ to Python and back."""
    return code.co_filename.startswith(_DISPATCH)


_AROUND_MODES = tuple(str(Path(torch.__file__).parent / path) for path in ("_compile.py", "_dynamo/eval_frame.py"))
_DISPATCH = _AROUND_MODES + tuple(
    str(Path(torch.__file__).parent / path)
    for path in (
        "_ops.py",
        "_subclasses/",
        "autograd/graph.py",
        "fx/experimental/proxy_tensor.py",
        "utils/_python_dispatch.py",
        "utils/_pytree.py",
    )
)

# -- where a node comes from ---------------------------------------------------------------------------------

sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""The number that the next autograd node made in this thread will get."""

jit_tracing_state = torch._C._get_tracing_state
"""The state of `torch.jit.trace` in this thread; None outside of it. It names values after variables in the frames."""

_NO_NUMBER = 2**64 - 1


def number_of(node: Any) -> int | None:
    """The sequence number that an autograd node drew when it was made; None for accumulations, which draw none."""
    number: int = node._sequence_nr()
    return None if number == _NO_NUMBER else number


def put_mode_below(mode: Any) -> None:
    """Put a TorchFunctionMode below all others of this thread, so that theirs come and go as if it were not there.

    Torch's own device mode (`set_default_device`) stays below it, for that one insists on the lowest place.
    """
    above = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    below = [above.pop()] if above and isinstance(above[-1], DeviceContext) else []
    for each in (*below, mode, *reversed(above)):
        torch._C._push_on_torch_function_stack(each)


def take_mode_out(mode: Any) -> bool:
    """Take a TorchFunctionMode out of this thread's stack, wherever it stands; False where it does not."""
    stack = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    for each in reversed(stack):
        if each is not mode:
            torch._C._push_on_torch_function_stack(each)
    return any(each is mode for each in stack)


def has_compiled() -> bool:
    """Whether Dynamo has compiled anything in this process since it was last reset."""
    return convert_frame.FRAME_COUNTER > 0


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether calls of a module go through `torch.compile`."""
    forward = getattr(module, "forward", None)
    return (
        isinstance(module, eval_frame.OptimizedModule)
        or module._compiled_call_impl is not None
        or (hasattr(forward, "_torchdynamo_orig_callable") and not hasattr(forward, "_torchdynamo_disable"))
    )


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """The module behind what `torch.compile(module)` returns; any other as it is."""
    return module._orig_mod if isinstance(module, eval_frame.OptimizedModule) else module


set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
"""Sets who is asked before a Python frame runs (None: nobody), and returns who was; Dynamo, inside a compiled call."""

leave_frame_alone = eval_frame.skip_code
"""Have Dynamo run frames of this code as they are; frames below them are still its business."""


def around_compilations(context: Callable[[], AbstractContextManager[None]]) -> Callable[[], None]:
    """From now on Dynamo traces and compiles inside contexts of ours; returns what ends that."""
    handler, callbacks = callback_handler, callback_handler.install_callbacks

    @contextmanager
    def install_callbacks(*args: Any, **options: Any) -> Iterator[None]:
        with context(), callbacks(*args, **options):
            yield

    # On the instance, and not as one of its callbacks: `torch._dynamo.reset()` forgets those.
    end_callbacks = _replacing(handler, "install_callbacks", install_callbacks)
    trace = getattr(convert_frame, "trace_frame", None)
    if trace is None:  # before 2.9
        return end_callbacks

    def trace_frame(*args: Any, **options: Any) -> Any:
        with context():
            return trace(*args, **options)

    # Strict exports and ahead-of-time compilation trace without those callbacks.
    end_trace = _replacing(convert_frame, "trace_frame", trace_frame)

    def end() -> None:
        end_trace()
        end_callbacks()

    return end


def at_compile_requests(wanted: Callable[[Any], Any]) -> Callable[[], None]:
    """From now on `torch.compile(f)` compiles `wanted(f)`; returns what ends that."""
    context = eval_frame._TorchDynamoContext
    original = context.__call__

    def __call__(self: Any, fn: Any) -> Any:  # noqa: N807  # it stands for one
        return original(self, wanted(fn))

    return _replacing(context, "__call__", __call__)


def at_compiled_regions(told: Callable[[int, bool], None]) -> Callable[[], None]:
    """From now on `told(frame, on)` is called where Dynamo is switched on or off in a thread; returns what ends that.

    `frame` is the id of the frame that switches. The one that switched on is there until it switches back.
    """
    original = eval_frame._maybe_set_eval_frame

    def maybe_set_eval_frame(callback: Any) -> Any:
        told(id(sys._getframe(1)), callback is not None and callback is not False)
        return original(callback)

    return _replacing(eval_frame, "_maybe_set_eval_frame", maybe_set_eval_frame)


def _replacing(holder: Any, name: str, function: Any) -> Callable[[], None]:
    """Put a function in another's place; returns what puts that back, unless somebody has put theirs on top."""
    own, original = name in vars(holder), getattr(holder, name)
    setattr(holder, name, function)

    def end() -> None:
        if vars(holder).get(name) is not function:
            return
        if own:
            setattr(holder, name, original)
        else:
            delattr(holder, name)

    return end


# -- what a node holds ---------------------------------------------------------------------------------------

without_any_torch_function = torch._C.DisableTorchFunction
"""Context in which neither a TorchFunctionMode nor a subclass's `__torch_function__` is asked."""

PACKED = object()
"""Stands for a saved tensor that a hook of the user's has packed: only that hook can tell what it is."""

TELLS_PACKED = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
"""Whether this torch tells whether a saved tensor is packed; 2.8 does not, and to read one there may call a hook."""

_RAW, _SAVED = "_raw_saved_", "_saved_"


def saved_values(node: Any) -> Iterator[tuple[str, Any, Any]]:
    """(field, tensor or PACKED or None, the autograd node that made it) of all that an autograd node has saved.

    Nothing of a node that was freed, and nothing in torch 2.8. No hook is called. A tensor that was changed in place
    since, which the engine would refuse, is given as it is, without its maker.
    """
    for attribute in dir(node) if TELLS_PACKED else ():
        if attribute.startswith(_RAW):
            try:
                raw = getattr(node, attribute)
            except RuntimeError:  # freed
                continue
            yield from _saved_field(node, attribute.removeprefix(_RAW), raw)


def _saved_field(node: Any, name: str, raw: Any) -> Iterator[tuple[str, Any, Any]]:
    several = isinstance(raw, list | tuple)
    entries = raw if several else [raw]
    packed = any(getattr(entry, "unpack_hook", None) is not None for entry in entries)
    label, attribute = ("saved_tensors",) * 2 if is_python_function(node) else (name, _SAVED + name)
    values = None if packed else _unpacked(node, attribute)
    if not several or values is None:
        values = [values] * len(entries)
    for position, (entry, value) in enumerate(zip(entries, values, strict=True)):
        maker = value.grad_fn if isinstance(value, torch.Tensor) else None
        yield f"{label}[{position}]" if several else label, _value(entry) if value is None else value, maker


def _unpacked(node: Any, attribute: str) -> Any:
    """A field as the backward will see it, with its history; None where the engine would refuse it."""
    try:
        return getattr(node, attribute)
    except RuntimeError:
        return None


def _value(entry: Any) -> Any:
    if getattr(entry, "unpack_hook", None) is not None:
        return PACKED
    try:
        return entry.data
    except (AttributeError, RuntimeError):  # an optional tensor that is not there
        return None


def stashed_values(node: Any) -> Iterator[tuple[str, Any]]:
    """(attribute, tensor) of what a Python Function keeps on its `ctx` beside `save_for_backward`."""
    for name, value in list(getattr(node, "__dict__", {}).items()):
        if isinstance(value, torch.Tensor):
            yield name, value


def storages_of(tensor: Any) -> tuple[tuple[int, int], ...]:
    """(identity, bytes) of each storage behind a tensor; several for a sparse one or a wrapper subclass, or none."""
    if is_traceable_wrapper_subclass(tensor):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    elif tensor.layout is torch.sparse_coo:
        inner = [tensor._indices(), tensor._values()]
    elif tensor.layout is not torch.strided:
        return ()
    else:
        try:
            storage = tensor.untyped_storage()
        except RuntimeError:  # functorch's wrappers have none
            return ()
        return ((storage._cdata, storage.nbytes()),)
    return tuple(found for part in inner if isinstance(part, torch.Tensor) for found in storages_of(part))


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """A tensor's shape; empty for a nested tensor, which has none."""
    return () if tensor.is_nested else tuple(tensor.shape)


def gradient_spec(node: Any, position: int) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of a gradient that flows into an autograd node; None where the forward op left none."""
    try:
        return input_metadata(node, position)
    except (AttributeError, RuntimeError):  # an undefined output; a nested tensor, which has no shape
        return None


def aot_placeholders(node: Any) -> tuple[str, ...]:
    """Names in a compiled region's backward graph of what its forward saved; empty where the graph is not at hand."""
    info = getattr(node._forward_cls, "_lazy_backward_info", None)
    module = getattr(info, "bw_module", None)
    if module is None:
        return ()
    return tuple(found.name for found in module.graph.find_nodes(op="placeholder"))[len(node.symints) :]


# -- running a graph elsewhere -------------------------------------------------------------------------------

# By number, as c10/core/ScalarType.h counts them; torch.bits* and the integers below 8 bits cannot have gradients.
DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4"),
    *("bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64"),
    *(f"uint{bits}" for bits in range(1, 8)),
    *(f"int{bits}" for bits in range(1, 8)),
    *("float8_e8m0fnu", "float4_e2m1fn_x2"),
)
_WITH_DIGITS = ("float16", "float32", "float64", "complex32", "complex64", "complex128", "bfloat16")
SCALAR_TYPES = {number: getattr(torch, name) for number, name in enumerate(DTYPES) if name in _WITH_DIGITS}
"""The numbers that a graph holds for dtypes (c10/core/ScalarType.h). RetargetMode in it the same number is a dim or a
size: what it means can be told by its place alone."""

_OPTIONS_DTYPE, _METADATA_GRAD_DTYPE = 3, 3


def is_validate_outputs(target: Any) -> bool:
    """Whether a graph node's target is the engine's check of a node's gradients."""
    return isinstance(target, compiled_autograd.Op) and target.__name__ == "validate_outputs"


def with_output_dtypes(metadata: Any, changed: Callable[[torch.dtype], torch.dtype]) -> Any:
    """The second argument of `validate_outputs` with other dtypes.

    It is a list of None or `((requires_grad, memory_format, device, dtype, layout, pinned), sizes, is_subclass[,
    grad_dtype])` (`IValuePacker<InputMetadata>` in torch/csrc/dynamo/compiled_autograd.h; the last since torch 2.10).
    """

    def other(number: Any) -> Any:
        return _scalar_type(changed(SCALAR_TYPES[number])) if number in SCALAR_TYPES else number

    def one(entry: Any) -> Any:
        options, *rest = entry
        options = tuple(other(item) if place == _OPTIONS_DTYPE else item for place, item in enumerate(options))
        return (
            options,
            *(other(item) if place == _METADATA_GRAD_DTYPE else item for place, item in enumerate(rest, 1)),
        )

    return [None if entry is None else one(entry) for entry in metadata]


def _scalar_type(dtype: torch.dtype) -> int:
    return next(number for number, known in SCALAR_TYPES.items() if known is dtype)


def attributes_of(ctx: Any) -> dict[str, Any]:
    """What a Python Function has hung on its `ctx` by name, tensors saved by `save_for_backward` not among it."""
    return dict(getattr(ctx, "__dict__", {}))


def forget_code_of(graph: torch.fx.GraphModule) -> None:
    """Have Dynamo let go of what it has compiled of one graph: it would keep that, and the graph, for good."""
    eval_frame.remove_from_cache(graph.forward)


@contextmanager
def compiling() -> Iterator[None]:
    """A context for compiling graphs of ours: the user's settings do not hinder it, and PyTorch's counters stay."""
    counters = {name: counter.copy() for name, counter in dynamo_utils.counters.items()}
    frames, compiles = convert_frame.FRAME_COUNTER, convert_frame.FRAME_COMPILE_COUNTER.copy()
    # Automatic dynamic shapes: to Dynamo all captured graphs are one function, called with other sizes each time.
    settings = ("suppress_errors", "compiled_autograd", "disable", "automatic_dynamic_shapes")
    config = torch._dynamo.config.patch(dict.fromkeys(settings, False))
    try:
        with config, torch.compiler.set_stance("default"):
            yield
    finally:
        dynamo_utils.counters.clear()
        dynamo_utils.counters.update(counters)
        convert_frame.FRAME_COUNTER = frames
        convert_frame.FRAME_COMPILE_COUNTER.clear()
        convert_frame.FRAME_COMPILE_COUNTER.update(compiles)


def operators_of(function: Callable[..., Any], tensors: Sequence[torch.Tensor], mode: Any) -> torch.fx.GraphModule:
    """The graph of the operators that a function runs on these tensors, as a dispatch mode lets them through."""

    def inside(*given: torch.Tensor) -> Any:
        with mode:
            return function(*given)

    # A number that PyTorch has wrapped in a tensor would be traced as a number; a copy of it is a tensor.
    detached = [tensor.detach() if tensor.dim() else tensor.detach().clone() for tensor in tensors]
    made: torch.fx.GraphModule = proxy_tensor.make_fx(inside, _allow_non_fake_inputs=True)(*detached)
    return made
