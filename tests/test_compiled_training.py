"""Scripts that train under `torch.compile`, run twice: the second finds all that is compiled on disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiled_training import CASES, STEPS

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")

ROOT = Path(__file__).parent.parent
SAMPLE = ("dynamic", "checkpoint_dropout")
OTHERS = [name for name in CASES if name not in SAMPLE]


def reports(names, cache):
    """What comes of cases in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.compiled_training", *names],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def check(names, cache):
    for run in ("cold", "warm"):
        for name, report in reports(names, cache).items():
            what = f"{name}, {run} cache: {report}"
            assert report["outcomes"] == [["captured"]] * STEPS, what
            assert [len(step) for step in report["verdicts"]] == [1] * STEPS, what
            assert all(parity and divergence is not False for ((parity, divergence),) in report["verdicts"]), what
            assert report["same"], what
            assert report["right"] is not False, what
            assert all(fault == [False, "CompiledFunctionBackward"] for fault in report["faults"]), what
            assert len(report["faults"]) in (0, STEPS), what


@pytest.mark.models
@pytest.mark.timeout(900)
def test_a_second_run_is_captured_and_judged_as_the_first(tmp_path):
    check(SAMPLE, tmp_path)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("names", [OTHERS[::3], OTHERS[1::3], OTHERS[2::3]], ids="+".join)
def test_the_other_ways_to_compile(names, tmp_path):
    check(names, tmp_path)
