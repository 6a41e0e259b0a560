"""`cabw_viz.compare` on steps that are hard to judge: choices, NaN, random numbers, control flow, cleared gradients."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import cabw_viz
from cabw_viz import torch_adapter
from tests.steps import CHEAP, conv_net, faulty, step_of


class Scaled(torch.autograd.Function):
    """Passes on; its backward multiplies."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


# ------------------------------------------------------------------------------------------------------------- choices


class Experts(nn.Module):
    """A mixture of experts whose router begins at zero: every choice is a tie, which rounding breaks."""

    def __init__(self, width, count):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.factor = 1.0
        nn.init.zeros_(self.router.weight)

    def forward(self, x):
        weight, index = self.router(x).softmax(-1).topk(1, -1)
        y = Scaled.apply(torch.stack([expert(x) for expert in self.experts], -2), self.factor)
        return torch.gather(y, -2, index.unsqueeze(-1).expand(*index.shape, y.shape[-1])).squeeze(-2) * weight


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1 / 3000), (torch.bfloat16, 1 / 30)])
def test_a_fault_of_all_of_a_small_gradient_is_not_excused_by_choices_that_turn_over(dtype, share, recomputed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), Experts(16, 4), nn.Linear(16, 4)).to(dtype)
    x = torch.randn(32, 16).to(dtype)

    def step(factor=1.0):
        net[1].factor = factor
        h = net[0](x)
        experts = functools.partial(checkpoint, net[1], use_reentrant=False) if recomputed else net[1]
        loss = net[2](h + experts(h) * share).float().square().mean()
        loss.backward()
        return loss.detach()

    matrix = cabw_viz.compare(step, net, backends=["eager"], against={"twice": lambda: step(2.0)}, repeats=1)
    assert not matrix.ok
    assert (matrix.frame["eager"] == "bitwise").all()
    frame = matrix.frame["twice"]
    step()
    of_experts = {name for name, param in net.named_parameters() if "experts" in name and param.grad.any()}
    assert of_experts
    assert {name for name in frame.index if frame[name] in ("mismatch", "not_judged")} == of_experts


@pytest.mark.parametrize("name", ["0.weight", "3.weight"])
def test_sides_of_relus_that_turn_over_in_half_precision_are_no_fault_and_a_fault_beside_them_is_found(name):
    """A batch norm rounds otherwise when it is taken apart; a tenth of a gradient may then go through other ReLUs."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)),
    ).to(torch.bfloat16)
    x, y = torch.randn(16, 3, 12, 12).to(torch.bfloat16), torch.randint(0, 10, (16,))

    def step():
        return nn.functional.cross_entropy(net(x).float(), y)

    compiled = torch.compile(step, backend="aot_eager_decomp_partition")
    against = {"right": compiled, "faulty": faulty(net, compiled, name=name, fault=lambda grad: grad * 1.5)}
    matrix = cabw_viz.compare(step, net, backends=[], against=against, repeats=1)
    assert matrix.report("right").ok, matrix
    frame = matrix.frame["faulty"]
    assert [each for each in frame.index if frame[each] in ("mismatch", "not_judged")] == [name]


# ------------------------------------------------------------------------------------------------------ NaN, infinity


def test_nan_on_both_sides_is_no_difference_and_an_infinity_on_one_side_is_named():
    torch.manual_seed(0)
    q, w = torch.randn(3, 4, requires_grad=True), torch.randn(3, requires_grad=True)
    mask = torch.zeros(3, 3, dtype=torch.bool)
    mask[1:] = True  # row 0 may look at nothing

    def step(factor=1.0):
        attention = (q @ q.mT).masked_fill(~mask, float("-inf")).softmax(-1) @ q
        return attention[1:].sum() + Scaled.apply(w, factor).sum()

    against = {"infinite": lambda: step(float("inf"))}
    backends = ["eager", "aot_eager"]
    matrix = cabw_viz.compare(step, {"q": q, "w": w}, backends=backends, against=against, repeats=1)
    step().backward()
    assert q.grad.isnan().all()
    assert matrix.summary == "1 of 3 runs differ: infinite in the one call (worst w: nonfinite)."
    assert dict(matrix.frame["infinite"]) == {"q": "bitwise", "w": "nonfinite", "(loss)": "bitwise"}
    assert [line.split(":")[0] for line in matrix.differences] == ["infinite in the one call"]


# ------------------------------------------------------------------------------------------------------ subclasses


class SecondScaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return TwoTensor(grad.a, grad.b * 3) if isinstance(grad, TwoTensor) else grad


def test_every_inner_tensor_of_a_subclass_is_compared():
    torch.manual_seed(0)
    p, x = torch.randn(3, 3, requires_grad=True), TwoTensor(torch.randn(3, 3), torch.randn(3, 3))

    def step():
        return ((x + p) * p).sum()

    against = {"faulty": lambda: ((x + SecondScaled.apply(p)) * p).sum()}
    matrix = cabw_viz.compare(step, {"p": p}, backends=["eager"], against=against, repeats=1)
    assert dict(matrix.frame["faulty"]) == {"p": "mismatch", "(loss)": "bitwise"}
    assert matrix.report("eager").ok


# -------------------------------------------------------------------------------------------------- random numbers


def test_a_run_that_draws_other_random_numbers_is_named_as_such():
    net = conv_net()
    step = step_of(net)

    def other():
        torch.rand(3)
        return step()

    matrix = cabw_viz.compare(step, net, backends=["aot_eager"], against={"other": other}, repeats=1)
    assert matrix.report("aot_eager").ok
    assert not matrix.ok
    notes = {run.name: run.notes for run in matrix.matrix.runs}
    assert notes["aot_eager"] == ()
    assert "draws other random numbers than eager" in notes["other"][0]
    assert "draws other random numbers" in repr(matrix)
    net[4].eval()
    steady = cabw_viz.compare(step, net, backends=["aot_eager"], against={"other": other}, repeats=1)
    assert steady.ok
    assert "random numbers" not in repr(steady)


def test_a_fault_beside_the_same_random_numbers_is_not_put_down_to_them():
    net = conv_net()
    step = step_of(net)
    matrix = cabw_viz.compare(step, net, backends=[], against={"faulty": faulty(net, step)}, repeats=1)
    assert not matrix.ok
    assert "random numbers" not in repr(matrix)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_inductor_draws_eagers_random_numbers_in_a_comparison_and_its_own_afterwards(own):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 1)), torch.randn(32, 6)

    def step():
        return net(x).square().mean()

    runs = {"against": {"mine": torch.compile(step)}, "backends": []} if own else {"backends": "inductor"}
    matrix = cabw_viz.compare(step, net, repeats=2, **runs)
    assert matrix.ok, matrix
    assert any("fallback_random=True" in note for note in matrix.matrix.notes)
    assert torch_adapter.inductor_has_own_random_numbers()
    other = faulty(net, torch.compile(step), name="0.weight")
    assert not cabw_viz.compare(step, net, backends=[], against={"faulty": other}, repeats=1).ok


# ------------------------------------------------------------------------------------- operators that are compiled


@pytest.fixture
def recurrence():
    torch.manual_seed(0)
    w, v, x = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True), torch.randn(4, 2, 3)

    def branched(factor=1.0):
        h = Scaled.apply(x[0] @ w, factor)
        return torch.cond(h.sum() > 0, lambda a, b: (a @ b).sin(), lambda a, b: (a @ b).cos(), (h, v)).sum()

    def scanned(factor=1.0):
        carry, y = scan(lambda c, t: ((c + t @ w).tanh(), (c + t).sin()), torch.zeros(2, 3), x)
        return y.sum() + Scaled.apply(carry, factor).square().sum()

    return {"w": w, "v": v}, {"cond": branched, "scan": scanned}


@pytest.mark.parametrize("name", ["cond", "scan"])
def test_a_step_with_control_flow_is_compared_and_has_no_compiled_parts(recurrence, name):
    params, step = recurrence[0], recurrence[1][name]
    against = {"faulty": lambda: step(1.01)}
    matrix = cabw_viz.compare(step, params, backends=["eager", "aot_eager"], against=against, repeats=1)
    assert matrix.runs == ("eager", "aot_eager", "faulty")
    assert matrix.report("aot_eager").ok, matrix
    assert matrix.frame["faulty"]["w"] == "mismatch"
    step().backward()
    assert params["w"].grad.norm() > 0


def test_a_compiled_part_beside_control_flow_runs_uncompiled_in_the_reference(recurrence):
    params, steps = recurrence
    ran = []

    def counting(graph, inputs):
        def run(*args):
            ran.append(torch.compiler.is_compiling())
            return graph(*args)

        return run

    compiled = torch.compile(lambda t: (t * 2).sin(), backend=counting)
    matrix = cabw_viz.compare(lambda: compiled(params["v"]).sum() + steps["cond"](), params, backends=CHEAP, repeats=1)
    assert matrix.runs == ("eager", "as_is", "compiled_autograd")
    assert matrix.ok, matrix
    assert len(ran) == 2  # as it is, and through compiled autograd; not in eager, which ran twice


# --------------------------------------------------------------------------------- steps that clear their gradients


def stepping_in_backward(net, rate=0.1):
    """Each parameter's own optimizer steps in a hook when its gradient is there, and clears it."""
    optimizers = {param: torch.optim.SGD([param], rate, momentum=0.9) for param in net.parameters()}

    def hook(param):
        optimizers[param].step()
        param.grad = None

    for param in net.parameters():
        param.register_post_accumulate_grad_hook(hook)
    return optimizers


def test_gradients_that_an_optimizer_in_the_backward_clears_are_compared():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)), torch.randn(5, 4)

    def step(factor=1.0):
        return net[2](Scaled.apply(net[1](net[0](x)), factor)).square().sum()

    step().backward()
    expected = {name: param.grad.clone() for name, param in net.named_parameters()}
    net.zero_grad()
    stepping_in_backward(net)
    against = {"faulty": lambda: step(1.01)}
    matrix = cabw_viz.compare(step, net, backends=["eager", "aot_eager"], against=against, repeats=1)
    assert matrix.report("eager").ok, matrix
    assert matrix.report("aot_eager").ok, matrix
    wrong = {name for name, verdict in matrix.frame["faulty"].items() if verdict == "mismatch"}
    assert wrong == {"0.weight", "0.bias"}
    for row in matrix.report("faulty").comparison.rows:
        if row.first is not None:
            assert row.first.reference == expected[row.name][row.first.index].item()
    assert cabw_viz.compare(step, net, backends=["eager", "compiled_autograd"]).ok


def test_a_training_step_that_ends_with_zero_grad_is_compared():
    torch.manual_seed(0)
    net, x = nn.Linear(4, 1), torch.randn(5, 4)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

    def step(factor=1.0):
        loss = Scaled.apply(net(x), factor).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    matrix = cabw_viz.compare(step, net, backends=["eager", "compiled_autograd"], against={"faulty": lambda: step(2.0)})
    assert matrix.report("compiled_autograd").ok, matrix
    assert {"weight", "bias"} <= {name for name, v in matrix.frame["faulty"].items() if v == "mismatch"}
    assert not optimizer.state


def test_a_gradient_that_is_not_there_is_still_missing():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    x = torch.randn(2, 3)
    stepping_in_backward(net)
    against = {"without": lambda: net[1](net[0](x).detach()).sum()}
    matrix = cabw_viz.compare(lambda: net[1](net[0](x)).sum(), net, backends=[], against=against, repeats=1)
    assert dict(matrix.frame["without"].items())["0.weight"] == "missing"
    assert matrix.frame["without"]["1.weight"] == "bitwise"


# ------------------------------------------------------------------------------------------------- not reproducible


def test_uninitialised_memory_in_a_gradient_is_not_reproducible_and_never_ok():
    class Unwritten(torch.autograd.Function):
        count = 0

        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            Unwritten.count += 1  # stands for what was in the memory
            return grad + 1e30 * Unwritten.count

    w, v = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)

    def step(factor=1.0):
        return Unwritten.apply(w).sum() + Scaled.apply(v, factor).sum()

    against = {"faulty": lambda: step(1.01)}
    matrix = cabw_viz.compare(step, {"w": w, "v": v}, backends=["aot_eager"], against=against, repeats=1)
    assert not matrix.ok
    assert dict(matrix.frame["aot_eager"]) == {"w": "not_reproducible", "v": "bitwise", "(loss)": "bitwise"}
    assert dict(matrix.frame["faulty"]) == {"w": "not_reproducible", "v": "mismatch", "(loss)": "bitwise"}
    assert "uninitialised" in repr(matrix)
