"""What an error says to try is written in full and works: each piece of advice is carried out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.errors import CabwError
from cabw_viz.record.model import Failure
from tests.captures import data, model, session_of


class Names:
    """What the advice speaks of: a model, a session of one backward, and its capture."""

    def __init__(self, **options):
        self.model, self.cabw_viz, self.torch = model(), cabw_viz, torch
        self.session = session_of(self.model, self.backward, **options)
        self.cap = self.session[0]

    def backward(self):
        self.model(data()).square().sum().backward()

    def run(self, code):
        return eval(code, {}, vars(self))  # noqa: S307  # the advice under test, written below


ARGUMENTS = {
    "cap.parity(rtol=1e-3)": {"rtol=1e-4, atol=1e-5": "cap.parity(rtol=1e-4, atol=1e-5)"},
    "cap.parity(measures=3)": {'measures=("cosine", "ulp")': 'cap.parity(measures=("cosine", "ulp"))'},
    "cap.parity(exact='yes')": {"exact='auto'": "cap.parity(exact='auto')"},
    "cap.replay(device='nonsense')": {"or none, for where it was captured": "cap.replay()"},
    "cap.replay(dtype='int8')": {"dtype='float64'": "cap.replay(dtype='float64')"},
    "cap.replay(dtype=torch.float8_e4m3fn)": {"dtype='float64'": "cap.replay(dtype='float64')"},
    "cap.replay(backend='aot_eagr')": {"backend='aot_eager'": "cap.replay(backend='aot_eager')"},
    "cap.replay(hooks='some')": {'hooks="run"': 'cap.replay(hooks="run")'},
    "cap.memory(0)": {"memory(depth=2)": "cap.memory(depth=2)"},
    "cap.times(repeats=0)": {"cap.times(repeats=3)": "cap.times(repeats=3)"},
    "cap.graph(depth=0)": {"depth=2": "cap.graph(depth=2)"},
    "cap.graph(expand='2')": {"expand=['2']": "cap.graph(expand=['2'])"},
    "cap.graph('fx', depth=1)": {
        "level='module' with it": "cap.graph('module', depth=1)",
        "level='fx' without it": "cap.graph('fx')",
    },
    "cap.graph(around=999)": {"cap.nodes": "cap.nodes"},
    "cap.graph('aten')": {"cap.lower() first": "(cap.lower(), cap.graph('aten'))"},
    "cap.graph(color_by='parity')": {"cap.parity()": "(cap.parity(), cap.graph(color_by='parity'))"},
    "cap.graph(color_by='time')": {"cap.times()": "(cap.times(), cap.graph(color_by='time'))"},
    "cap.graph(path_to='nothing')": {"cap.nodes": "cap.nodes"},
    "session[3]": {"session.events": "session.events"},
    "session.inspect(nonsense=1)": {
        'session.inspect(level="autograd", color_by="bytes")': 'session.inspect(level="autograd", color_by="bytes")'
    },
    "cabw_viz.capture(model, run='fast')": {"capture(model, run='eager')": "cabw_viz.capture(model, run='eager')"},
    "cabw_viz.capture(model, max_bytes=-1)": {
        "max_bytes=2**30": "cabw_viz.capture(model, max_bytes=2**30)",
        'gradients="leaves"': 'cabw_viz.capture(model, gradients="leaves")',
    },
    "cabw_viz.capture(3)": {"cabw_viz.capture(model)": "cabw_viz.capture(model)"},
}
"""What is refused; of its error, what to try, and the code of that."""


@pytest.mark.parametrize("refused", ARGUMENTS)
def test_what_an_error_advises_is_not_refused(refused):
    names = Names()
    with pytest.raises(CabwError) as error:
        names.run(refused)
    for words, code in ARGUMENTS[refused].items():
        assert words in error.value.try_
        names.run(code)


def test_without_node_gradients_divergence_names_the_option_that_keeps_them():
    with pytest.raises(CabwError, match="Try") as error:
        Names(gradients="leaves").cap.divergence()
    assert 'cabw_viz.capture(..., gradients="nodes")' in error.value.try_
    assert Names(gradients="nodes").cap.divergence().ok


def test_without_a_reference_parity_names_the_option_that_keeps_it():
    with pytest.raises(CabwError, match="Try") as error:
        Names(gradients="none").cap.parity()
    assert 'cabw_viz.capture(..., gradients="leaves")' in error.value.try_
    assert Names(gradients="leaves").cap.parity().ok


def test_after_a_step_of_the_optimizer():
    def stepped(**options):
        names = Names(**options)
        torch.optim.SGD(names.model.parameters(), 0.1).step()
        return names.cap.parity()

    with pytest.raises(CabwError, match="Try") as error:
        stepped()
    assert "parity before optimizer.step(), or capture(..., snapshot=True)" in error.value.try_
    assert Names().cap.parity().ok
    assert stepped(snapshot=True).ok


def test_a_failed_trace_passes_its_own_way_out_on():
    w = torch.randn(3, requires_grad=True)
    session = session_of(None, lambda: torch.autograd.grad(w * w, w, torch.eye(3), is_grads_batched=True))
    with pytest.raises(CabwError) as error:
        session[0].parity()
    assert error.value.try_ == session[0].error.try_ == "one call for each row of grad_outputs, with retain_graph=True"
    assert str(error.value).count("retain_graph=True") == 1
    failure = Failure("ValueError", "unknown")
    assert str(failure) == failure.cause == "ValueError: unknown"


class UsedUp(torch.autograd.Function):
    """Its backward runs once."""

    @staticmethod
    def forward(ctx, x):
        ctx.runs = []
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        ctx.runs.append(1)
        if len(ctx.runs) > 1:
            raise ValueError("used up")
        return g


@pytest.mark.parametrize("in_hook", [True, False])
def test_hooks_are_dropped_only_where_that_helps(in_hook):
    net, runs = nn.Linear(4, 2), []

    def once(gradient):
        runs.append(1)
        if len(runs) > 1:
            raise ValueError("used up")

    def run():
        out = net(data())
        if in_hook:
            out.register_hook(once)
        else:
            out = UsedUp.apply(out)
        out.sum().backward()

    (capture,) = session_of(net, run)
    with pytest.raises(CabwError, match="used up") as error:
        capture.replay()
    assert ('hooks="drop"' in error.value.try_) == in_hook
    if in_hook:
        assert capture.parity(hooks="drop").ok
    else:
        with pytest.raises(CabwError, match="used up") as error:
            capture.replay(hooks="drop")
        assert "no replay of this backward is possible" in error.value.try_


def test_a_backend_that_fails_does_not_advise_itself():
    names = Names()

    def broken(graph, example_inputs):
        raise ValueError("word " * 400)

    with pytest.raises(CabwError) as error:
        names.cap.replay(backend=broken)
    assert 'backend="aot_eager"' in error.value.try_
    assert error.value.seen.endswith("word …")  # and no half of a word
    names.run('cap.replay(backend="eager")')
    names.run('cap.replay(backend="aot_eager")')


@pytest.mark.parametrize(
    ("sentence", "expected"), [("a", "a."), ("a.", "a."), ("a …", "a …"), ("a?", "a?"), ("a...", "a...")]
)
def test_one_stop_at_the_end(sentence, expected):
    assert str(CabwError(sentence)) == expected
    assert str(CabwError("x", expected=sentence, try_=sentence)) == f"x.\nExpected: {expected}\nTry: {expected}"
