"""A fixed sample of the sweeps, and the sweeps themselves: do their checks find what they look for?"""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from tests.captures import Twice
from tests.sweeps import checks, table, workers
from tests.sweeps.cases import Case, Program, cases, names
from tests.sweeps.checks import CHECKS, Report, check_case

EVERY = 20
"""One operator of so many is in the sample."""

SAMPLE = [("operator", name, "float32") for name in names("operator")[::EVERY]]
SAMPLE += [("operator", name, "complex64") for name in ("mul", "linalg.inv", "cumprod", "view_as_real")]
SAMPLE += [("operator", name, "bfloat16") for name in ("nn.functional.layer_norm", "addmm", "softmax")]
SAMPLE += [("operator", name, "float64") for name in ("nn.functional.huber_loss", "nn.functional.embedding")]
SAMPLE += [("module", name, "float32") for name in ("nn.Linear", "nn.GRU", "nn.MultiheadAttention", "nn.BatchNorm2d")]


@pytest.mark.parametrize(("kind", "name", "dtype"), SAMPLE, ids=lambda part: str(part))
def test_what_the_sweeps_check_holds(kind, name, dtype):
    (case,) = cases(kind, dtype, 1, name)
    report = check_case(case)
    assert table.unexplained([report]) == []
    assert report.skipped or {"harmless", "captured"} <= report.outcomes.keys()


@pytest.mark.models
@pytest.mark.parametrize("name", names("model"))
def test_what_the_sweeps_check_holds_for_a_model(name):
    (case,) = cases("model", "float32", 1, name)
    report = check_case(case)
    assert table.unexplained([report]) == []
    assert report.outcomes["captured"] == ("held", "")


def test_the_sweeps_know_every_operator_that_can_be_differentiated():
    from torch.testing._internal.common_methods_invocations import op_db

    assert len(names("operator")) == sum(op.supports_autograd for op in op_db) > 500
    assert len(names("model")) >= 20


# --------------------------------------------------------------------------------------- the checks can find something


def of_two(forward):
    """A program with two leaves."""
    torch.manual_seed(0)
    leaves = {"a": torch.randn(3, 4, requires_grad=True), "b": torch.randn(3, 4, requires_grad=True)}
    return Program(leaves, leaves, lambda: forward(leaves["a"], leaves["b"]))


def outcomes_of(monkeypatch, program):
    monkeypatch.setattr(checks, "program", lambda case: program)
    return check_case(Case("operator", "planted", "float32", 0)).outcomes


def test_a_right_program_holds_in_every_check(monkeypatch):
    outcomes = outcomes_of(monkeypatch, of_two(lambda a, b: (a * b).tanh().sum()))
    assert outcomes == dict.fromkeys(CHECKS, ("held", ""))


def test_harm_of_a_later_call_is_found(monkeypatch):
    """An audit that changes a leaf by one bit."""
    program = of_two(lambda a, b: (a * b).sum())

    def one_bit(capture):
        program.leaves["a"].data.view(torch.int32)[0, 0] ^= 1
        return original(capture)

    original = checks.Capture.audit
    monkeypatch.setattr(checks.Capture, "audit", one_bit)
    assert outcomes_of(monkeypatch, program)["harmless"][0] == "failed"


def test_a_random_number_that_a_later_call_draws_is_found(monkeypatch):
    original = checks.Capture.audit
    monkeypatch.setattr(checks.Capture, "audit", lambda capture: (torch.rand(1), original(capture))[1])
    assert outcomes_of(monkeypatch, of_two(lambda a, b: (a * b).sum()))["harmless"][0] == "failed"


def test_a_capture_that_changes_a_gradient_is_found(monkeypatch):
    original = checks._captured

    def captured(subject):
        gradients, session = original(subject)
        return gradients | {"a": gradients["a"].nextafter(torch.tensor(9.0))}, session

    monkeypatch.setattr(checks, "_captured", captured)
    outcome = outcomes_of(monkeypatch, of_two(lambda a, b: (a * b).sum()))["harmless"]
    assert outcome == ("failed", "other gradients than without a capture")


def test_a_lowered_graph_that_is_off_by_a_bit_is_found(monkeypatch):
    original = checks.Capture.replay
    monkeypatch.setattr(checks.Capture, "replay", lambda c: {k: v * 1.0000002 for k, v in original(c).items()})
    assert outcomes_of(monkeypatch, of_two(lambda a, b: (a * b).sum()))["lowered to the bit"][0] == "failed"


def test_what_pytorch_itself_does_is_not_charged(monkeypatch):
    """A Function that gives another gradient inside a compiled-autograd graph: PyTorch alone does so too."""

    class Other(Twice):
        @staticmethod
        def backward(ctx, g):
            return g * (3 if checks.compiled_autograd.in_compiled_autograd_region else 2)

    outcomes = outcomes_of(monkeypatch, of_two(lambda a, b: (Other.apply(a) * b).sum()))
    assert outcomes["captured"] == outcomes["harmless"] == ("held", "")


def test_random_gradients_are_not_judged(monkeypatch):
    class Random(Twice):
        calls = 0

        @staticmethod
        def backward(ctx, g):
            Random.calls += 1
            return g * Random.calls

    outcomes = outcomes_of(monkeypatch, of_two(lambda a, b: (Random.apply(a) * b).sum()))
    assert outcomes["harmless"] == ("not judged", "eager gives other gradients each time")
    assert "parity bitwise" not in outcomes


# ------------------------------------------------------------------------------------------------------------- workers


def work(item):
    """What a worker makes of an item; by its name it crashes, hangs or raises."""
    if item == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if item == "hang":
        time.sleep(60)
    if item == "raise":
        raise ValueError("on purpose")
    return item * 2


@pytest.mark.slow
def test_a_case_that_ends_its_process_costs_no_other():
    items = ["a", "crash", "b", "hang", "raise", "c"]
    results = dict(workers.run_guarded(work, items, workers=1, seconds=10))
    assert results == {
        "a": "aa",
        "b": "bb",
        "c": "cc",
        "crash": "ended the process: SIGSEGV",
        "hang": "did not end in 10 s",
        "raise": "the check itself raised ValueError: on purpose",
    }


def test_the_table_counts_and_names():
    def report(name, **outcomes):
        return Report(Case("operator", name, "float32", 0), {k.replace("_", " "): v for k, v in outcomes.items()})

    reports = [
        report("mul", harmless=("held", ""), audit=("held", "")),
        report("add", harmless=("held", ""), audit=("refused", "no kernel")),
        report("odd", harmless=("failed", "leaves changed")),
        Report(Case("operator", "skipped", "float32", 0), skipped="no history"),
    ]
    text = table.markdown(reports)
    assert "| harmless | 2 / 3 |" in text
    assert "| audit | 1 / 1 (1) |" in text
    assert "- audit: no kernel (add)" in text
    assert "- odd float32 #0, harmless: leaves changed" in text
    assert [row[0].name for row in table.unexplained(reports)] == ["odd"]
