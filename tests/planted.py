"""Code that does during a trace what no code should: reads the tensors that are traced, or computes with them.

`planted` puts it into a callback of PyTorch's tracer, which calls it with what it hands out for one autograd node.
"""

# a lambda has a line of its own to be found at

from __future__ import annotations

import contextlib
import copy
import functools
import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch._dynamo import compiled_autograd
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from cabw_viz.tracing.tracer import WatchingTracer
from tests.captures import Twice

aten, prim = torch.ops.aten, torch.ops.prim
TRACER = compiled_autograd.AutogradCompilerInstance


@contextlib.contextmanager
def planted(action: Callable[[Any], Any], tensor: str = "dummy", *, proxies: bool = True) -> Iterator[list[Any]]:
    """The tracer of `tanh_twice` calls `action` with a tensor that it has handed out, while it is at a node.

    Args:
        action: what is planted.
        tensor: `dummy`, which TanhBackward0 has made; `function`, what a Function of Python has made, whose sizes are
            symbolic; `leaf`, the lifted leaf, at TanhBackward0.
        proxies: False for a place in which the tracer records no ops, as it does around its own.

    Yields:
        What `action` returned or raised, as text.
    """
    outcome: list[Any] = []
    leaves: list[Any] = []

    def act(given):
        if outcome:
            return
        try:
            with contextlib.nullcontext() if proxies else proxy_tensor.disable_proxy_modes_tracing():
                outcome.append(described(action(given)))
        except BaseException as error:
            outcome.append(f"{type(error).__name__}: {without_cpp(error)}")
            raise

    def apply_functional(made, fn_name, *_):
        if fn_name == "TanhBackward0" and tensor != "function":
            act(made[0] if tensor == "dummy" else leaves[0])

    def proxy_call_backward(made, *_):
        if tensor == "function":
            act(made[0])

    def begin_capture(made, *_):
        leaves.extend(given for given in made[1] if given.requires_grad and given.is_leaf)

    with pytest.MonkeyPatch.context() as patch:
        for then in (apply_functional, proxy_call_backward):
            patch.setattr(TRACER, then.__name__, followed_by(getattr(TRACER, then.__name__), then))
        patch.setattr(WatchingTracer, "begin_capture", followed_by(WatchingTracer.begin_capture, begin_capture))
        yield outcome


def followed_by(callback: Callable[..., Any], then: Callable[..., None]) -> Callable[..., Any]:
    """A tracer's callback, and something after it that sees its result and its arguments; its signature stays."""

    @functools.wraps(callback)
    def both(self, *args):
        made = callback(self, *args)
        then(made, *args)
        return made

    return both


def without_cpp(error: BaseException) -> str:
    """A message without the frames of C++ that some have."""
    return str(error).partition("\nException raised from")[0]


def tanh_twice():
    """A backward with the nodes that `planted` waits for."""
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=True)
    (Twice.apply(x).tanh() * 2).sum().backward()


def described(value: Any) -> str:
    """A result, such that two runs can be compared; not by reading the tensors that are watched."""
    if isinstance(value, torch.Tensor):
        value = getattr(value, "inner_fake", value)
        strides = value.stride() if value.layout is torch.strided else None
        return f"{type(value).__name__} {tuple(value.shape)} {strides} {value.dtype} {value.device}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(described, value))})"
    return repr(value)


def line_of(action: Callable[..., Any]) -> str:
    """The place of a function that fits in a line."""
    code = action.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


READS: dict[str, tuple[Callable[[Any], Any], dict[str, int]]] = {
    "size": (lambda d: d.size(), {"size": 1}),
    "shape": (lambda d: d.shape, {"size": 1}),
    "one size": (lambda d: d.size(1), {"dim": 1, "size": 1}),
    "len": (lambda d: len(d), {"dim": 1, "size": 1}),
    "stride": (lambda d: d.stride(), {"stride": 1}),
    "storage_offset": (lambda d: d.storage_offset(), {"storage_offset": 1}),
    "numel": (lambda d: d.numel(), {"numel": 1}),
    "nelement": (lambda d: d.nelement(), {"numel": 1}),
    "dim": (lambda d: d.dim(), {"dim": 1}),
    "ndim": (lambda d: d.ndim, {"dim": 1}),
    "dtype": (lambda d: d.dtype, {"dtype": 1}),
    "itemsize": (lambda d: d.itemsize, {"dtype": 1}),
    "element_size": (lambda d: d.element_size(), {"dtype": 1}),
    "is_floating_point": (lambda d: d.is_floating_point(), {"dtype": 1}),
    "is_complex": (lambda d: d.is_complex(), {"dtype": 1}),
    "device": (lambda d: d.device, {"device": 1}),
    "is_cuda": (lambda d: d.is_cuda, {"device": 1}),
    "get_device": (lambda d: d.get_device(), {"device": 1}),
    "layout": (lambda d: d.layout, {"layout": 1}),
    "is_sparse": (lambda d: d.is_sparse, {"layout": 1}),
    "is_contiguous": (lambda d: d.is_contiguous(), {"contiguity": 1}),
    "channels_last": (lambda d: d.is_contiguous(memory_format=torch.channels_last), {"contiguity": 1}),
    "several": (lambda d: (d.shape, d.shape, d.dtype, d.device), {"size": 2, "dtype": 1, "device": 1}),
    "nothing": (lambda d: (d.requires_grad, d.grad_fn, d.is_leaf), {}),
}
"""Reads of metadata by Python: the attributes as `Touch` names them, in order, and how often."""

OPS: dict[str, tuple[Callable[[Any], Any], dict[str, int]]] = {
    "mul": (lambda d: d * 2, {"aten.mul.Tensor": 1}),
    "in place": (lambda d: d.mul_(2), {"aten.mul_.Tensor": 1}),
    "out": (lambda d: torch.add(d, d, out=d), {"aten.add.out": 1}),
    "in a list": (lambda d: torch.cat([d, d]), {"aten.cat.default": 1}),
    "keyword": (lambda d: aten.mul.Tensor(torch.ones(1), other=d), {"aten.mul.Tensor": 1}),
    "same size": (lambda d: torch.is_same_size(d, d), {"aten.is_same_size.default": 1}),
    "query by name": (lambda d: aten.size.default(d), {"size": 1}),
    # C++ of composite ops, which asks for sizes before it calls ops of its own
    "flatten": (
        lambda d: d.flatten(),
        {"dim": 5, "size": 1, "contiguity": 1, "aten.view.default": 1, "device": 1},
    ),
    "linear": (
        lambda d: torch.nn.functional.linear(d, torch.ones(2, 123456789)),
        {"dim": 2, "aten.mm.default": 1},
    ),
    "item": (lambda d: d.item(), {"numel": 1}),
    # reads of values
    "equal": (lambda d: torch.equal(d, d), {"aten.equal.default": 1, "data": 1}),
    "nonzero": (lambda d: d.nonzero(), {"device": 1, "aten.nonzero.default": 1, "data": 1}),
}
"""Ops, and reads by the C++ in front of them (read off torch 2.13)."""


def under_a_mode(d):
    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Passing():
        return d + 1


def with_its_own_mode(d):
    with d.fake_mode:
        return d * 2


def with_attributes(d):
    d.mine = 3
    return d.mine, hasattr(d, "mine"), hasattr(d, "other")


def other_data(d):
    d.data = torch.zeros(4)
    return d.shape, d.dim(), d.data.shape


def traced_again(d):
    return proxy_tensor.make_fx(lambda x: x.t() * 2)(d).code


def proxy_of(d):
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return proxy_tensor.get_proxy_slot(d, mode.tracer).proxy.node.name


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    name.replace(" ", "_"): action for name, (action, _) in (READS | OPS).items()
} | {
    # attributes that Python has of a tensor
    "type": lambda d: d.type(),
    "nbytes": lambda d: d.nbytes,
    "names": lambda d: d.names,
    "base": lambda d: (d._base, d._is_view(), d._version, d.grad),
    "conj": lambda d: (d.is_conj(), d.is_neg(), d.is_inference(), d.is_shared(), d.is_pinned()),
    "classes": lambda d: (type(d).__name__, str(type(d)), isinstance(d, torch._subclasses.FakeTensor)),
    "fake": lambda d: (type(d.fake_mode).__name__, d.fake_device, d.constant, d.item_memo),
    "identity": lambda d: (hash(d) == id(d), weakref.ref(d)() is d, _pytree.tree_leaves([d])[0] is d),
    "no_such_attribute": lambda d: d.no_such_attribute,
    "own_attributes": with_attributes,
    "repr": lambda d: (repr(d), str(d), f"{d}"),
    "numel_function": lambda d: (torch.numel(d), torch.is_floating_point(d), torch.result_type(d, 1)),
    "prims": lambda d: torch._prims_common.suggest_memory_format(d),
    "proxy_of": proxy_of,
    # values
    "values": lambda d: d.tolist(),
    "numpy": lambda d: d.numpy(),
    "bool": lambda d: bool(d),
    "float": lambda d: float(d),
    "any": lambda d: bool(d.any()),
    "allclose": lambda d: torch.allclose(d, d),
    "unique": lambda d: d.unique(),
    "mask": lambda d: d[d > 0],
    "memory": lambda d: (d.data_ptr(), d.untyped_storage().nbytes()),
    "dlpack": lambda d: torch.utils.dlpack.to_dlpack(d),
    "array_interface": lambda d: d.__cuda_array_interface__,
    # views and copies
    "view": lambda d: (d.view(-1), d.t(), d.permute(1, 0), d.mT, d.movedim(0, 1), d.ravel(), d.reshape(-1)),
    "view_of_view": lambda d: d.t().t().flatten().stride(),
    "index": lambda d: (d[0:0], d.select(1, 5), d.narrow(1, 0, 4), d[:, 3], d[..., None]),
    "index_beyond": lambda d: d[0],
    "pieces": lambda d: (d.split(100000000, 1), d.chunk(2, 1), d.unbind(0), list(d)),
    "expand": lambda d: (d.expand(5, 0, 123456789), d.expand_as(d), torch.broadcast_tensors(d, torch.ones(1))),
    "clone": lambda d: (d.clone(), d.detach(), d.contiguous() is d, d.cpu() is d, d.double(), d.to("meta")),
    "like": lambda d: (torch.zeros_like(d), d.new_zeros(2), torch.empty_like(d), torch.rand_like(d)),
    "other_dtype": lambda d: (d.view(torch.int32), d.type_as(torch.ones(1, dtype=torch.double)), d.to(torch.half)),
    "complex": lambda d: (torch.complex(d, d).conj(), torch.view_as_real(torch.complex(d, d))),
    "sparse": lambda d: d.to_sparse(),
    "nested": lambda d: torch.nested.nested_tensor([d]),
    "copy": lambda d: copy.copy(d),
    "deepcopy": lambda d: copy.deepcopy(d),
    "pickle": lambda d: pickle.dumps(d),
    "save": lambda d: torch.save(d, io.BytesIO()),
    "parameter": lambda d: torch.nn.Parameter(d),
    "as_subclass": lambda d: d.as_subclass(torch.Tensor),
    "swap": lambda d: torch.utils.swap_tensors(d, d.clone()),
    "clone_preserve_strides": lambda d: torch._prims_common.clone_preserve_strides(d),
    # in place: on values, and on the metadata themselves
    "written": lambda d: (d.add_(1) is d, d.zero_(), d.fill_(2.0), d.clamp_(0), d.copy_(torch.ones(1)), d._version),
    "item_set": lambda d: d.__setitem__(slice(None), 0.0),
    "foreach": lambda d: (torch._foreach_add([d, d], 1), torch._foreach_add_([d], 1)),
    "transposed": lambda d: (d.t_() is d, d.shape, d.stride(), d.is_contiguous(), d.transpose_(0, 1).shape),
    "unsqueezed": lambda d: (d.unsqueeze_(0), d.shape, d.dim(), d.numel(), d.squeeze_(0), d.shape),
    "resized": lambda d: (d.resize_(2, 3), d.shape, d.stride(), d.numel(), d.storage_offset()),
    "restrided": lambda d: (d.as_strided_((0, 3), (3, 1)), d.shape, d.is_contiguous()),
    "set": lambda d: (d.set_(torch.zeros(2)), d.shape),
    "other_data": other_data,
    "requires_grad": lambda d: (d.detach_() is d, d.requires_grad_().requires_grad, d.is_leaf),
    # arithmetic
    "reduce": lambda d: (d.sum(), d.sum(0), d.mean(1), d.norm(), d.std(), d.var(0), d.cumsum(0)),
    "reduce_nothing": lambda d: d.max(),
    "matmul": lambda d: (torch.matmul(d, d.t()), torch.einsum("ij->j", d), torch.tensordot(d, d, 2), torch.inner(d, d)),
    "rearrange": lambda d: (d.roll(1, 0), d.repeat(2, 1), d.tile(2), d.sort(0), d.topk(0, 0), torch.stack([d, d])),
    "choose": lambda d: (torch.where(d > 0, d, d), d.tril(), d.index_select(0, torch.zeros(0, dtype=torch.long))),
    "layers": lambda d: (d.softmax(0), torch.nn.functional.pad(d, (1, 1)), torch.nn.functional.gelu(d)),
    "out_of_nothing": lambda d: torch.cat([d, d], out=torch.empty(0)),
    "into_a_plain_one": lambda d: torch.zeros(0, 123456789).copy_(d),
    "wrong_size": lambda d: d + torch.zeros(7),
    "wrong_view": lambda d: d.view(7),
    "wrong_matmul": lambda d: d @ d,
    "wrong_type": lambda d: d + "x",
    "wrong_dimension": lambda d: d.size(5),
    "convolution": lambda d: torch.conv1d(d, torch.ones(1, 1, 1)),
    "batch_norm": lambda d: torch.nn.functional.batch_norm(d, None, None, training=True),
    # PyTorch's other ways to call a function
    "dispatched_reads": lambda d: (aten.sym_size.int(d, 0), aten.sym_numel.default(d), aten.size.default(d)),
    "dispatched_flags": lambda d: (aten.dim.default(d), prim.device.default(d), prim.layout.default(d)),
    "dispatched_contiguity": lambda d: (
        aten.is_contiguous.default(d),
        aten.is_contiguous.memory_format(d, torch.contiguous_format),
        aten.is_strides_like_format.default(d, torch.contiguous_format),
        aten.is_non_overlapping_and_dense.default(d),
    ),
    "dispatched_strides": lambda d: aten.stride.default(d),
    "mode": under_a_mode,
    "own_mode": with_its_own_mode,
    "make_fx": traced_again,
    "cond_of_another": lambda d: torch.cond(torch.tensor(True), torch.sin, torch.cos, (torch.ones(2),)),
    "vmap": lambda d: torch.vmap(lambda x: x * 2)(d.t()),
    "jvp": lambda d: torch.func.jvp(torch.sin, (d,), (d,)),
    "grad": lambda d: torch.func.grad(lambda x: x.sum())(d),
    "functionalize": lambda d: torch.func.functionalize(lambda x: x.mul(2))(d),
    "function": lambda d: Twice.apply(d),
    "checkpoint": lambda d: torch.utils.checkpoint.checkpoint(torch.sin, d, use_reentrant=False),
    "compile": lambda d: torch.compile(lambda x: x.sin(), backend="eager")(d),
    "hook": lambda d: d.register_hook(lambda g: g),
    "backward": lambda d: d.sum().backward(),
    "partial": functools.partial(torch.add, 1),
}
"""Programs, most of them senseless, that plain dummies run or refuse."""
