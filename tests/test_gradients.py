"""The sizes of gradients, against arithmetic by hand on `.grad` and on what hooks see."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.runtime.gradient_statistics import norm_of, statistics_of
from tests import definitions


def leaves(frame):
    return frame[frame["kind"] == "leaf"].set_index("name")


def nodes(frame):
    return frame[frame["kind"] == "node"].set_index("autograd_node")


def by_hand(gradient):
    """Norm, largest, and the counts of zeros, subnormals, NaN, infinities, by NumPy in double precision."""
    tiny = float(torch.finfo(gradient.dtype).smallest_normal)
    wide = gradient.to(torch.complex128 if gradient.dtype.is_complex else torch.float64).numpy()
    with np.errstate(all="ignore"):
        sizes = np.abs(wide)
        norm = np.sqrt((sizes**2).sum())
    return (
        norm,
        sizes.max(),
        (sizes == 0).sum(),
        ((sizes > 0) & (sizes < tiny)).sum(),
        np.isnan(sizes).sum(),
        np.isinf(sizes).sum(),
    )


def figures(statistics):
    s = statistics
    return s.norm, s.largest, s.zeros, s.subnormals, s.nans, s.infinities


def special(dtype, size=200_000):
    """Numbers of all kinds: zeros, subnormal ones, ordinary ones."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(size, generator=generator, dtype=torch.float64)
    values[::3] = 0
    values[1::7] *= float(torch.finfo(dtype).smallest_normal) / 16
    return values.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_statistics_are_those_of_numpy(dtype):
    gradient = special(dtype)
    expected = by_hand(gradient)
    assert expected[2] > 0 < expected[3]
    assert figures(statistics_of(gradient)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_number_counts_by_its_absolute_value(dtype):
    real = special(torch.float32 if dtype is torch.complex64 else torch.float64)
    gradient = torch.complex(real, real.flip(0))
    assert figures(statistics_of(gradient)) == pytest.approx(by_hand(gradient), rel=1e-5)
    assert figures(statistics_of(gradient.conj())) == pytest.approx(by_hand(gradient), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
def test_squares_neither_overflow_nor_vanish(scale):
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * scale
    assert statistics_of(gradient).norm == pytest.approx(by_hand(gradient)[0], rel=1e-5)
    assert float(norm_of(gradient)) == pytest.approx(by_hand(gradient)[0], rel=1e-5)


def test_nan_and_infinity_are_counted():
    gradient = torch.ones(100_000)
    gradient[:3], gradient[70_000:70_005], gradient[99_999] = math.nan, -math.inf, 0
    found = statistics_of(gradient)
    assert (found.nans, found.infinities, found.zeros, found.is_finite) == (3, 5, 1, False)
    assert math.isnan(found.norm)
    assert math.isnan(found.largest)
    infinite = statistics_of(torch.tensor([1.0, -math.inf]))
    assert (infinite.norm, infinite.largest, infinite.infinities) == (math.inf, math.inf, 1)


def test_layouts_and_classes():
    dense = torch.tensor([[0.0, 3.0], [4.0, 0.0]])
    expected = figures(statistics_of(dense))
    assert expected == (5, 4, 2, 0, 0, 0)
    twice = torch.sparse_coo_tensor([[0, 1, 1], [1, 0, 0]], [3.0, 1.0, 3.0], (2, 2))  # 1 and 3 stand at one place
    for other in (
        dense.to_sparse(),
        twice,
        dense.to_sparse_csr(),
        dense.as_subclass(type("Mine", (torch.Tensor,), {})),
    ):
        assert figures(statistics_of(other)) == expected
        assert statistics_of(other).elements == 4
    assert figures(statistics_of(torch.tensor(2.0).expand(3, 3))) == (6, 2, 0, 0, 0, 0)
    assert figures(statistics_of(torch.tensor([3, -4, 0]))) == (5, 4, 1, 0, 0, 0)
    empty = statistics_of(torch.empty(0, 3))
    assert (empty.norm, empty.rms, empty.is_zero, empty.elements) == (0, 0, False, 0)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=torch.jagged)
    assert figures(statistics_of(nested))[:3] == pytest.approx((math.sqrt(2), 1, 3))


def test_what_cannot_be_known_is_said():
    found = statistics_of(torch.empty(3, device="meta"))
    assert (found.norm, found.rms, found.elements) == (None, None, 3)
    assert found.note == "not known: a meta tensor has no values"
    assert norm_of(torch.empty(3, device="meta")) is None


@pytest.mark.parametrize("name", ["gpt2", "resnet", "lstm"])
@pytest.mark.parametrize("max_bytes", [2**29, 0])
def test_a_capture_gives_what_grad_and_hooks_show(name, max_bytes):
    model, forward = getattr(definitions, name)()
    before = {name: parameter.detach().double().norm().item() for name, parameter in model.named_parameters()}
    loss = forward()
    seen = {}
    with cabw_viz.capture(model, max_bytes=max_bytes) as session:
        capture_numbers(loss.grad_fn, seen)
        loss.backward()
    frame = session[0].gradients()
    rows = leaves(frame)
    for label, row in rows.iterrows():
        parameter = model.get_parameter(label.split(" = ")[0])
        gradient = parameter.grad
        assert row["norm"] == pytest.approx(gradient.double().norm().item(), rel=1e-5)
        assert row["rms"] == pytest.approx(gradient.double().square().mean().sqrt().item(), rel=1e-5)
        assert row["largest"] == gradient.abs().max().item()
        assert row["zeros"] == pytest.approx((gradient == 0).double().mean().item())
        assert row["parameter_norm"] == pytest.approx(before[label.split(" = ")[0]], rel=1e-5)
        if before[label.split(" = ")[0]]:
            assert row["ratio"] == pytest.approx(gradient.norm().item() / before[label.split(" = ")[0]], rel=1e-4)
        else:
            assert row["ratio"] == math.inf
        assert (row["shape"], row["dtype"]) == (tuple(gradient.shape), "float32")
    found = sorted(norm for norm in nodes(frame)["norm"].dropna() if norm)
    assert len(found) > 20
    assert found == pytest.approx(sorted(norm for norm in seen.values() if norm), rel=1e-5)


def capture_numbers(root, seen):
    """Hooks of our own that note the norm of what flows into every node."""
    todo = [root]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen[node] = None

        def note(gradients, node=node):
            seen[node] = math.hypot(*(g.double().norm().item() for g in gradients if g is not None))

        node.register_prehook(note)
        todo += [next_node for next_node, _ in node.next_functions]


def test_the_figures_are_those_before_an_optimizer_steps_and_stay_when_the_session_is_closed():
    model = nn.Linear(3, 2)
    before = model.weight.detach().norm().item()
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    with cabw_viz.capture(model, snapshot=True) as session:
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    rows = leaves(session[0].gradients())
    assert rows.loc["weight", "parameter_norm"] == pytest.approx(before)
    assert rows.loc["weight", "norm"] == pytest.approx(4 * math.sqrt(6))
    session.close()
    assert leaves(session[0].gradients()).equals(rows)


def test_an_earlier_grad_is_not_counted():
    model = nn.Linear(3, 2)
    model.weight.grad = torch.full((2, 3), 100.0)
    with cabw_viz.capture(model) as session:
        model(torch.ones(4, 3)).sum().backward()
    assert leaves(session[0].gradients()).loc["weight", "norm"] == pytest.approx(4 * math.sqrt(6))


@pytest.mark.parametrize("gradients", ["leaves", "nodes"])
def test_what_autograd_grad_returns_and_what_gets_nothing(gradients):
    x, y, z = (torch.ones(3, requires_grad=True) for _ in range(3))
    with cabw_viz.capture({"x": x, "y": y, "z": z}, gradients=gradients) as session:
        torch.autograd.grad((x * 3).sum() + y.sum(), (x, y, z), allow_unused=True)
    rows = leaves(session[0].gradients())
    assert rows["norm"].tolist()[:2] == pytest.approx([3 * math.sqrt(3), math.sqrt(3)])
    assert math.isnan(rows.loc["z", "norm"])
    assert rows.loc["z", "note"] == "no gradient"


def test_without_gradients_and_after_closing_it_says_what_to_do():
    model = nn.Linear(3, 2)
    with cabw_viz.capture(model, gradients="none") as session:
        model(torch.ones(4, 3)).sum().backward()
    with pytest.raises(cabw_viz.CabwError, match='gradients="none"'):
        session[0].gradients()
    with cabw_viz.capture(model) as session:
        model(torch.ones(4, 3)).sum().backward()
    session.close()
    with pytest.raises(cabw_viz.CabwError, match=r"before session\.close"):
        session[0].gradients()


def test_a_run_through_compiled_autograd_knows_the_leaves():
    model = nn.Linear(3, 2)
    with cabw_viz.capture(model, run="compiled") as session:
        model(torch.ones(4, 3)).sum().backward()
    row = leaves(session[0].gradients()).loc["weight"]
    assert row["norm"] == pytest.approx(4 * math.sqrt(6))
    assert row["parameter_norm"] == pytest.approx(model.weight.norm().item())
