"""Which line of the user's code made each autograd node, and that finding it out changes nothing for them."""

from __future__ import annotations

import contextlib
import gc
import re
import threading
import weakref
from pathlib import Path

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everybody does
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import cabw_viz
from cabw_viz.errors import CabwError
from cabw_viz.record.source_line import SourceLine
from tests.captures import capture_of
from tests.definitions import MODELS


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def lines(record):
    """Line numbers by the names of the nodes, accumulations and the root left out."""
    found = {}
    for node in record.autograd_nodes:
        if node.kind not in ("graph_root", "accumulate_grad"):
            assert node.line is None or node.line.file == __file__
            found.setdefault(node.name, []).append(node.line and node.line.line)
    return found


def tagged(function):
    """Line numbers by the names that stand in comments behind a function's lines."""
    found = {}
    start = function.__code__.co_firstlineno
    end = max(line for code in codes(function.__code__) for *_, line in code.co_lines() if line)
    text = Path(__file__).read_text("utf-8").splitlines()
    for number in range(start, end + 1):
        for name in re.findall(r"\w+Backward\d*|CopySlices", text[number - 1].partition("# ")[2]):
            found.setdefault(name, []).append(number)
    return found


def codes(code):
    yield code
    for constant in code.co_consts:
        if hasattr(constant, "co_lines"):
            yield from codes(constant)


def assert_tagged(record, *functions):
    expected = {}
    for function in functions:
        for name, numbers in tagged(function).items():
            expected[name] = sorted(expected.get(name, []) + numbers)
    assert {name: sorted(numbers) for name, numbers in lines(record).items()} == expected


# ------------------------------------------------------------------------------------------------- every line right


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class TwiceAgain(Twice):
    @staticmethod
    def forward(ctx, x):
        return Twice.forward(ctx, x)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos()


class HandWritten(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.scale = nn.Parameter(torch.ones(6))
        self.twice = Twice.apply

    def forward(self, x):
        h = self.first(x)  # AddmmBackward0 TBackward0
        h = F.gelu(  # GeluBackward0
            h,
            approximate="tanh",
        )
        h = self.norm(h) * self.scale  # NativeLayerNormBackward0 MulBackward0
        h = self.twice(h)  # TwiceBackward
        for _ in range(2):
            h = h.exp().clamp(max=3)  # ExpBackward0 ExpBackward0 ClampBackward1 ClampBackward1
        left, right = h.split([2, 4], dim=-1)  # SplitWithSizesBackward0
        h = torch.cat([self.outer(left), right], -1)  # CatBackward0
        h = Sine.apply(TwiceAgain.apply(h))  # SineBackward TwiceAgainBackward
        return h.narrow(1, 1, 5)  # SliceBackward0

    def outer(self, x):
        columns = x.unsqueeze(-2)  # UnsqueezeBackward0
        product = columns.mul(x.unsqueeze(-1))  # UnsqueezeBackward0 MulBackward0
        return product.sum(-1)  # SumBackward1


def test_every_line_of_a_hand_written_model():
    net, x = HandWritten(), torch.randn(3, 4)

    def loss():
        out = net(x)
        y = out.square()  # PowBackward0
        return y.mean()  # MeanBackward0

    record = capture_of(net, loss).record
    assert record.lines_off == ""
    assert_tagged(record, HandWritten.forward, HandWritten.outer, loss)
    (line,) = [node.line for node in record.autograd_nodes if node.name == "SliceBackward0"]
    assert line.text.startswith("return h.narrow(1, 1, 5)  #")


def test_in_place_writes_to_views():
    w = torch.randn(3, requires_grad=True)

    def loss():
        rows = torch.zeros(2, 3)
        rows[0] = w  # CopySlices
        rows[1] += w  # CopySlices CopySlices AsStridedBackward0
        row = rows[0]
        rows.mul_(2)  # MulBackward0
        # A view of what was written to gets its history anew, where it is used next.
        row = row + 1  # AddBackward0 AsStridedBackward0
        return (row * rows).sum()  # MulBackward0 SumBackward0

    assert_tagged(capture_of({"w": w}, loss).record, loss)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_code(reentrant):
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(3, 4, requires_grad=True)

    def run(x):
        return net(x).exp()

    def loss():
        return checkpoint(run, x, use_reentrant=reentrant).sum()

    found = lines(capture_of(net, loss).record)
    first = loss.__code__.co_firstlineno + 1
    if reentrant:
        assert found == {"SumBackward0": [first], "CheckpointFunctionBackward": [first]}
    else:
        inside = [run.__code__.co_firstlineno + 1]
        expected = dict.fromkeys(("ExpBackward0", "TanhBackward0", "AddmmBackward0", "TBackward0"), inside)
        assert found == {"SumBackward0": [first], **expected}


def test_nodes_that_a_backward_makes_are_of_the_line_that_called_it():
    w = torch.randn(3, requires_grad=True)
    with cabw_viz.capture({"w": w}) as session:
        loss = w.exp().sum()
        (grad,) = torch.autograd.grad(loss, w, create_graph=True)
        grad.square().sum().backward()
    here = test_nodes_that_a_backward_makes_are_of_the_line_that_called_it.__code__.co_firstlineno
    found = lines(session[1].record)
    assert found["MulBackward0"] == [here + 4]
    assert found["PowBackward0"] == [here + 5]
    assert found["ExpBackward0"] == [here + 3]


@pytest.mark.parametrize("name", ["gpt2", "llama", "lstm"])
def test_the_lines_are_those_of_anomaly_mode(name):
    """Two ways to the same lines. With lines=False, only anomaly mode's tracebacks are there to tell them."""
    model, run = MODELS[name]()
    ours = capture_of(model, run).record
    model.zero_grad()
    with torch.autograd.detect_anomaly(check_nan=False):
        theirs = capture_of(model, run, lines=False).record
    assert theirs.lines_off == "lines=False"
    differ = {
        node.name: (node.line, other.line)
        for node, other in zip(ours.autograd_nodes, theirs.autograd_nodes, strict=True)
        if node.line != other.line
    }
    assert differ == {}
    known = [node.line for node in ours.autograd_nodes if node.kind not in ("graph_root", "accumulate_grad")]
    assert None not in known
    assert len(set(known)) >= 5
    assert not any("/torch/" in line.file for line in known)


# ------------------------------------------------------------------------------------- what is known, and what is not


def test_nodes_from_before_the_block_have_what_can_be_had():
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(3, 4)
    plain = net(x)
    with torch.autograd.detect_anomaly(check_nan=False):
        traced = net(x)
    here = test_nodes_from_before_the_block_have_what_can_be_had.__code__.co_firstlineno
    with cabw_viz.capture(net) as session:
        (plain * traced).sum().backward()
    found = lines(session[0].record)
    assert found["MulBackward0"] == [here + 7]
    assert found["TanhBackward0"] == [here + 4, None]
    assert session[0].record.autograd_nodes[0].line is None


def test_the_last_line_before_the_block_is_no_line_of_it():
    w = torch.randn(3, requires_grad=True)
    early = w.exp()
    with cabw_viz.capture({"w": w}) as session:
        early.sum().backward()
    assert lines(session[0].record)["ExpBackward0"] == [None]


def test_what_the_mode_cannot_see_has_no_line_rather_than_a_wrong_one():
    w = torch.randn(3, requires_grad=True)
    with cabw_viz.capture({"w": w}) as session:
        seen = w.exp()
        with torch._C.DisableTorchFunction():
            unseen = seen.sin()
        unseen.sum().backward()
    here = test_what_the_mode_cannot_see_has_no_line_rather_than_a_wrong_one.__code__.co_firstlineno
    assert lines(session[0].record) == {"ExpBackward0": [here + 3], "SinBackward0": [None], "SumBackward0": [here + 6]}


def test_other_threads_have_no_lines():
    w, made = torch.randn(3, requires_grad=True), []
    with cabw_viz.capture({"w": w}) as session:
        thread = threading.Thread(target=lambda: made.append(nn.Tanh()(w)))
        thread.start()
        thread.join()
        (made[0] + w).sum().backward()
    assert lines(session[0].record)["TanhBackward0"] == [None]
    assert session[0].record.autograd_nodes[3].module == "(Tanh)"


def test_a_handler_of_calls_is_not_the_line():
    class Passing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    w = torch.randn(3, requires_grad=True)
    with cabw_viz.capture({"w": w}) as session, Passing():
        w.exp().sum().backward()
    here = test_a_handler_of_calls_is_not_the_line.__code__.co_firstlineno
    assert lines(session[0].record)["ExpBackward0"] == [here + 7]


def test_a_compiled_region_has_the_line_that_called_it():
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(3, 4)
    region = torch.compile(net, backend="aot_eager")
    region(x)
    with cabw_viz.capture(net, lines=True) as session:
        region(x).exp().sum().backward()
    here = test_a_compiled_region_has_the_line_that_called_it.__code__.co_firstlineno
    assert lines(session[0].record) == {
        name: [here + 5] for name in ("SumBackward0", "ExpBackward0", "CompiledFunctionBackward")
    }


# ------------------------------------------------------------------------------------------------------- on and off


def test_an_unknown_value_is_refused():
    for value in ("always", None, 1, 0):
        with pytest.raises(CabwError, match=r"lines=.*\n.*'auto', True, False"):
            cabw_viz.capture(lines=value)


def _compiled_in_place(net):
    net.compile()


def _compiled_child(net):
    net[0] = torch.compile(net[0])


def _compiled_forward(net):
    net.forward = torch.compile(net.forward)


def _compiled_outside(net):
    torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(2))


@pytest.mark.parametrize(
    ("compile_", "reason"),
    [
        (_compiled_in_place, "the subject is compiled"),
        (_compiled_child, "the subject is compiled"),
        (_compiled_forward, "the subject is compiled"),
        (_compiled_outside, "something was compiled in this process"),
    ],
)
def test_auto_leaves_lines_off_where_something_was_compiled(compile_, reason):
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    w = torch.ones(2, requires_grad=True)
    compile_(net)
    found = capture_of(net, lambda: w.exp().sum()).record
    assert found.lines_off.startswith(reason)
    assert lines(found)["ExpBackward0"] == [None]
    insisted = capture_of(net, lambda: w.exp().sum(), lines=True).record
    assert insisted.lines_off == ""
    assert None not in lines(insisted)["ExpBackward0"]


def test_a_subject_that_only_disables_dynamo_is_not_compiled():
    net = nn.Sequential(nn.Linear(4, 4))
    net.forward = torch._dynamo.disable(net.forward)
    assert capture_of(net, lambda: net(torch.randn(3, 4)).sum()).record.lines_off == ""


# ------------------------------------------------------------------------------------------ the user sees no difference


class Recording(TorchFunctionMode):
    def __init__(self, calls, name):
        super().__init__()
        self.calls, self.name = calls, name

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append((self.name, getattr(func, "__name__", str(func))))
        return func(*args, **(kwargs or {}))


def _calls(block, enter):
    """The calls that the user's modes see, entered before, in and across the block, as `enter` says."""
    torch.manual_seed(0)
    calls, stack = [], contextlib.ExitStack()
    net, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()), torch.randn(3, 4)
    outer, inner, late = (Recording(calls, name) for name in ("outer", "inner", "late"))
    with stack:
        if "outer" in enter:
            outer.__enter__()
        with block(net):
            if "inner" in enter:
                stack.enter_context(inner)
            net(x).sum().backward()
            if "outer left inside" in enter:
                outer.__exit__(None, None, None)
                net(x).sum().backward()
            if "late" in enter:
                late.__enter__()
            F.softmax(net(x), -1).sum().backward()
        net(x).sum().backward()
        if "late" in enter:
            late.__exit__(None, None, None)
        if "outer" in enter and "outer left inside" not in enter:
            outer.__exit__(None, None, None)
        net(x).sum().backward()
    return calls


@pytest.mark.parametrize(
    "enter",
    [
        ("outer",),
        ("inner",),
        ("outer", "inner"),
        ("outer", "outer left inside"),
        ("late",),
        ("outer", "outer left inside", "late"),
    ],
    ids=", ".join,
)
def test_the_users_modes_see_the_same_calls_in_the_same_order(enter):
    plain = _calls(lambda net: contextlib.nullcontext(), enter)
    assert len(plain) >= 5
    assert _calls(lambda net: cabw_viz.capture(net, lines=True), enter) == plain
    assert torch._C._len_torch_function_stack() == 0


def test_the_default_device_may_change_in_the_block():
    def run(block):
        found = []
        torch.set_default_device("meta")
        try:
            with block():
                found.append(torch.ones(1).device.type)
                torch.set_default_device(None)
                found.append(torch.ones(1).device.type)
                torch.set_default_device("meta")
                with torch.device("cpu"):
                    found.append(torch.ones(1).device.type)
            found.append(torch.ones(1).device.type)
        finally:
            torch.set_default_device(None)
        return found

    assert run(lambda: cabw_viz.capture(lines=True)) == run(contextlib.nullcontext) == ["meta", "cpu", "cpu", "meta"]
    assert torch._C._len_torch_function_stack() == 0


def _without_gradients(encoder, x):
    with torch.no_grad():
        return encoder(x)


def _frozen(encoder, x):
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
    return encoder(x)


def _partly(encoder, x):
    return nn.Sequential(nn.Identity(), encoder)(x.requires_grad_())


@pytest.mark.parametrize("run", [_without_gradients, _frozen, _partly], ids=lambda f: f.__name__)
def test_results_are_the_same_to_the_last_bit(run):
    """Attention's fast path looks for modes, and rounds otherwise than the slow one."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 8)
    plain = run(encoder, x)
    with cabw_viz.capture(encoder, lines=True):
        assert torch.equal(run(encoder, x), plain)
        assert torch._C._len_torch_function_stack() == 1


def test_no_frame_is_kept():
    class Local:
        pass

    alive = []

    def forward(w):
        local = Local()
        alive.append(weakref.ref(local))
        return w.exp()

    w = torch.randn(3, requires_grad=True)
    with cabw_viz.capture({"w": w}) as session:
        hidden = forward(w)
        alive.append(weakref.ref(hidden))
        hidden.sum().backward()
        del hidden
        session.close()
        gc.collect()
        assert [ref() for ref in alive] == [None, None]


def test_a_line_as_text():
    assert str(SourceLine("train.py", 12, "loss = model(x)")) == "train.py:12"
