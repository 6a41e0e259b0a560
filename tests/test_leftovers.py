"""The check that runs after each test finds what it is there to find, and says so when something is skipped."""

import contextlib

import pytest
import torch
from torch._dynamo import compiled_autograd, eval_frame
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests import leftovers

pytest_plugins = "pytester"


def identity(graph):
    return graph


@contextlib.contextmanager
def replaced(holder, name, value):
    prior = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, prior)


@contextlib.contextmanager
def bare_compiler():
    """Set in the engine alone, without any of the flags that `_enable` sets."""
    prior = leftovers.ENGINE.set_autograd_compiler(identity, True)
    try:
        yield
    finally:
        leftovers.ENGINE.set_autograd_compiler(*prior)


@contextlib.contextmanager
def scaled_backward():
    """An engine whose every result is a little off."""
    real = torch.autograd._engine_run_backward

    def entry(roots, gradients, *rest, **keywords):
        return real(roots, tuple(gradient * 1.001 for gradient in gradients), *rest, **keywords)

    with replaced(torch.autograd, "_engine_run_backward", entry):
        yield


def test_nothing_is_found_in_a_clean_process():
    assert leftovers.remaining() == []


@pytest.mark.parametrize(
    ("leftover", "message"),
    [
        (lambda: replaced(torch.autograd, "_engine_run_backward", lambda *a, **k: ()), "torch.autograd._engine"),
        (lambda: replaced(torch.autograd.graph, "_engine_run_backward", identity), "torch.autograd.graph._engine"),
        (
            lambda: replaced(compiled_autograd.AutogradCompilerInstance, "begin_capture", identity),
            "a method of AutogradCompilerInstance",
        ),
        (lambda: replaced(torch.nn.Module, "__call__", identity), "torch.nn.Module.__call__ is not"),
        (lambda: replaced(eval_frame, "_maybe_set_eval_frame", identity), "a function of Dynamo's is not"),
        (bare_compiler, "a compiler is set in the engine"),
        (lambda: compiled_autograd._enable(identity), "a compiler is set in the engine"),
        (lambda: compiled_autograd._enable(identity), "compiled_autograd_enabled is set"),
        (lambda: compiled_autograd._enable(identity), "compiled autograd's depth is not 0"),
        (lambda: compiled_autograd._enable(identity), "the engine's threads are switched off"),
        (compiled_autograd._disable, "active_disable_ctx is set"),
        (lambda: torch._dynamo.config.patch(compiled_autograd=True), "config.compiled_autograd is set"),
        (lambda: torch.compiler.set_stance("force_eager"), "stance is not the default"),
        (TorchDispatchMode, "a TorchDispatchMode is on the stack"),
        (TorchFunctionMode, "a TorchFunctionMode is on the stack"),
        (torch.no_grad, "gradients are disabled"),
        (torch.autograd.detect_anomaly, "anomaly detection is on"),
        (torch.autograd.graph.save_on_cpu, "saved-tensor hooks are active"),
        (scaled_backward, "a plain backward gives [2.00"),
    ],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_leftover_is_found(leftover, message):
    with leftover():
        lines = leftovers.remaining()
    assert any(message in line for line in lines), lines
    assert leftovers.remaining() == []


def test_a_leftover_is_removed():
    torch.autograd._engine_run_backward = identity
    compiled_autograd.AutogradCompilerInstance.begin_capture = identity
    leftovers.ENGINE.set_autograd_compiler(identity, True)
    compiled_autograd.compiled_autograd_enabled = True
    torch.set_grad_enabled(False)
    leftovers.remove()
    assert leftovers.remaining() == []


# ------------------------------------------------------------------------------------------------------- the conftest


@pytest.fixture
def inner(pytester):
    """Runs pytest in a folder of its own, with this project's conftest and marks."""
    from tests import conftest

    pytester.makeconftest("from tests.conftest import *")
    pytester.makeini("[pytest]\nmarkers =\n    gpu\n    dot\n    browser\n")
    pytester.syspathinsert(str(leftovers.Path(conftest.__file__).parent.parent))

    def run(text, *arguments):
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess(*arguments)

    return run


def test_a_leftover_fails_the_test_that_left_it_and_no_other(inner):
    result = inner("""
        import torch
        from torch._dynamo import compiled_autograd

        left = compiled_autograd._enable(lambda graph: graph)

        def test_before(): torch.ones(1)
        def test_leaves(): left.__enter__()
        def test_after(): torch.ones(1)
    """)
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_leaves*", "*left behind by this test:*"])


MARKED = """
    import pytest

    @pytest.mark.dot
    def test_drawing(): pass
    @pytest.mark.gpu
    def test_device(): pytest.skip("none")
"""


def test_a_test_whose_tool_is_missing_is_skipped_with_advice(inner, monkeypatch):
    monkeypatch.setenv("PATH", "")
    result = inner(MARKED, "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*apt-get install graphviz*"])


def test_a_skipped_test_that_must_run_has_failed(inner, monkeypatch):
    monkeypatch.setenv("PATH", "")
    result = inner(MARKED, "--must-run=dot", "--must-run=browser")
    result.assert_outcomes(errors=1, skipped=1)
    result.stdout.fnmatch_lines(["*test_drawing is marked dot and must run here, but: *apt-get install graphviz*"])
