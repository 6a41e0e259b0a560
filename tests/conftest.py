"""What every test is run with: marks that skip where a tool is missing, and a check that nothing is left switched on.

This file does not import torch, so that tests which must run without it can.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import hypothesis
import pytest

# No deadline: the first example that touches torch takes seconds. In CI the examples are the same each time.
hypothesis.settings.register_profile("cabw", deadline=None, derandomize="CI" in os.environ, print_blob=True)
hypothesis.settings.load_profile("cabw")

# One thread a process, set before torch starts: two workers share two cores, and sums come out the same each time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome."""
    return next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


def _has_accelerator() -> bool:
    import torch

    return torch.accelerator.is_available()


NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "dot": (
        lambda: shutil.which("dot") is not None,
        "needs Graphviz's dot; try: apt-get install graphviz, or conda install -c conda-forge graphviz",
    ),
    "browser": (
        lambda: find_chromium() is not None,
        "needs Chromium; try: apt-get install chromium",
    ),
    "gpu": (
        _has_accelerator,
        "needs an accelerator, and a build of torch for it: see https://pytorch.org/get-started/locally",
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--must-run",
        action="append",
        default=[],
        choices=sorted(NEEDS),
        help="a skipped test with this mark counts as failed (may be given several times)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _deselect_models(config, items)
    for mark, (is_there, reason) in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(mark)]
        if marked and not is_there():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def _deselect_models(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `models` take long, and need packages of their own: they run where `-m` names them."""
    if "models" in config.getoption("markexpr"):
        return
    models = [item for item in items if item.get_closest_marker("models")]
    if models:
        config.hook.pytest_deselected(items=models)
        items[:] = [item for item in items if item not in models]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    must_run = [mark for mark in item.config.getoption("--must-run") if item.get_closest_marker(mark)]
    if report.skipped and must_run and not hasattr(report, "wasxfail"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} is marked {', '.join(must_run)} and must run here, but: {why}"


def _leftovers() -> ModuleType | None:
    """The module that looks; None where torch is not loaded, and so nothing can be left in it."""
    if "torch" not in sys.modules:
        return None
    from tests import leftovers

    return leftovers


@pytest.fixture(autouse=True, scope="module")
def nothing_compiled() -> Iterator[None]:
    """After the tests of a file, Dynamo has compiled nothing: after a compilation, captures note no forward lines."""
    yield
    leftovers = _leftovers()
    if leftovers:
        leftovers.forget_compiled()


@pytest.fixture(autouse=True)
def clean_autograd() -> Iterator[None]:
    """After each test, nothing is left switched on, and a plain backward is right."""
    _leftovers()  # remembers how torch was before the test
    yield
    leftovers = _leftovers()
    remaining = leftovers.remaining() if leftovers else []
    if remaining:
        leftovers.remove()
        pytest.fail("left behind by this test:\n" + "\n".join(remaining), pytrace=False)
