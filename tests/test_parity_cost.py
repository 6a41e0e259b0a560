"""What a parity runs and holds: pieces give what whole tensors give, and no run is made that decides nothing."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

import cabw_viz
from cabw_viz.numerics import chunks as pieces
from cabw_viz.numerics.compare import compare
from cabw_viz.numerics.distance import distance, relative_distance
from cabw_viz.numerics.perturb import NUMBERS, UniformRounding
from cabw_viz.numerics.tolerance import Tolerance
from cabw_viz.replay.interpreter import GradientCollector
from cabw_viz.replay.placement import placed_graph
from cabw_viz.replay.replay import Replay
from cabw_viz.runtime.gradient_snapshots import Gradient


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "CHUNK", 7)


def tensors():
    torch.manual_seed(0)
    base = torch.randn(5, 6, 4, dtype=torch.float64)
    yield base
    yield base.permute(2, 0, 1)
    yield base[:, ::2]
    yield base[:1].expand(3, 6, 4)
    yield torch.complex(base, base.flip(0))
    yield torch.complex(base, base.flip(0)).mT.conj()
    yield base.reshape(-1)
    yield torch.tensor(2.5, dtype=torch.float64)


@pytest.mark.parametrize("exact", list(tensors()))
def test_distance_in_pieces_is_that_of_the_whole(small_pieces, exact):
    value = exact * (1 + 1e-3 * torch.rand(exact.shape, dtype=torch.float64))
    e, v = exact.resolve_conj().numpy(), value.resolve_conj().numpy()
    difference = abs(v - e)
    expected = (
        difference.max() / abs(e).max(),
        (difference**2).sum() ** 0.5 / (abs(e) ** 2).sum() ** 0.5,
        ((v - e) * e.conj()).sum().real / (abs(e) ** 2).sum(),
    )
    measured = distance(value, exact)
    assert (measured.largest, measured.mean_square, measured.systematic) == pytest.approx(expected, rel=1e-9)
    assert relative_distance(exact, value) == pytest.approx(expected[1], rel=1e-9)


def test_elements_that_are_not_finite_are_left_out_of_a_distance(small_pieces):
    exact = torch.arange(1.0, 41.0, dtype=torch.float64)
    value = exact * 1.01
    value[3], exact[30] = torch.inf, torch.nan
    assert distance(value, exact).systematic == pytest.approx(0.01)
    assert distance(value, exact).largest == pytest.approx(0.01)


@pytest.mark.parametrize("reference", [each for each in tensors() if each.numel() > 60])
def test_the_first_and_the_largest_difference_are_found_in_any_piece(small_pieces, reference):
    candidate = reference.clone()
    places = [tuple(size - 1 for size in reference.shape), tuple(size // 2 for size in reference.shape)]
    candidate[places[0]] += 0.5
    candidate[places[1]] += 0.25
    row = compare("w", Gradient(reference, None), Gradient(candidate, None), Tolerance(0.0, 1e-3))
    scale = float(reference.abs().max())
    assert row.verdict == "mismatch"
    assert row.mismatched == 2
    assert row.max_abs_err == pytest.approx(0.5)
    assert row.max_rel_err == pytest.approx(0.5 / scale)
    assert row.first.index == places[1]
    same = compare("w", Gradient(reference, None), Gradient(reference.clone(), None), Tolerance(0.0, 1e-3))
    assert same.verdict == "bitwise"
    assert same.first is None


def test_a_nan_in_the_last_piece_is_seen(small_pieces):
    reference, candidate = torch.ones(50), torch.ones(50)
    candidate[49] = torch.nan
    row = compare("w", Gradient(reference, None), Gradient(candidate, None), Tolerance(0.1, 0.1))
    assert row.verdict == "nonfinite"
    assert row.first.index == (49,)
    large = torch.full((50,), torch.finfo(torch.float32).max)  # finite, though their sum overflows
    assert compare("w", Gradient(large, None), Gradient(large.clone(), None), Tolerance(0, 0)).nonfinite == 0


def test_numbers_that_are_used_in_turn_are_spread_evenly_and_go_on_where_they_stopped():
    rounding = UniformRounding(1.0, seed=3)
    ones = torch.ones(400_000, dtype=torch.float64)
    runs = [rounding(ones) - 1 for _ in range(4)]
    for run in runs:
        assert -0.5 <= run.min() < -0.499
        assert 0.499 < run.max() <= 0.5
        assert abs(run.mean()) < 3e-3
    assert torch.equal(torch.cat(runs)[NUMBERS:], torch.cat(runs)[: 4 * len(ones) - NUMBERS])
    assert not torch.equal(runs[0], runs[1])
    assert torch.equal(UniformRounding(1.0, seed=3)(ones) - 1, runs[0])


# ------------------------------------------------------------------------------------------------------ which runs


@pytest.fixture
def runs(monkeypatch):
    """The interpreters of all runs, and how many autograd nodes' calls each made."""
    made = []
    run = Replay.run

    def noted(self, interpreter, **options):
        calls = []
        call_function = interpreter.call_function

        def counted(target, args, kwargs):
            calls.append(interpreter.current.name)
            return call_function(target, args, kwargs)

        interpreter.call_function = counted
        gradients = run(self, interpreter, **options)
        made.append(calls)
        return gradients

    monkeypatch.setattr(Replay, "run", noted)
    return made


def layers():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))), torch.randn(8, 16)


def captured(model, batch):
    with cabw_viz.capture(model) as session:
        model(batch).square().mean().backward()
    return session[0]


def test_inputs_in_another_dtype_go_as_they_are_used(monkeypatch):
    references, alive = [], []
    moved_inputs, accumulate = placed_graph._moved_inputs, GradientCollector._accumulate

    def noted(*args):
        inputs = moved_inputs(*args)
        references.extend(weakref.ref(each) for each in inputs if each.dtype is torch.float64)
        return inputs

    def counted(self, gradient):
        alive.append(sum(reference() is not None for reference in references))
        return accumulate(self, gradient)

    monkeypatch.setattr(placed_graph, "_moved_inputs", noted)
    monkeypatch.setattr(GradientCollector, "_accumulate", counted)
    capture = captured(*layers())
    assert capture.parity(dtype="float64").ok
    assert alive[0] >= 4
    assert alive[-1] <= 1
    assert alive == sorted(alive, reverse=True)
    assert capture.parity(dtype="float64").ok, "the capture's own inputs are still there"


def test_a_float64_parity_that_is_within_the_tolerance_runs_the_graph_once(runs):
    report = captured(*layers()).parity(dtype="float64")
    assert report.ok
    assert len(runs) == 1
    assert report.frame["reference_err"].between(1e-9, 1e-5).all()
    assert (report.frame["candidate_err"] == 0).all()


def test_a_half_precision_parity_within_the_least_that_rounding_does_runs_it_twice(runs):
    report = captured(*layers()).parity(dtype="bfloat16")
    assert report.ok
    assert len(runs) == 2, "once in bfloat16, once in float64"


def test_a_fault_that_only_a_replay_has_is_found_without_running_what_stands_behind_it(runs):
    model, batch = layers()
    state = {"on": False}
    model[3].weight.register_hook(lambda gradient: gradient * 1.01 if state["on"] else gradient)
    capture = captured(model, batch)
    state["on"] = True
    report = capture.parity(dtype="bfloat16")
    verdicts = {row.name: row.verdict for row in report.comparison.rows}
    assert [name for name, verdict in verdicts.items() if verdict == "mismatch"] == ["3.weight"]
    longest = max(map(len, runs))
    assert min(map(len, runs)) < longest * 0.85, "a run ended at the gradient in question"
