"""A block changes in the process what docs/architecture.md lists, and nothing else; all of it is undone."""

import contextlib
import re
import sys
import types
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

import cabw_viz
from cabw_viz.tracing import process_changes
from tests.versions import read_on

TABLE = Path(__file__).parent.parent / "docs" / "architecture.md"
ONLY_WITH_LINES = {"torch._dynamo.eval_frame._maybe_set_eval_frame"}


Names = dict[tuple[int, str], str]
"""Full names by holder and attribute: a class or an object has several full names."""


def listed() -> Names:
    """The patched functions in the table's first column."""
    names = re.findall(r"^\| `(torch\.[\w.]+)` \|", rows(), re.MULTILINE)
    return {(id(resolve_name(name.rpartition(".")[0])), name.rpartition(".")[2]): name for name in names}


def rows() -> str:
    return TABLE.read_text("utf-8").partition("| For the length of the block |")[2].partition("\n\n")[0]


def attributes() -> dict[tuple[int, str], tuple[str, object]]:
    """Name and value of every attribute of torch's modules, of their classes, and of Dynamo's callback handler."""
    modules = {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "torch"}
    holders = dict(modules)
    for name, module in modules.items():
        for key, value in list(getattr(module, "__dict__", {}).items()):
            if issubclass(type(value), type) or type(value).__name__ == "CompilationCallbackHandler":
                holders[f"{name}.{key}"] = value
    return {
        (id(holder), key): (f"{name}.{key}", value)
        for name, holder in holders.items()
        for key, value in list(getattr(holder, "__dict__", {}).items())
    }


def patched(before: dict, now: dict) -> Names:
    """The functions that are others than before."""
    return {
        key: name
        for key, (name, value) in now.items()
        if type(value) is types.FunctionType and (key not in before or before[key][1] is not value)
    }


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())


@pytest.fixture
def warm():
    """What torch imports and caches at a first capture is no change of a block's."""
    net = model()
    with cabw_viz.capture(net, lines=True):
        net(torch.ones(2, 3)).sum().backward()


@read_on("2.9")
@pytest.mark.parametrize("lines", [True, False])
def test_what_is_patched_is_what_is_listed(warm, lines):
    before, modes = attributes(), torch._C._len_torch_function_stack()
    with cabw_viz.capture(model(), lines=lines):
        inside, modes_inside = attributes(), torch._C._len_torch_function_stack()
    expected = {key for key, name in listed().items() if lines or name not in ONLY_WITH_LINES}
    assert patched(before, inside).keys() == expected, patched(before, inside)
    assert modes_inside - modes == lines
    assert patched(before, attributes()) == {}


def test_as_many_changes_are_listed_as_are_made(warm, monkeypatch):
    """Two rows are one change: Dynamo's two ways into a compilation."""
    changes = []
    original = process_changes.changes_of_block

    def counted(*args):
        for change in original(*args):
            changes.append(change)
            yield change

    monkeypatch.setattr("cabw_viz.tracing.recorder.changes_of_block", counted)
    with cabw_viz.capture(model(), lines=True):
        pass
    assert rows().count("\n| ") == len(changes) + 1


def patched_names() -> dict[str, object]:
    """What the names of the table refer to now."""
    return {name: resolve_name(name) for name in listed().values()}


@read_on("2.9")
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_on_the_way_in_undoes_what_was_made(warm, monkeypatch, error):
    original = process_changes.changes_of_block

    @contextlib.contextmanager
    def raising():
        raise error
        yield

    before, names, modes = attributes(), patched_names(), torch._C._len_torch_function_stack()
    for failing in range(9):  # one more than there are changes: after all of them

        def interrupted(*args, failing=failing):
            for number, change in enumerate(original(*args)):
                yield raising() if number == failing else change
            yield raising()

        monkeypatch.setattr("cabw_viz.tracing.recorder.changes_of_block", interrupted)
        with pytest.raises(error), cabw_viz.capture(model(), lines=True):
            raise AssertionError("entered")
        monkeypatch.undo()
        left = [
            name for name, value in patched_names().items() if value != names[name]
        ]  # bound methods are equal, not the same
        assert left == [], f"change {failing} failed"
        assert torch._C._len_torch_function_stack() == modes, f"change {failing} failed"
    assert patched(before, attributes()) == {}
    with cabw_viz.capture(model()) as session:
        model()(torch.ones(2, 3)).sum().backward()
    assert len(session) == 1
