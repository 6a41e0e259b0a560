"""What a lowered graph holds, what it takes for granted, and what each thing that cannot be lowered says."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.errors import CabwError
from cabw_viz.replay.lowering.formulas import OTHER_FORMULAS
from cabw_viz.replay.lowering.lowered import Lowered
from tests.captures import capture_of, capture_of_run, leaf
from tests.test_lowering import assert_same_as_the_run

KEPT = torch.arange(12.0).view(4, 3)


def hooked(hook, **options):
    """A backward in which one hook sees the gradient of a product."""
    product = leaf(4, 3) * 2
    product.register_hook(hook)
    return capture_of(None, lambda: product.sin().sum(), **options)


# -- hooks and Functions -------------------------------------------------------------------------------------

TRACED = {
    "ops": lambda g: g.clamp(-1, 1) * 2,
    "a literal": lambda g: g * torch.tensor([1.0, 2.0, 3.0]),
    "a tensor of its own": lambda g: g + KEPT,
    "a value that stays in the graph": lambda g: g / g.norm().item(),
    "a shape that hangs on values": lambda g: g[g > 0].sum().expand(4, 3),
    "in place on what it made": lambda g: g.clone().mul_(2).t_().contiguous().t(),
    "its shape": lambda g: g * g.shape[0],
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", TRACED)
def test_hooks_are_traced_through(name, symbolic):
    capture = hooked(TRACED[name])
    assert_same_as_the_run(capture, capture.lower(symbolic=symbolic).gradients())


REFUSED = {
    "numpy": (lambda g: torch.from_numpy(g.numpy() * 2), "leaves torch: RuntimeError: .numpy()"),
    "tolist": (lambda g: torch.tensor(g.tolist()), "reads a tensor's values"),
    "control flow": (lambda g: g if g.sum() > 0 else -g, "reads a tensor's values"),
    "a side effect": (lambda g: KEPT.add_(g.detach() * 0), "writes to a tensor that is none of its inputs (aten.add_"),
    "a mistake": (lambda g: g @ g, "raised RuntimeError on stand-ins"),
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_hooks_may_not_do(name, symbolic):
    hook, reason = REFUSED[name]
    product = leaf(4, 3) * 2
    capture = capture_of_run(None, lambda: product.sin().sum().backward(retain_graph=True))
    handle = product.register_hook(hook)
    if name == "a mistake":  # the user's own run would fail: only the trace is of interest
        with cabw_viz.capture() as session, pytest.raises(RuntimeError, match="mat1 and mat2"):
            product.sin().sum().backward()
        capture = session[0]
    else:
        capture = capture_of(None, lambda: product.sin().sum())
    handle.remove()
    with pytest.raises(CabwError) as error:
        capture.lower(symbolic=symbolic)
    assert str(error.value).startswith("this backward cannot be lowered: MulBackward0 (#3)")
    assert reason in str(error.value)
    assert capture.lower(hooks="drop").constants == ()


def test_an_op_without_a_fake_kernel_is_named():
    @torch.library.custom_op("cabwlowering::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    capture = hooked(twice)
    with pytest.raises(CabwError, match=r"MulBackward0 \(#3\), graph node call_hook.*cabwlowering(.|\n)*register_fake"):
        capture.lower()
    twice.register_fake(torch.empty_like)
    lowered = capture.lower()
    assert "cabwlowering.twice.default" in {row.target for row in capture.results.lowered}
    assert_same_as_the_run(capture, lowered.gradients())


def test_a_refusal_leaves_the_engine_entry_as_it_was():
    """The one through which every backward enters the engine is guarded during a trace."""
    entry = torch.autograd._engine_run_backward

    @torch.enable_grad()
    def again(g):
        leaf(2).sum().backward()

    capture = hooked(again)
    with pytest.raises(CabwError, match=r"MulBackward0 \(#3\), graph node call_hook: .*accumulates into \.grad"):
        capture.lower()
    assert torch.autograd._engine_run_backward is entry


def test_hooks_may_be_dropped_or_refused():
    capture = hooked(lambda g: g * 3)
    with pytest.raises(CabwError, match=r"MulBackward0 \(#3\) carries a tensor_pre_hook"):
        capture.lower(hooks="refuse")
    kept, dropped = (capture.lower(hooks=policy).gradients() for policy in ("run", "drop"))
    ((name, gradient),) = dropped.items()
    torch.testing.assert_close(kept[name], 3 * gradient)
    with pytest.raises(CabwError, match="hooks='maybe'"):
        capture.lower(hooks="maybe")


@pytest.mark.parametrize("symbolic", [False, True])
def test_code_in_hooks_runs_once_when_the_graph_is_made(symbolic):
    calls = []
    capture = hooked(lambda g: calls.append(1))
    assert len(calls) == 1  # by the user's own run
    lowered = capture.lower(symbolic=symbolic)
    assert len(calls) == 2 + symbolic  # with symbols it is traced on numbers first
    lowered.gradients()
    assert len(calls) == 2 + symbolic


class Mean(torch.autograd.Function):
    """Keeps a number and a tensor beside what it saves."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.count, ctx.scale = x.shape[0], scale
        return x.mean(0)

    @staticmethod
    def backward(ctx, g):
        return (g / ctx.count).expand(ctx.count, *g.shape) * (1 if ctx.scale is None else ctx.scale), None


def mean(rows, scale=None):
    w = nn.Parameter(torch.ones(3))
    return capture_of({"w": w}, lambda: Mean.apply(torch.ones(rows, 3) * w, scale).sum())


def test_numbers_that_a_function_keeps_are_those_of_its_own_capture():
    capture = mean(4)
    lowered = capture.lower(symbolic=True)
    assert lowered.gradients()["w"].tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(CabwError, match=r"count of MeanBackward \(#2\) is 6 in that capture, and 4 in the lowered"):
        lowered.gradients(mean(6))
    assert torch.equal(lowered.gradients(mean(4))["w"], torch.ones(3))


def test_tensors_that_a_function_keeps_are_constants_of_its_own_capture():
    capture = mean(4, torch.full((3,), 2.0))
    lowered = capture.lower(symbolic=True)
    (constant,) = lowered.constants
    assert (constant.shape, constant.label, constant.parameter, constant.literal) == (
        (3,),
        "MeanBackward (#2)",
        False,
        False,
    )
    assert torch.equal(getattr(lowered, constant.name), torch.full((3,), 2.0))
    assert lowered.gradients()["w"].tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(CabwError, match=r"_tensor_constant0 \(3,\), which MeanBackward \(#2\) reaches by itself"):
        lowered.gradients(mean(4, torch.full((3,), 5.0)))


def test_what_hooks_packed_is_an_input():
    with torch.autograd.graph.save_on_cpu():
        result = leaf(4, 3).sin().exp()
    capture = capture_of(None, lambda: result.sum())
    lowered = capture.lower()
    assert [node.name for node in lowered.graph.find_nodes(op="placeholder")][-2:] == ["packed_0", "packed_1"]
    assert lowered.constants == ()
    assert_same_as_the_run(capture, lowered.gradients())


def test_inputs_that_are_written_to_stay_as_they_are():
    b = leaf(4, 3).sin()
    b.register_hook(lambda g: (g.mul_(2), None)[1])
    capture = capture_of_run(None, lambda: b.backward(torch.ones(4, 3)), snapshot=True)
    lowered = capture.lower()
    for _ in range(2):
        assert_same_as_the_run(capture, lowered.gradients())
    root = lowered.example_inputs()[0]
    assert torch.equal(root, torch.ones(4, 3))


def test_random_numbers_are_those_of_the_captured_run():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return nn.functional.dropout(g) + torch.rand_like(g)

    capture = capture_of(None, lambda: Noisy.apply(leaf(4, 3)).sum())
    lowered = capture.lower()
    state = torch.get_rng_state()
    assert_same_as_the_run(capture, lowered.gradients())
    assert torch.equal(state, torch.get_rng_state())
    inputs = lowered.example_inputs()
    assert not torch.equal(lowered(*inputs)[0], lowered(*inputs)[0])  # called plainly, it draws anew


def test_autocast_of_the_run_is_in_the_graph_and_that_of_the_moment_is_not():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    with cabw_viz.capture(model) as session, torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(4, 8)).float().square().mean().backward()
    lowered = session[0].lower()
    inputs = lowered.example_inputs()
    plain = lowered(*inputs)
    assert_same_as_the_run(session[0], dict(zip(lowered.leaves, plain, strict=True)))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.enable_grad():
        again = lowered(*inputs)
    assert all(torch.equal(one, other) and not other.requires_grad for one, other in zip(plain, again, strict=True))


FORMULAS = {
    "ProdBackward0": lambda a: a.prod(),
    "ProdBackward1": lambda a: a.prod(1).sum(),
    "CumprodBackward0": lambda a: a.cumprod(1).sum(),
    "MaskedFillBackward1": lambda a: torch.zeros(4, 3).masked_fill(torch.ones(4, 3) > 0, a.sum()).sum(),
    "MaxBackward1": lambda a: -a.max(),
    "MinBackward1": lambda a: -a.min(),
    "MedianBackward0": lambda a: -a.median(),
    "NanmedianBackward0": lambda a: -a.nanmedian(),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_that_go_another_way_when_traced(name):
    """`prod_backward`, `masked_fill_backward` and `evenly_distribute_backward` in
    torch/csrc/autograd/FunctionsManual.cpp, behind `areAnyTensorSubclassLike`, which holds in any trace: same gradient,
    other ops, hence other last bits."""
    a = leaf(4, 3)
    capture = capture_of({"a": a}, lambda: FORMULAS[name](a))
    lowered = capture.lower()
    torch.testing.assert_close(lowered.gradients(), {"a": a.grad})
    (node,) = (node for node in capture.record.autograd_nodes if node.name == name)
    assert lowered.inexact == (f"{name} (#{node.number})",)
    assert repr(lowered).endswith(f"inexact: {name} (#{node.number}))")
    assert set(FORMULAS) == set(OTHER_FORMULAS)


# -- guards --------------------------------------------------------------------------------------------------


def two_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    with cabw_viz.capture(model) as session:
        model(torch.randn(3, 5)).square().sum().backward()
    return session, session[0].lower(symbolic=True)


def changed(lowered, name, value):
    """The example inputs with one of them another."""
    names = [node.name for node in lowered.graph.find_nodes(op="placeholder")]
    inputs = list(lowered.example_inputs())
    inputs[names.index(name)] = value(inputs[names.index(name)])
    return inputs


VIOLATIONS = {
    "batch": (lambda x: torch.cat([x, x]), r"is 3 \(.*\), but inputs_2\.shape\[0\] is 6 \(.*\)|is 6 .* but .* is 3"),
    "width": (
        lambda x: torch.cat([x, x], 1),
        r"inputs_2\.shape\[1\] is 8 \(\(3, 4\), saved by AddmmBackward0 \(#\d\)\)",
    ),
    "dtype": (lambda x: x.double(), r"inputs_2\.dtype is torch\.float64 .*\nExpected: torch\.float32"),
    "dimensions": (lambda x: x[0], r"inputs_2 has shape \(4,\) .*\nExpected: 2 dimensions"),
    "strides": (lambda x: x.t().contiguous().t(), r"inputs_2\.stride\(0\) is 1 .*\nExpected: 4, as when captured"),
    "no tensor": (lambda x: 3, r"inputs_2 is of type int .*\nExpected: a tensor"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violated_guard_is_named(name):
    change, said = VIOLATIONS[name]
    session, lowered = two_layers()
    assert session[0].record.inputs[2].shape == (3, 4)
    inputs = changed(lowered, "inputs_2", change)
    with pytest.raises(CabwError, match=said):
        lowered(*inputs)


def test_what_the_trace_took_for_granted_is_checked():
    """Untied, every equality is a guard that PyTorch's tracer came upon."""
    session, tied = two_layers()
    lowered = session[0].lower(symbolic=True, tied=False)
    assert len(lowered.guards) > len(tied.guards)
    for change, said in [
        (lambda x: torch.cat([x, x]), r"violated, sizes_\d == inputs_2\.shape\[0\]: .*, inputs_2\.shape\[0\] is 6 "),
        (lambda x: torch.cat([x, x], 1), r"inputs_2\.shape\[1\] is 8 \("),
    ]:
        with pytest.raises(CabwError, match=said):
            lowered(*changed(lowered, "inputs_2", change))


def test_guards_beyond_one_dimension_are_told_in_full():
    w = nn.Parameter(torch.randn(4, 3))
    x = torch.randn(6, 3)
    capture = capture_of({"w": w}, lambda: (x.view(-1, 2, 3) * w[:2]).view(-1, 3)[:4].sum())
    lowered = capture.lower(symbolic=True)
    assert lowered.gradients().keys() == {"w"}
    sizes = [node.name for node in lowered.graph.find_nodes(op="placeholder") if node.name.startswith("sizes")]
    with pytest.raises(CabwError, match=r"sizes_\d+ (is|\()"):
        lowered(*changed(lowered, sizes[0], lambda size: size + 1))
    with pytest.raises(CabwError, match=rf"{sizes[0]} is of type float"):
        lowered(*changed(lowered, sizes[0], float))
    with pytest.raises(CabwError, match=r"called with 1 inputs\.\nExpected: \d+: inputs_0"):
        lowered(1)


def test_a_condition_of_several_sizes():
    """Trees of symbols, read off the inputs: by hand, since PyTorch decides which ones there are."""
    from cabw_viz.replay.lowering.guards import Expected, Guards

    expected = (Expected("inputs_0", "", ("s0", "s1"), ("s1", "1"), torch.float32, torch.device("cpu")),)
    guards = Guards(expected, ("s0 * s1 == 6", "s0 != 1", "(s1 // 2) >= 1", "s9 == 4"))
    assert guards.texts[0] == "inputs_0.shape[0] * inputs_0.shape[1] == 6"
    guards.check([torch.ones(2, 3)])
    guards.check([torch.ones(3, 2)])
    with pytest.raises(
        CabwError, match=r"violated, inputs_0\.shape\[0\] \* inputs_0\.shape\[1\] == 6: .*\[0\] is 2, .*is 2"
    ):
        guards.check([torch.ones(2, 2)])
    with pytest.raises(CabwError, match=r"violated, inputs_0\.shape\[0\] != 1"):
        guards.check([torch.ones(1, 6)])
    with pytest.raises(CabwError, match=r"inputs_0\.stride\(0\) is 1"):
        guards.check([torch.ones(3, 2).t()])
    with pytest.raises(CabwError, match=r"inputs_0\.shape\[0\] is 0\.\nExpected: at least 1"):
        guards.check([torch.ones(0, 6)])


def test_another_backward_is_no_input():
    session, lowered = two_layers()
    other = capture_of(None, lambda: leaf(3).sin().sum())
    with pytest.raises(CabwError, match="that capture is of another backward"):
        lowered.gradients(other)
    with pytest.raises(CabwError, match=r"gradients\(\) was called with a Session"):
        lowered.gradients(session)


# -- what it keeps, and what becomes of it -------------------------------------------------------------------


def test_it_keeps_no_captured_tensor_alive():
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    with cabw_viz.capture(model) as session:
        model(torch.randn(3, 5)).square().sum().backward()
    lowered = session[0].lower()
    captured_tensors = [weakref.ref(each) for each in session[0]._captured.state.arguments.inputs]
    activations = [each for each in captured_tensors if not isinstance(each(), nn.Parameter)]
    assert len(activations) >= 4
    assert not dict(lowered.named_parameters())
    assert not dict(lowered.named_buffers())
    session.close()
    gc.collect()
    alive = [each() for each in captured_tensors if each() is not None]
    assert all(isinstance(each, nn.Parameter) or each._base is not None for each in alive)
    assert not any(each() is not None and each()._base is None for each in activations)
    with pytest.raises(CabwError, match="the session was closed"):
        lowered.example_inputs()
    with pytest.raises(CabwError, match="the session was closed"):
        lowered.gradients()
    del session
    gc.collect()
    with pytest.raises(CabwError, match="is gone"):
        lowered.gradients()
    assert "forward" in lowered.code


def test_copies_pickles_and_compilers_take_it():
    session, lowered = two_layers()
    inputs = lowered.example_inputs()
    expected = lowered(*inputs)

    def same(found):
        return all(map(torch.equal, expected, found))

    copied = copy.deepcopy(lowered)
    assert isinstance(copied, Lowered)
    assert same(copied(*inputs))
    assert copied.leaves == lowered.leaves
    assert same(copied.gradients().values())
    assert same(pickle.loads(pickle.dumps(lowered))(*inputs))
    assert same(torch.compile(lowered.forward, backend="aot_eager", fullgraph=True)(*inputs))
    assert same(torch.export.export(lowered, inputs).module()(*inputs))
    assert session[0].error is None


def test_lowering_writes_nothing():
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    capture = capture_of(model, lambda: model(x).sum())
    before = [p.grad.clone() for p in model.parameters()]
    versions = [p._version for p in model.parameters()]
    state, entry = torch.get_rng_state(), torch.autograd._engine_run_backward
    capture.lower()
    assert all(map(torch.equal, before, [p.grad for p in model.parameters()]))
    assert versions == [p._version for p in model.parameters()]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.autograd._engine_run_backward is entry
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(CabwError, match="changed in place since the backward was captured"):
        capture.lower()


def test_without_a_graph_there_is_nothing_to_lower():
    session, _ = two_layers()
    session.close()
    with pytest.raises(CabwError, match="the session was closed"):
        session[0].lower()
    saved = leaf(3).exp()
    result = saved.sin().sum()
    with torch.no_grad():
        saved.add_(1)
    with cabw_viz.capture() as session, pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
    with pytest.raises(CabwError, match="this backward has no complete graph"):
        session[0].lower()
