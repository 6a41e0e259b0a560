"""Which module made each autograd node, and that finding it out disturbs nothing."""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
import warnings
import weakref
from collections import Counter
from functools import partial

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

import cabw_viz
from cabw_viz.tracing.node_numbering import number_nodes
from tests import leftovers
from tests.captures import capture_of, data
from tests.definitions import MODELS


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.act = nn.Tanh()

    def forward(self, x):
        return self.act(self.lin(x)) + x


class Function(nn.Module):
    """A forward given as a function, over named parts."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args):
        return self.function(self, *args)


def made(record):
    """Module path (None for outside) and visit of each node but accumulations, in order."""
    return [
        (node.name.removesuffix("Backward0"), node.module if node.module_class else None, node.visit)
        for node in record.autograd_nodes
        if node.kind not in ("graph_root", "accumulate_grad")
    ]


# ---------------------------------------------------------------------------------- against an independent method


class Claims:
    """Which module made a node, by hooks: the first from whose outputs one gets to it, and from nothing before."""

    def __init__(self, model):
        self.owner, self.stack = {}, [None]
        paths = {module: path for path, module in model.named_modules()}
        for module, path in paths.items():
            module.register_forward_pre_hook(
                lambda _, args, kwargs, path=path: self.enter((args, kwargs), path), with_kwargs=True
            )
            module.register_forward_hook(lambda _, __, output: self.leave(output))

    def claim(self, values, who):
        todo = [leaf.grad_fn for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        while todo:
            node = todo.pop()
            if node is not None and node not in self.owner:
                self.owner[node] = who
                todo += [below for below, _ in node.next_functions]

    def enter(self, given, path):
        self.claim(given, self.stack[-1])  # what was made before this call is the caller's
        self.stack.append(path)

    def leave(self, output):
        self.claim(output, self.stack.pop())


EXPLAINED = {
    # Made anew in each forward, so that no hook is on it: hooks give its nodes to its caller.
    "bert": Counter(
        {("NllLossBackward0", "", "(CrossEntropyLoss)"): 1, ("LogSoftmaxBackward0", "", "(CrossEntropyLoss)"): 1}
    )
}


@pytest.mark.parametrize("name", MODELS)
def test_every_node_is_in_the_module_that_hooks_find(name):
    model, run = MODELS[name]()
    claims = Claims(model)
    with cabw_viz.capture(model) as session:
        loss = run()
        claims.claim(loss, None)
        live = number_nodes([loss]).nodes
        loss.backward()
    record = session[0].record
    differ = Counter()
    for node, found in zip(record.autograd_nodes, live, strict=True):
        if node.kind not in ("graph_root", "accumulate_grad"):
            path = node.module if node.module_class else None
            if path != claims.owner[found]:
                differ[node.name, claims.owner[found], path] += 1
    assert differ == EXPLAINED.get(name, Counter())
    assert len(claims.owner) > 50
    for leaf in record.leaves:
        assert record.by_number[leaf.autograd_node].module == leaf.names[0].rpartition(".")[0]


# -------------------------------------------------------------------------------------------------------- names


def test_the_subject_itself_and_what_is_outside_of_any_module():
    record = capture_of(net := Block(), lambda: net(data()).exp().sum()).record
    assert made(record) == [
        ("Sum", None, 0),
        ("Exp", None, 0),
        ("Add", "", 0),
        ("Tanh", "act", 0),
        ("Addmm", "lin", 0),
        ("T", "lin", 0),
    ]
    assert {
        node.module_class for node in record.autograd_nodes if node.module == "" and node.name == "AddBackward0"
    } == {"Block"}


def test_modules_that_the_subject_does_not_know_go_by_how_they_are_held():
    def forward(self, x):
        x = self.held[0](self.table["b"](self.hidden[0](x)))
        return nn.Sigmoid()(nn.Sequential(nn.Softplus())(x))

    net = Function(forward, held=[Block()], table={"b": nn.Linear(4, 4)}, hidden=(nn.Linear(4, 4),))
    assert made(capture_of(net, lambda: net(data()).sum()).record)[1:] == [
        ("Sigmoid", "(Sigmoid)", 0),
        ("Softplus", "(Sequential).0", 0),
        ("Add", "held[0]", 0),
        ("Tanh", "held[0].act", 0),
        ("Addmm", "held[0].lin", 0),
        ("T", "held[0].lin", 0),
        ("Addmm", "table['b']", 0),
        ("T", "table['b']", 0),
        ("Addmm", "hidden[0]", 0),
        ("T", "hidden[0]", 0),
    ]


@pytest.mark.parametrize("subject", [None, {}])
def test_without_a_module_as_subject_the_outermost_goes_by_its_class(subject):
    net = nn.Sequential(nn.Linear(4, 4), Block())
    assert made(capture_of(subject, lambda: net(data()).sum()).record)[1:] == [
        ("Add", "(Sequential).1", 0),
        ("Tanh", "(Sequential).1.act", 0),
        ("Addmm", "(Sequential).1.lin", 0),
        ("T", "(Sequential).1.lin", 0),
        ("Addmm", "(Sequential).0", 0),
        ("T", "(Sequential).0", 0),
    ]


def test_a_module_registered_twice_goes_by_the_path_below_its_caller():
    shared = nn.Linear(4, 4)
    net = nn.Sequential(nn.Sequential(shared), nn.Sequential(nn.Tanh(), shared))
    paths = [
        (name, path) for name, path, _ in made(capture_of(net, lambda: net(data()).sum()).record) if name == "Addmm"
    ]
    assert paths == [("Addmm", "1.1"), ("Addmm", "0.0")]


def test_modules_that_come_to_the_subject_in_the_block_have_their_paths():
    net = nn.Sequential(nn.Linear(4, 4))
    with cabw_viz.capture(net) as session:
        net(data()).sum().backward()
        net.append(Block())
        net(data()).sum().backward()
        lazy = nn.Sequential(nn.LazyLinear(4))
        net.append(lazy)
        net(data()).sum().backward()
    assert ("Tanh", "1.act", 0) in made(session[1].record)
    assert ("Addmm", "2.0", 0) in made(session[2].record)
    assert {node.module for node in session[2].record.autograd_nodes if node.leaf is not None} == {"0", "1.lin", "2.0"}


def test_parametrized_modules_and_hooks_belong_to_their_module():
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Tanh())
    net[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    net[1].register_forward_hook(lambda module, args, output: output.exp())
    found = {name: path for name, path, _ in made(capture_of(net, lambda: net(data()).sum()).record)}
    assert found["WeightNormInterface"] == "0.parametrizations.weight.0" or found["WeightNormInterface"].startswith(
        "0.param"
    )
    assert found["Mul"] == found["Exp"] == found["Tanh"] == "1"


def test_tied_parameters_and_their_modules():
    net = nn.ModuleDict({"embed": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    net["head"].weight = net["embed"].weight
    record = capture_of(net, lambda: net["head"](net["embed"](torch.tensor([1, 2]))).sum()).record
    (leaf,) = record.leaves
    assert leaf.names == ("embed.weight", "head.weight")
    assert record.by_number[leaf.autograd_node].module == "embed"
    assert [path for _, path, _ in made(record)] == [None, "head", "head", "embed"]


# ------------------------------------------------------------------------------------------------------- visits


def test_a_module_called_twice_has_two_visits_in_every_step():
    net = Block()
    with cabw_viz.capture(net) as session:
        for _ in range(2):
            net(net(data())).sum().backward()
    expected = [("Sum", None, 0), ("Add", "", 1), ("Tanh", "act", 1), ("Addmm", "lin", 1), ("T", "lin", 1)]
    expected += [("Add", "", 0), ("Tanh", "act", 0), ("Addmm", "lin", 0), ("T", "lin", 0)]
    assert made(session[0].record) == made(session[1].record) == expected


def test_calls_that_this_backward_does_not_go_through_do_not_count():
    net = Block()
    with cabw_viz.capture(net) as session:
        first = net(data())
        with torch.no_grad():
            net(data())
        second = net(data())
        second.sum().backward()
        first.sum().backward()
    assert {visit for _, _, visit in made(session[0].record)} == {0}
    assert {visit for _, _, visit in made(session[1].record)} == {0}


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_in_the_backward_is_no_visit(reentrant):
    from torch.utils.checkpoint import checkpoint

    net = Function(lambda self, x: checkpoint(self.block, x, use_reentrant=reentrant), block=Block())
    with cabw_viz.capture(net) as session:
        for _ in range(2):
            net(data().requires_grad_()).sum().backward()
    for capture in session:
        found = made(capture.record)
        assert {visit for _, _, visit in found} == {0}
        if reentrant:
            assert ("CheckpointFunctionBackward", "", 0) in found
        else:
            assert ("Tanh", "block.act", 0) in found


# ------------------------------------------------------------------------------- what goes another way than it came


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_forward_that_raises_leaves_its_module(error):
    def forward(self, x):
        y = self.block(x).exp()
        if not self.good:
            raise error
        return y

    net = nn.Sequential(Function(forward, block=Block()), nn.Tanh())
    with cabw_viz.capture(net) as session:
        net[0].good = False
        with contextlib.suppress(error):
            net(data())
        outside = data().requires_grad_().sin()
        net[0].good = True
        (net(data()) + outside).sum().backward()
    found = made(session[0].record)
    assert found[:2] == [("Sum", None, 0), ("Add", None, 0)]
    assert ("Sin", None, 0) in found
    assert ("Exp", "0", 0) in found
    assert ("Tanh", "1", 0) in found
    assert ("Tanh", "0.block.act", 0) in found


def test_a_backward_inside_a_forward_knows_the_modules_that_are_still_running():
    def forward(self, x):
        y = self.block(x).exp()
        y.sum().backward()
        return y.detach()

    net = Function(forward, block=Block())
    with cabw_viz.capture(net) as session:
        net(data())
    assert made(session[0].record)[:3] == [("Sum", "", 0), ("Exp", "", 0), ("Add", "block", 0)]


def test_a_block_opened_inside_a_forward():
    def forward(self, x):
        with cabw_viz.capture(self) as session:
            self.block(x).sum().backward()
        return session

    session = Function(forward, block=Block())(data())
    assert made(session[0].record)[:3] == [("Sum", None, 0), ("Add", "block", 0), ("Tanh", "block.act", 0)]


def test_nodes_from_before_the_block_have_no_module():
    net = Block()
    hidden = net(data())
    with cabw_viz.capture(net) as session:
        net(hidden).sum().backward()
    assert made(session[0].record) == [
        *[("Sum", None, 0), ("Add", "", 0), ("Tanh", "act", 0), ("Addmm", "lin", 0), ("T", "lin", 0)],
        *[("Add", None, 0), ("Tanh", None, 0), ("Addmm", None, 0), ("T", None, 0)],
    ]


def in_a_thread(work):
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_forwards_in_other_threads_are_kept_apart():
    """Numbers are each thread's own and begin at 0; here the other thread's are made to lie among the block's."""
    net = nn.ModuleDict({"own": nn.Sequential(Block(), Block()), "other": nn.Sequential(Block(), Block())})

    def forward_at(number):
        w = torch.ones(1, requires_grad=True)
        while torch._C._autograd._get_sequence_nr() < number:
            w.exp()
        return net["other"](data())

    with cabw_viz.capture(net) as session:
        until = torch._C._autograd._get_sequence_nr()
        other = in_a_thread(lambda: forward_at(until))
        own = net["own"](data())
        (own + other).sum().backward()
    found = made(session[0].record)
    for place in ("own", "other"):
        paths = {path: count for path, count in Counter(path for _, path, _ in found).items() if path and place in path}
        assert paths == {f"{place}.{i}{part}": n for i in (0, 1) for part, n in (("", 1), (".act", 1), (".lin", 2))}
    lines = {
        node.module.split(".")[0]: node.line
        for node in session[0].record.autograd_nodes
        if node.module_class and node.leaf is None
    }
    assert lines["other"] is None


def test_a_thread_that_raises_or_ends_leaves_nothing_behind():
    net = Block()
    with cabw_viz.capture(net) as session:
        for _ in range(3):
            in_a_thread(lambda: contextlib.suppress(RuntimeError).__enter__() or net(data()).sum().item())
        net(data()).sum().backward()
    assert made(session[0].record)[1:3] == [("Add", "", 0), ("Tanh", "act", 0)]


def test_threads_at_once():
    nets = [Block() for _ in range(4)]
    net = nn.ModuleList(nets)
    with cabw_viz.capture(net) as session:
        results = [None] * 4

        def work(i):
            for _ in range(20):
                results[i] = nets[i](nets[i](data()))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        work(3)
        for thread in threads:
            thread.join()
        torch.stack(results).sum().backward()
    found = Counter((path, visit) for name, path, visit in made(session[0].record) if name == "Tanh")
    assert found == Counter({(f"{i}.act", visit): 1 for i in range(4) for visit in (0, 1)})


# ------------------------------------------------------------------------------------- compiled regions, other tools


def _optimized(net, backend):
    return torch.compile(net, backend=backend, fullgraph=True)


def _in_place(net, backend):
    net.compile(backend=backend, fullgraph=True)
    return net


def _child(net, backend):
    net[0].compile(backend=backend, fullgraph=True)
    return net


def _replaced_child(net, backend):
    net[0] = torch.compile(net[0], backend=backend)
    return net


def _function(net, backend):
    return torch.compile(lambda x: net(x) * 2, backend=backend, fullgraph=True)


def _bound_call(net, backend):
    return torch.compile(net.__call__, backend=backend, fullgraph=True)


def _forward(net, backend):
    net.forward = torch.compile(net.forward, backend=backend, fullgraph=True)
    return net


def _broken(net, backend):
    hidden = torch._dynamo.disable(net[0])  # runs as it is, between two compiled pieces

    def forward(x):
        return net[1](hidden(net[0](x).exp()))

    return torch.compile(forward, backend=backend)


COMPILED = (_optimized, _in_place, _child, _replaced_child, _function, _bound_call, _forward, _broken)


def _steps(compile_, around, *, before):
    """Three forwards and backwards, the middle ones in the block. What a user can see of compilations, and the session.

    What is compiled is compiled before the block, or in it.
    """
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    net, counter, frames = nn.Sequential(Block(), Block()), CompileCounter(), []

    def step(compiled):
        compiled(data()).sum().backward()
        frames.append(counter.frame_count)
        return compiled

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        compiled = step(compile_(net, counter)) if before else None
        with around(net) as session:
            compiled = compiled or compile_(net, counter)
            step(step(compiled))
        step(compiled)
    counters = torch._dynamo.utils.counters
    breaks = Counter({text.partition("\n")[0]: count for text, count in counters["graph_break"].items()})
    return (frames, dict(counters["frames"]), breaks, [str(warning.message) for warning in warned]), session


@pytest.mark.parametrize("before", [True, False], ids=["compiled before", "compiled in the block"])
@pytest.mark.parametrize("lines", ["auto", True])
@pytest.mark.parametrize("compile_", COMPILED, ids=lambda f: f.__name__)
def test_a_compiled_region_is_not_disturbed(compile_, lines, before):
    plain, _ = _steps(compile_, lambda net: contextlib.nullcontext(), before=before)
    ours, session = _steps(compile_, lambda net: cabw_viz.capture(net, lines=lines), before=before)
    assert ours == plain
    assert plain[0][-1] >= 1
    torch._dynamo.reset()
    assert session[0].record.failure is None


def test_what_is_compiled_belongs_to_the_module_that_was_running():
    torch._dynamo.reset()
    net = nn.Sequential(Block(), Block())
    net[0].compile(backend="aot_eager")
    net[1] = torch.compile(net[1], backend="aot_eager")
    record = capture_of(net, lambda: net(data()).sum()).record
    torch._dynamo.reset()
    assert made(record) == [
        ("Sum", None, 0),
        ("CompiledFunctionBackward", "1", 0),
        ("CompiledFunctionBackward", "0", 0),
    ]
    assert {node.module for node in record.autograd_nodes if node.leaf is not None} == {"0.lin", "1.lin"}
    assert {node.module_class for node in record.autograd_nodes if node.kind == "aot_backward"} == {"Block"}


def test_modules_run_as_they_are_inside_a_compiled_region_are_seen():
    torch._dynamo.reset()
    net = nn.Sequential(Block(), Block())
    record = capture_of(net, lambda: _broken(net, "eager")(data()).sum()).record
    torch._dynamo.reset()
    found = made(record)
    assert Counter(path for _, path, _ in found)["0.act"] == 1  # the disabled call; the compiled ones are outside
    assert Counter(path for _, path, _ in found)[None] == len(found) - 4


def test_a_reset_of_dynamo_inside_the_block():
    torch._dynamo.reset()
    net = nn.Sequential(Block(), Block())
    counter = CompileCounter()
    with cabw_viz.capture(net, lines=True):
        torch._dynamo.reset()
        torch.compile(net, backend=counter, fullgraph=True)(data()).sum().backward()
    assert counter.frame_count == 1
    torch._dynamo.reset()


def _traced(net):
    graph = torch.jit.trace(net, data(), check_trace=True).inlined_graph
    return [f"{node.kind()} {node.output().debugName()}" for node in graph.nodes() if "aten::" in node.kind()]


TOOLS = {
    "symbolic_trace": lambda net: torch.fx.symbolic_trace(net).code,
    "jit.trace": _traced,
    "jit.script": lambda net: torch.jit.script(net)(data()).tolist(),
    "make_fx": lambda net: make_fx(lambda x: net(x).sum())(data()).code,
    "make_fx of functions": lambda net: make_fx(lambda x: net(x).sum(), pre_dispatch=True)(data()).code,
    "export": lambda net: str(torch.export.export(net, (data(),)).graph_module.code),
    "strict export": lambda net: str(torch.export.export(net, (data(),), strict=True).graph_module.code),
    "deepcopy": lambda net: copy.deepcopy(net)(data()).tolist(),
    "vmap": lambda net: torch.func.vmap(net)(data()).tolist(),
    "hessian": lambda net: torch.func.hessian(lambda x: net(x).sum())(data()[0]).tolist(),
    "functional_call": lambda net: torch.func.functional_call(net, dict(net.named_parameters()), data()).tolist(),
}


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_other_tools_work_in_the_block_as_outside(name):
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = Block()
    plain = TOOLS[name](net)
    with cabw_viz.capture(net, lines=True):
        assert TOOLS[name](net) == plain
    torch._dynamo.reset()


# ----------------------------------------------------------------------------------------- putting back, letting go


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_everything_is_put_back(error):
    def broken(self, x):
        raise error

    net = Function(broken)
    with pytest.raises(error), cabw_viz.capture(net, lines=True):
        net(data())
    assert leftovers.remaining() == []


def test_another_tools_call_on_top_of_ours_is_left_in_place():
    net, calls = Block(), []
    original = nn.Module.__call__
    try:
        with cabw_viz.capture(net) as session:
            ours = nn.Module.__call__

            def theirs(self, *args, **kwargs):
                calls.append(type(self).__name__)
                return ours(self, *args, **kwargs)

            nn.Module.__call__ = theirs
            net(data()).sum().backward()
        assert nn.Module.__call__ is theirs
        net(data())
        assert calls == ["Block", "Linear", "Tanh"] * 2
        assert ("Tanh", "act", 0) in made(session[0].record)
    finally:
        nn.Module.__call__ = original


def test_no_module_and_no_tensor_is_kept_alive():
    alive = []

    def forward(self, x):
        made = nn.Sequential(nn.Tanh())
        hidden = made(x)
        alive.extend([weakref.ref(made), weakref.ref(made[0]), weakref.ref(hidden)])
        return hidden.detach().exp()

    net = Function(forward)
    with cabw_viz.capture(net, lines=True) as session:
        net(data().requires_grad_())
        in_a_thread(partial(net, data().requires_grad_()))
        gc.collect()
        assert [ref() for ref in alive] == [None] * 6
    ref = weakref.ref(net)
    session.close()
    del net
    gc.collect()
    assert ref() is None


def test_a_long_block_stays_small():
    net = Block()
    with cabw_viz.capture(net, only=lambda call: False, lines=True):
        counts = []
        for _ in range(3):
            for _ in range(50):
                net(data()).sum().backward()
            gc.collect()
            counts.append(len(gc.get_objects()))
    assert counts[2] - counts[1] < 150  # one event for each of the 50 calls, and no more than that
