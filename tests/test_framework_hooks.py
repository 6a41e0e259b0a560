"""Hooks of training frameworks are known by the module of their function, whatever wraps it, and never run again."""

import functools
import types

import pytest
import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed.fsdp import _runtime_utils
from torch.distributed.fsdp._fully_shard._fsdp_param_group import RegisterPostBackwardFunction
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState, RegisterPreBackwardFunction
from torch.nn.parallel.distributed import DistributedDataParallel, _DDPSink

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.runtime.tensor_state import copy_of
from cabw_viz.torch_adapter.framework_hooks import framework_of, unknown_function_of
from tests.captures import capture_of, data, model


def from_module(module, source, name="hook", **values):
    """A function as a package of that name would have it."""
    namespace = {"__name__": module, "torch": torch, **values}
    exec(source, namespace)  # noqa: S102  # a function whose module is not installed
    return namespace[name]


HOOK = "def hook(grad):\n    raise AssertionError('it must not run again')"


def in_multi_grad_hook(function):
    """What `register_multi_grad_hook` leaves on a tensor, with the function in its closure."""
    leaf = torch.ones(2, requires_grad=True)
    register_multi_grad_hook([leaf], function)
    return next(iter(leaf._backward_hooks.values()))


def test_frameworks_are_known_through_partials_methods_and_wrappers():
    state = object.__new__(FSDPState)
    assert framework_of(state._pre_backward) == "FSDP"
    assert framework_of(functools.partial(_runtime_utils._pre_backward_hook, None, None, None)) == "FSDP"
    assert (
        framework_of(torch.utils.hooks.unserializable_hook(functools.partial(_runtime_utils._post_backward_hook)))
        == "FSDP"
    )
    assert (
        framework_of(in_multi_grad_hook(functools.partial(_runtime_utils._post_backward_reshard_only_hook))) == "FSDP"
    )
    assert framework_of(DistributedDataParallel._fire_reducer_autograd_hook) == "DistributedDataParallel"
    for module, framework in {
        "deepspeed.runtime.zero.stage3": "DeepSpeed",
        "megatron.core.distributed.param_and_grad_buffer": "Megatron",
        "fairscale.nn.data_parallel.fully_sharded_data_parallel": "FairScale",
    }.items():
        assert framework_of(from_module(module, HOOK)) == framework


def test_hooks_of_the_users_own_and_of_dtensor_belong_to_no_framework():
    def own(grad):
        return grad * 2

    assert framework_of(own) == ""
    assert framework_of(functools.partial(own)) == ""
    assert framework_of(in_multi_grad_hook(own)) == ""
    assert framework_of(nn.Linear(2, 2)) == ""
    assert framework_of(from_module("deepspeedometer", HOOK)) == ""  # a name that only begins like one
    assert framework_of(from_module("torch.distributed.tensor.parallel._data_parallel_utils", HOOK)) == ""


@pytest.mark.parametrize("function", [RegisterPostBackwardFunction, RegisterPreBackwardFunction, _DDPSink])
def test_functions_of_frameworks_pass_gradients_on(function):
    stand_in = torch_adapter.without_framework(types.SimpleNamespace(_forward_cls=function))
    gradients = torch.ones(2), torch.zeros(3)
    if function is RegisterPreBackwardFunction:
        gradients = gradients[:1]
    assert torch_adapter.call_backward(stand_in, [], *gradients) == (None, *gradients)


def test_a_function_that_is_not_known_to_pass_gradients_on_is_refused():
    class Gathers(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    x = torch.ones(2, requires_grad=True)
    capture = capture_of({"x": x}, lambda: Gathers.apply(x).sum())
    assert unknown_function_of(types.SimpleNamespace(_forward_cls=Gathers)) == ""
    assert capture.parity().ok
    Gathers.__module__ = "deepspeed.runtime.zero.parameter_offload"
    with pytest.raises(CabwError, match=r"GathersBackward \(#2\) is a Function of DeepSpeed"):
        capture.parity()


def test_a_hook_of_a_framework_does_not_run_again_and_the_report_says_so():
    net, runs = model(), []
    hook = from_module("megatron.core.hooks", "def hook(grad):\n    runs.append(1)", runs=runs)

    def loss():
        out = net[0](data())
        out.register_hook(hook)
        return net[2](net[1](out)).square().sum()

    capture = capture_of(net, loss)
    (row,) = [each for node in capture.record.autograd_nodes for each in node.hooks]
    assert (row.name, row.framework) == ("hook", "Megatron")
    assert capture.record.frameworks == ("Megatron",)
    report = capture.parity()
    capture.replay(backend="aot_eager")
    capture.divergence()
    capture.lower()
    capture.audit()
    capture.times(1)
    assert runs == [1]  # in the user's own run
    assert report.ok
    assert "in the replay 1 hook of Megatron did not run" in str(report)
    assert "before they are reduced" in str(report)


def test_a_hook_of_the_users_own_runs_again_as_before():
    net, runs = model(), []

    def loss():
        out = net[0](data())
        out.register_hook(lambda grad: runs.append(1))
        return net[2](net[1](out)).square().sum()

    capture = capture_of(net, loss)
    report = capture.parity()
    assert len(runs) == 2
    assert "in the replay 1 hook ran again" in str(report)
    assert capture.record.frameworks == ()


# ------------------------------------------------------------------------------------------- callbacks in the engine


def queues():
    torch.autograd.Variable._execution_engine.queue_callback(lambda: None)


class Queueing:
    """A hook that is an object, and queues through a function of its own."""

    def __init__(self):
        self.runs = 0

    def __call__(self, grad):
        self.runs += 1
        queues()


def test_a_hook_that_queues_a_callback_is_refused_before_it_runs():
    net, hook = model(), Queueing()

    def loss():
        out = net[0](data())
        out.register_hook(hook)
        return net[2](net[1](out)).square().sum()

    capture = capture_of(net, loss)
    for call in (capture.replay, capture.parity, capture.divergence, capture.lower, capture.audit, capture.times):
        with pytest.raises(CabwError, match=r"has a hook that queues a callback in the engine") as error:
            call()
        assert 'hooks="drop"' in str(error.value)
    assert hook.runs == 1
    assert capture.parity(hooks="drop").ok


def test_queueing_is_seen_through_functions_that_a_hook_calls():
    def outer(grad):
        queues()

    assert torch_adapter.queues_callback(outer)
    assert torch_adapter.queues_callback(functools.partial(outer))
    assert not torch_adapter.queues_callback(lambda grad: grad * 2)
    assert not torch_adapter.queues_callback(torch.relu)


# ------------------------------------------------------------------------------------------------------ freed memory


def test_an_input_whose_memory_was_freed_is_refused_by_name():
    weight = torch.ones(3, requires_grad=True)
    memory = torch.ones(3)
    capture = capture_of({"weight": weight}, lambda: (weight * memory).sum())
    memory.untyped_storage().resize_(0)
    for call in (capture.replay, capture.parity, capture.lower):
        with pytest.raises(
            CabwError, match=r"the memory of inputs\[\d\] \(3,\), saved by MulBackward0 \(#2\) was freed"
        ):
            call()


def test_memory_is_only_gone_where_elements_lie_in_it():
    whole = torch.ones(4)
    assert not torch_adapter.is_freed(whole)
    assert not torch_adapter.is_freed(torch.ones(1).expand(1000))
    assert not torch_adapter.is_freed(torch.ones(0))
    assert not torch_adapter.is_freed(torch.ones(3, device="meta"))
    assert not torch_adapter.is_freed(torch.eye(3).to_sparse())
    whole.untyped_storage().resize_(8)
    assert torch_adapter.is_freed(whole)
    assert not torch_adapter.is_freed(whole.as_strided((2,), (1,)))


def test_a_snapshot_leaves_freed_memory_alone():
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    assert copy_of(freed) is freed
