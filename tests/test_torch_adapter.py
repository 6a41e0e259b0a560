"""The adapter: what it checks, what it says of a PyTorch that it does not know, and its patch of the engine's entry."""

import contextlib
import functools
import gc
import subprocess
import sys
import weakref

import pytest
import torch

import cabw_viz
from cabw_viz import CabwError, torch_adapter
from cabw_viz.replay.lowering.symbolic_trace import no_nested_accumulation
from cabw_viz.replay.placement.preserve_grad import preserving_grad_fields
from cabw_viz.torch_adapter.callbacks import CALLBACKS

# ------------------------------------------------------------------------------------------------------- the callbacks


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_that_was_renamed_is_an_error_that_names_it(monkeypatch, name):
    monkeypatch.delattr(torch_adapter.TracerBase, name)
    with pytest.raises(CabwError, match=rf"compiled autograd has no {name} in torch {torch.__version__[:4]}") as error:
        torch_adapter.check.__wrapped__()
    assert str(CALLBACKS[name].signatures[0]) in error.value.expected


@pytest.mark.parametrize("name", CALLBACKS)
def test_an_argument_that_was_moved_is_an_error_that_names_the_callback(monkeypatch, name):
    monkeypatch.setattr(torch_adapter.TracerBase, name, lambda self, another, *rest: None)
    with pytest.raises(CabwError, match=rf"{name} takes \('another', 'rest'\)"):
        torch_adapter.check.__wrapped__()


class Tracer:
    def allocate_dummy(self):
        return "dummy"

    def allocate_dummy_like(self, variable):
        return f"dummy like {variable}"


@pytest.mark.parametrize(
    ("name", "args", "answer"),
    [
        ("set_node_origin", ("TanhBackward0", 3, None), None),
        ("apply_functional", ("TanhBackward0", ["grad"], [], ["a", "b"]), ["dummy", "dummy"]),
        ("proxy_call_backward", (["grad"], [None, "b"], [], 0, "ctx", None), (None, "dummy")),
        ("proxy_call_backward", (["grad"], [None, "b"], [], 0, "ctx", None, []), (None, "dummy")),
        ("call_copy_slices_prologue", (["grad"], [], [], 0, [], [], 0), ["dummy"] * 3),
        ("call_copy_slices_epilogue", ([True, False], "result", [], "slice"), ["dummy"] * 2),
        ("validate_outputs", (None, ["grad"], [], []), ["grad"]),
        ("accumulate", ("old", "new"), "dummy"),
        ("accumulate_grad", ("leaf", "grad", False), "dummy like leaf"),
        ("accumulate_grad", ("leaf", None, "grad", False), "dummy like leaf"),
        ("tensor_pre_hook", (["grad"], 0, 0), ["grad"]),
        ("cpp_tensor_pre_hook", (["grad"], 0, 0), ["grad"]),
        ("pre_hook", (["grad"], 0), ["grad"]),
        ("post_hook", (["out"], ["grad"], 0), ["out"]),
        ("post_acc_grad_hook", ("leaf", 0), ["leaf"]),
        ("unpack_hook", (0, 1), "dummy"),
    ],
)
def test_a_fallback_answer_has_as_many_tensors_as_cpp_expects(name, args, answer):
    assert torch_adapter.fallback_answer(name, Tracer(), args) == answer


def test_every_callback_that_must_not_raise_has_a_fallback_answer():
    assert {name for name, callback in CALLBACKS.items() if callback.fallback is None} == {
        "begin_capture",
        "remove_unused_sizes",
        "end_capture",
    }


# ----------------------------------------------------------------------------------------- names that this torch lacks


@pytest.mark.parametrize(
    ("first", "removal"),
    [  # each name is used first in one of the processes
        (0, "import torch._dynamo.external_utils as home; del home.call_hook"),
        (1, "import torch._dynamo.compiled_autograd as home; del home.AutogradCompilerInstance"),
        (2, "import torch, sys; sys.modules['torch._dynamo.callback'] = None"),
    ],
)
def test_a_private_name_that_is_gone_is_an_error_that_names_the_version(first, removal):
    code = f"""
{removal}
import torch, cabw_viz
uses = lambda: cabw_viz.capture, lambda: cabw_viz.compare, lambda: cabw_viz.testing.assert_gradient_parity
for use in (uses * 3)[{first}:]:  # the second time too
    try:
        use()
    except cabw_viz.CabwError as error:
        assert torch.__version__ in error.seen and "lacks" in error.seen, error.seen
        assert "pip install" in error.try_
    else:
        raise AssertionError("no error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# ----------------------------------------------------------------------------------------------- the engine's entry


def entry():
    return torch.autograd._engine_run_backward


@contextlib.contextmanager
def capture_block():
    with cabw_viz.capture({}, lines=False):
        yield


def no_accumulation():
    return no_nested_accumulation(lambda: RuntimeError("accumulates"))


USERS = [capture_block, preserving_grad_fields, no_accumulation]


@pytest.fixture
def restored():
    before = entry()
    yield before
    torch.autograd._engine_run_backward = before


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_entry_returns_to_its_place(restored, user, error):
    with contextlib.suppress(ValueError, KeyboardInterrupt), user():
        assert entry() is not restored
        if error is not None:
            raise error
    assert entry() is restored


@pytest.mark.parametrize("user", USERS)
def test_another_tools_patch_made_inside_survives_and_ours_passes_calls_on(restored, user):
    calls = []

    with user():
        ours = entry()

        def theirs(*args, **options):
            calls.append(args)
            return ours(*args, **options)

        torch.autograd._engine_run_backward = theirs
    assert entry() is theirs
    x = torch.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    assert len(calls) == 1
    assert x.grad.tolist() == [3.0, 3.0]


def test_another_tools_patch_made_inside_keeps_nothing_of_a_session_alive(restored):
    def leaves():
        weight = torch.randn(3, requires_grad=True)
        with cabw_viz.capture({"weight": weight}):
            inner = torch.autograd._engine_run_backward
            torch.autograd._engine_run_backward = lambda *args, **options: inner(*args, **options)
            weight.sum().backward()
        return weakref.ref(weight)

    weight = leaves()
    gc.collect()
    assert weight() is None


@pytest.mark.parametrize("user", USERS)
def test_another_tools_patch_made_before_is_called_inside_and_restored(restored, user):
    calls = []

    def theirs(*args, **options):
        calls.append(args)
        return restored(*args, **options)

    torch.autograd._engine_run_backward = theirs
    x = torch.ones(2, requires_grad=True)
    loss = (x * 3).sum()
    with user():
        torch.autograd.grad(loss, x)
    assert calls
    assert entry() is theirs


def test_a_grad_field_is_preserved_under_another_tools_patch(restored):
    x = torch.ones(2, requires_grad=True)
    with preserving_grad_fields():
        ours = entry()
        torch.autograd._engine_run_backward = functools.partial(ours)
        (x * 3).sum().backward()
    assert x.grad is None
