"""A write to an input that no version counts: it is seen by the bits, whatever tensor it is, and never judged."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import cabw_viz
from cabw_viz import CabwError
from cabw_viz.runtime.bit_sums import bit_sums, has_same_bits
from cabw_viz.runtime.gradient_snapshots import fingerprint
from tests.captures import capture_of, capture_of_run, data, model

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int8,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


def sum_of(tensor):
    (bits,) = bit_sums([tensor])
    return bits


def is_seen(tensor, write):
    """Whether the sum is the same twice, and another after a write."""
    before = sum_of(tensor)
    assert before is not None
    assert has_same_bits(before, sum_of(tensor))
    write()
    return not has_same_bits(before, sum_of(tensor))


# ------------------------------------------------------------------------------------------------------------ the sums


@pytest.mark.parametrize("count", [1, 3, 8, 513, 5000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_write_to_the_last_element_is_seen(dtype, count):
    tensor = (torch.arange(count) % 2).to(dtype)
    assert is_seen(tensor, lambda: tensor[-1:].copy_(tensor[-1:] == 0))


def test_bits_count_and_not_values():
    nan, zero = torch.full((9,), float("nan")), torch.zeros(9)
    assert is_seen(nan, lambda: nan.view(torch.int32).fill_(0x7FC00001))
    assert nan.isnan().all()
    assert is_seen(zero, zero.neg_)


def test_elements_that_move_to_another_row_are_seen():
    tensor = torch.arange(4096.0)
    assert is_seen(tensor, lambda: tensor.copy_(tensor.flip(0)))


def test_views_show_their_own_elements_alone():
    whole = torch.randn(6, 8)
    part, column = whole[1:5, 2:7], whole.t()[3]
    assert not is_seen(part, lambda: whole[0, 0].add_(1))
    assert is_seen(part, lambda: whole[1, 2].add_(1))
    assert is_seen(column, lambda: whole[5, 3].add_(1))
    row = torch.ones(1, 5)
    assert is_seen(row.expand(1000, 5), lambda: row.mul_(2))
    flat = torch.randn(9)
    assert is_seen(flat[1:], lambda: flat[8].add_(1))  # not aligned to the eight bytes of a word
    values = torch.randn(4, dtype=torch.complex64)
    assert is_seen(values.conj(), lambda: values.mul_(2))
    assert is_seen(values.conj().imag, lambda: values.mul_(2))


def test_memory_behind_sparse_tensors_and_subclasses_is_read():
    coo, csr = torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()
    assert is_seen(coo, lambda: coo._values().mul_(2))
    assert is_seen(csr, lambda: csr.values().mul_(2))
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)], layout=torch.jagged)
    assert is_seen(jagged, lambda: jagged.values().mul_(2))
    two = TwoTensor(torch.ones(3), torch.ones(3))
    assert is_seen(two, lambda: two.b.add_(1))

    class Named(torch.Tensor):
        pass

    named = torch.ones(4).as_subclass(Named)
    assert is_seen(named, lambda: named.data.add_(1))


def test_what_cannot_be_read_has_no_sum():
    with FakeTensorMode():
        fake = torch.ones(3)
    quantized = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    others = fake, torch.empty(3, device="meta"), torch.eye(4).to_mkldnn(), quantized, None, 3
    assert bit_sums(others) == (None,) * len(others)
    wrapped = []
    torch.func.vmap(lambda row: (wrapped.append(sum_of(row)), row)[1])(torch.ones(3))
    assert wrapped == [None]
    assert not is_seen(torch.empty(0, 4), lambda: None)


def test_freed_memory_counts_as_changed():
    tensor = torch.ones(100)
    assert is_seen(tensor, lambda: tensor.untyped_storage().resize_(0))


def test_the_sums_run_below_modes_and_make_no_history():
    class Seen(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls.append(func)
            return func(*args, **kwargs or {})

    tensor = nn.Parameter(torch.ones(3))
    with Seen() as seen:
        bits = sum_of(tensor)
    assert not seen.calls
    assert not bits.requires_grad


def test_a_gradient_whose_memory_is_not_aligned_has_a_fingerprint():
    gradient = torch.randn(1030)[1:]
    assert fingerprint(gradient) == fingerprint(gradient.clone())


# --------------------------------------------------------------------------------------------------------- the refusal


def test_a_parameter_written_past_its_version_is_named():
    """Optimizers and initialisers of old write to `.data`."""
    net = model()
    capture = capture_of(net, lambda: net(data()).square().sum())
    assert capture.parity().ok
    net[2].weight.data.mul_(2)
    for call in (capture.parity, capture.replay, capture.divergence, capture.audit):
        with pytest.raises(CabwError, match=r"2\.weight .* holds other bits than when the backward was captured"):
            call()


def test_with_a_snapshot_the_write_does_not_matter():
    net = model()
    capture = capture_of(net, lambda: net(data()).square().sum(), snapshot=True)
    net[2].weight.data.mul_(2)
    assert capture.parity().ok


def test_a_write_in_the_run_itself_is_seen():
    """A hook that writes to a saved tensor past its version, before the node that saved it runs."""
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.register_hook(lambda g: (y.data.mul_(2), None)[1])
    capture = capture_of_run({"x": x}, y.sum().backward)
    assert torch.equal(x.grad, torch.ones(3).exp() * 2)  # what eager computes with it
    with pytest.raises(CabwError, match=r"saved by ExpBackward0 .* holds other bits"):
        capture.parity()


def test_what_a_hook_has_packed_is_checked_too():
    net, packed = model(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (packed.append(tensor), tensor)[1], lambda each: each):
        loss = net(data()).square().sum()
    capture = capture_of_run(net, loss.backward)
    assert capture.parity().ok
    result = next(tensor for tensor in packed if tensor.shape == (3, 8))  # of the tanh
    with torch.no_grad():
        result.mul_(2)  # a version counts it, but the engine compares none for what a hook has packed
    with pytest.raises(CabwError, match=r"has packed, saved by \w+Backward0 \(#\d\) \(3, 8\) holds other bits"):
        capture.parity()


@pytest.mark.parametrize("packed", [lambda t: t, lambda t: (t.device, {"value": [t]})], ids=["bare", "nested"])
def test_a_snapshot_copies_what_hooks_have_packed(packed):
    """As `save_on_cpu` packs on the CPU: the tensors themselves, parameters among them, which SGD then changes."""

    def unpack(each):
        return each if isinstance(each, torch.Tensor) else each[1]["value"][0]

    net = model()
    with torch.autograd.graph.saved_tensors_hooks(packed, unpack):
        loss = net(data()).square().sum()
    capture = capture_of_run(net, loss.backward, snapshot=True)
    reference = {name: each.grad.clone() for name, each in net.named_parameters()}
    torch.optim.SGD(net.parameters(), 0.5).step()
    assert all(torch.equal(each, reference[name]) for name, each in capture.replay().items())
    assert capture.parity().ok
    assert capture.divergence().ok


def test_running_statistics_of_a_later_forward_are_let_through_in_training_only():
    for training in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).train(training)
        capture = capture_of(net, lambda net=net: net(data()).square().sum())
        reference = {name: each.grad.clone() for name, each in net.named_parameters()}
        net.train()
        net(data())  # updates them, and no version counts it
        if training:
            assert capture.parity().ok
            assert all(torch.equal(each, reference[name]) for name, each in capture.replay().items())
        else:
            with pytest.raises(CabwError, match=r"1\.running_mean .* holds other bits"):
                capture.parity()


def test_a_workspace_that_each_run_overwrites_is_copied_for_it():
    """oneDNN's LSTM: its backward writes to a workspace that the forward has saved, and no version counts it."""
    torch.manual_seed(0)
    net = nn.LSTM(4, 8, num_layers=2, bidirectional=True)
    capture = capture_of(net, lambda: net(data())[0].square().sum())
    if not any(node.name == "MkldnnRnnLayerBackward0" for node in capture.record.autograd_nodes):
        pytest.skip("this build of torch has no oneDNN")
    assert capture._captured.state.arguments.scratch
    for _ in range(2):
        report = capture.parity()
        assert report.ok
        assert set(report.frame["verdict"]) == {"bitwise"}
        assert capture.divergence().ok
    # The kernels do overwrite it: without the copies, the second replay would not have the inputs of the first.
    workspaces = [capture._captured.state.arguments.inputs[i] for i in capture._captured.state.arguments.scratch]
    before = bit_sums(workspaces)
    object.__setattr__(capture._captured.state.arguments, "scratch", frozenset())
    capture.replay()
    assert not all(map(has_same_bits, before, bit_sums(workspaces)))
    with pytest.raises(CabwError, match=r"saved by MkldnnRnnLayerBackward0 .* holds other bits"):
        capture.replay()


def test_the_users_run_writes_to_the_workspace_as_ever():
    torch.manual_seed(0)
    net = nn.LSTM(4, 8)
    loss = net(data())[0].square().sum()
    expected = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    with cabw_viz.capture(net):
        loss.backward()
    assert all(torch.equal(each.grad, other) for each, other in zip(net.parameters(), expected, strict=True))
