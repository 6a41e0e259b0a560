"""Backwards of `torch.compile`'s default backend: from a cache on disk, with buffers that they overwrite."""

from __future__ import annotations

import contextlib
import shutil

import pytest
import torch
import torch._dynamo  # first, or the import below is circular
from torch import nn
from torch._functorch._aot_autograd import runtime_wrappers
from torch._inductor.utils import fresh_cache
from torch.overrides import TorchFunctionMode

import cabw_viz
from cabw_viz import torch_adapter
from cabw_viz.runtime.bit_sums import bit_sums, has_same_bits
from tests.captures import session_of

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")

CACHED = runtime_wrappers.CachedAutogradLazyBackwardCompileInfo


@pytest.fixture(autouse=True)
def _own_cache():
    """Caches on disk of its own for each test, and nothing compiled left in the process."""
    torch._dynamo.reset()
    with fresh_cache():
        yield
    torch._dynamo.reset()


def network():
    torch.manual_seed(0)
    layers = nn.Linear(16, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 32), nn.Sigmoid(), nn.Linear(32, 1)
    return nn.Sequential(*layers)


def batch():
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


def loss_of(net):
    return net(batch()).square().mean()


def gradients(net):
    return {name: each.grad.clone() for name, each in net.named_parameters()}


def eager_gradients(net):
    """By the uncompiled module, from zero."""
    net.zero_grad()
    loss_of(net).backward()
    return gradients(net)


def capture_of_compiled(net, **options):
    """The capture of a backward of the compiled module, made once more where the disk's cache is to be warm."""
    compiled = torch.compile(net)
    session = session_of(net, lambda: loss_of(compiled).backward(), **options)
    assert session.events["outcome"].tolist()[-1] == "captured"
    return session[-1]


def is_from_disk(capture):
    """Whether a capture's compiled region was compiled in an earlier run."""
    (ctx,) = (each for each in capture._captured.state.arguments.hooks if torch_adapter.is_aot_backward(each))
    return isinstance(ctx._forward_cls._lazy_backward_info, CACHED)


@contextlib.contextmanager
def wrong_backward(factor=1.02):
    """What the compiled backward returns first is wrong in the user's run."""
    run = runtime_wrappers.call_func_at_runtime_with_args

    def call(*args, **options):
        first, *rest = run(*args, **options)
        return [first * factor, *rest]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime_wrappers, "call_func_at_runtime_with_args", call)
        yield


def assert_judged_right(capture, right):
    """Parity and divergence find nothing, and both sides are eager's gradients but for rounding."""
    report, divergence = capture.parity(), capture.divergence()
    assert report.ok, str(report)
    assert divergence.ok, str(divergence)
    replayed = capture.replay()
    for name, gradient in right.items():
        torch.testing.assert_close(replayed[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_the_default_backend_is_captured_and_judged(warm):
    net = network()
    if warm:
        loss_of(torch.compile(net)).backward()
        torch._dynamo.reset()
        net.zero_grad()
    capture = capture_of_compiled(net)
    own = gradients(net)
    assert is_from_disk(capture) is warm
    right = eager_gradients(net)
    for name in right:
        torch.testing.assert_close(own[name], right[name], rtol=1e-4, atol=1e-6)
    assert_judged_right(capture, right)
    aot = next(node for node in capture.record.autograd_nodes if node.kind == "aot_backward")
    assert all(saved.aot_node for saved in aot.saved)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_a_wrong_compiled_backward_is_found(warm):
    net = network()
    if warm:
        loss_of(torch.compile(net)).backward()
        torch._dynamo.reset()
        net.zero_grad()
    with wrong_backward():
        capture = capture_of_compiled(net)
    wrong = gradients(net)
    right = eager_gradients(net)
    expected = {name for name in right if not torch.allclose(wrong[name], right[name], 1e-4, 1e-6)}
    assert expected
    frame = capture.parity().frame
    assert set(frame.loc[frame["verdict"] == "mismatch", "parameter"]) == expected
    assert capture.divergence().first.name == "CompiledFunctionBackward"


def test_the_run_overwrites_what_was_donated_and_the_capture_has_copies():
    net = network()
    compiled = torch.compile(net)
    loss = loss_of(compiled)
    ctx = loss.grad_fn
    while not torch_adapter.is_aot_backward(ctx):
        ctx = ctx.next_functions[0][0]
    donated = list(torch_adapter.donated_tensors(ctx))
    addresses, before = {each.data_ptr() for each in donated}, bit_sums(donated)
    capture = session_of(net, loss.backward)[0]
    assert not all(map(has_same_bits, before, bit_sums(donated)))  # else this test shows nothing
    arguments = capture._captured.state.arguments
    assert addresses.isdisjoint(each.data_ptr() for each in arguments.inputs)
    copies = [bits.tolist() for bits in arguments.bits]
    assert all(bits.tolist() in copies for bits in before)
    # What was not donated is kept as it is: the parameters.
    assert {each.data_ptr() for each in net.parameters()} <= {each.data_ptr() for each in arguments.inputs}
    assert_judged_right(capture, eager_gradients(net))


def test_without_the_copies_the_replay_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("cabw_viz.tracing.backward_trace.donated_inputs", lambda *_: frozenset())
    net = network()
    capture = capture_of_compiled(net)
    for call in (capture.parity, capture.divergence, capture.replay, capture.lower):
        with pytest.raises(cabw_viz.CabwError, match=r"saved by CompiledFunctionBackward \(#\d\) holds other bits"):
            call()


def test_modes_of_the_user_see_nothing_of_a_backward_that_is_deserialized():
    class Seen(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls.append(torch.overrides.resolve_name(func) or str(func))
            return func(*args, **kwargs or {})

    net = network()
    loss_of(torch.compile(net)).backward()
    torch._dynamo.reset()
    compiled, calls = torch.compile(net), []
    for block in (contextlib.nullcontext, lambda: cabw_viz.capture(net)):
        net.zero_grad()
        loss = loss_of(compiled)
        with block(), Seen() as seen:
            loss.backward()
        calls.append(seen.calls)
    assert calls[0] == calls[1]


def test_deserializing_calls_no_mode_of_the_user():
    class Seen(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    net = network()
    loss_of(torch.compile(net)).backward()
    torch._dynamo.reset()
    ctx = loss_of(torch.compile(net)).grad_fn
    while not torch_adapter.is_aot_backward(ctx):
        ctx = ctx.next_functions[0][0]
    assert isinstance(ctx._forward_cls._lazy_backward_info, CACHED)
    with Seen(), torch._C.DisableTorchFunction():
        names = torch_adapter.aot_placeholders(ctx)
    assert names
