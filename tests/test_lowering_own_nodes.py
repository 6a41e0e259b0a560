"""What PyTorch's own autograd nodes may not do in a trace: refused by name, or given numbers; never a crash."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from cabw_viz.errors import CabwError
from cabw_viz.replay.lowering.tracing import Tracing
from tests.captures import capture_of, leaf
from tests.test_corpus import on_the_version_read
from tests.test_lowering import assert_same_as_the_run

IN_USERS_CODE = """
import torch, cabw_viz
lengths = torch.tensor([3, 2, 1, 1])
class Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(lengths)
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        (counts,) = ctx.saved_tensors
        return g + torch.ops.aten._pack_padded_sequence_backward(g.new_ones(7, 2), [3, 4, 2], counts, True).sum()
x = torch.randn(5, 2, requires_grad=True)
with cabw_viz.capture({"x": x}) as session:
    Packed.apply(x).sum().backward()
try:
    session[0].lower(symbolic=True)
except cabw_viz.CabwError as error:
    print(error)
"""


def test_code_of_yours_that_reads_memory_is_refused_too():
    """As an extension in C++ does that is no operator of PyTorch's."""
    ran = subprocess.run(
        [sys.executable, "-c", IN_USERS_CODE], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"PackedBackward \(#2\), graph node \w+ leaves torch: RuntimeError", ran.stdout), ran.stdout


PACKED = """
import torch, cabw_viz
from torch.nn.utils.rnn import pack_padded_sequence
linear = torch.nn.Linear(4, 4)
with cabw_viz.capture(linear) as session:
    packed = pack_padded_sequence(linear(torch.randn(3, 7, 4)), torch.tensor([7, 5, 2]), batch_first=True)
    packed.data.square().sum().backward()
assert session[0].parity().ok
for symbolic in (True, False):
    try:
        session[0].lower(symbolic=symbolic)
    except cabw_viz.CabwError as error:
        print(error)
"""


def test_a_node_that_reads_memory_is_refused_and_the_process_goes_on():
    """`_pack_padded_sequence_backward` reads lengths through a pointer, which is null in a trace with symbols."""
    ran = subprocess.run([sys.executable, "-c", PACKED], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    refusals = re.findall(r"PackPaddedSequenceBackward0 \(#3\), graph node \w+ leaves torch: RuntimeError", ran.stdout)
    assert len(refusals) == 2, ran.stdout


def test_a_node_that_takes_numbers_alone_gets_them_and_the_rest_stays_symbolic():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))

    def capture(batch):
        model.zero_grad()
        x = torch.randn(batch, 1, 8, 8)

        def sampled():
            grid = functional.affine_grid(model(x).view(batch, 2, 3), (batch, 1, 8, 8), align_corners=False)
            return functional.grid_sample(x, grid, align_corners=False).square().mean()

        return capture_of(model, sampled)

    cap = capture(2)
    lowered = cap.lower(symbolic=True)
    assert_same_as_the_run(cap, lowered.gradients())
    assert lowered.guards
    with pytest.raises(CabwError, match=r"is 3 .*\n?Expected: 2, as when captured"):
        lowered.gradients(capture(3))


def test_symbols_are_given_up_where_that_helps(monkeypatch):
    """A node fails with symbols, and with numbers among its arguments: the captured sizes alone are the way out."""
    cap = capture_of(None, lambda: leaf(4, 3).sin().sum())
    original = Tracing.call_function

    def call_function(self, target, args, kwargs):
        if self._symbolic and getattr(target, "__name__", "").startswith("SinBackward"):
            raise RuntimeError("no symbols, please")
        return original(self, target, args, kwargs)

    monkeypatch.setattr(Tracing, "call_function", call_function)
    with pytest.raises(CabwError, match=r"SinBackward0 \(#\d\).* no symbols, please\.") as error:
        cap.lower(symbolic=True)
    assert error.value.try_.startswith("cap.lower(symbolic=False)")
    assert_same_as_the_run(cap, cap.lower(symbolic=False).gradients())
    monkeypatch.setattr(Tracing, "_symbolic", True, raising=False)
    monkeypatch.setattr(Tracing, "call_function", lambda *_: 1 / 0)
    with pytest.raises(CabwError, match=r"raised ZeroDivisionError on stand-ins|cannot trace this node") as error:
        cap.lower(symbolic=True)
    assert "symbolic=False" not in error.value.try_  # it would not help


@pytest.fixture
def one_process_group(tmp_path):
    if dist.is_initialized():  # by a workload before
        yield
        return
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_collective_is_refused_by_name(one_process_group, symbolic):
    from torch.distributed.nn.functional import all_reduce

    model = nn.Linear(4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        capture = capture_of(model, lambda: all_reduce(model(torch.randn(3, 4))).square().mean())
    assert capture.parity().ok
    with pytest.raises(
        CabwError, match=r"_AllReduceBackward \(#3\) calls c10d\.allreduce_\.default with a ProcessGroup"
    ):
        capture.lower(symbolic=symbolic)


def test_whatever_the_lowering_raises_is_a_readable_error(monkeypatch):
    capture = capture_of(None, lambda: leaf(4, 3).sin().sum())
    monkeypatch.setattr("cabw_viz.replay.lowering.assembling.GraphAssembler._add_body", lambda _: 1 / 0)
    with pytest.raises(CabwError, match=r"this backward cannot be lowered: .*ZeroDivisionError"):
        capture.lower()


@on_the_version_read
def test_grouped_products_name_another_forward():
    """All transformers' mixtures of experts; the fake kernel takes bfloat16 alone (torch 2.13)."""
    torch.manual_seed(0)
    weight, offsets = nn.Parameter(torch.randn(4, 32, 48)), torch.tensor([12, 20, 30, 48], dtype=torch.int32)
    x = torch.randn(48, 32)
    capture = capture_of({"w": weight}, lambda: functional.grouped_mm(x, weight, offs=offsets).square().mean())
    with pytest.raises(CabwError, match=r"GroupedMmBackward0 \(#\d\).*: PyTorch cannot trace this node") as error:
        capture.lower()
    assert 'experts_implementation="eager"' in error.value.try_
