"""Nothing of the user's is changed by a later call of a capture.

unchanged_user_state      around every run of a captured graph, and once more around each method that makes several
├─ _UserState             modules, tensors, random numbers, modes and settings, before
├─ (the run)
└─ _UserState.restore     compared, put back, and reported as a CabwWarning

A replay writes nothing itself; Python code in the graph may (hooks, custom Functions, unpacking). Where there is any,
values are copied before: such code can write without a version telling (`parameter.data.mul_(2)`).

What this cannot see: objects of the user's own that are no modules; modules that were neither given to `capture()` nor
called in the block; and it takes what another thread writes meanwhile for a write of the run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.errors import warn
from cabw_viz.record.model import CaptureRecord
from cabw_viz.replay.hook_policy import is_left_out
from cabw_viz.replay.user_state.attribute_state import AttributeState
from cabw_viz.replay.user_state.tensor_state import COPIED_BYTES, CopyBudget, TensorState
from cabw_viz.runtime.random_state import RandomState
from cabw_viz.runtime.user_objects import UserObjects
from cabw_viz.torch_adapter import Setting

SHOWN = 5
"""How many differences a warning names."""


class _Thread(threading.local):
    guarded: frozenset[int] = frozenset()
    """Ids of the objects that this thread guards now."""


_THREAD = _Thread()


@contextmanager
def unchanged_user_state(users: UserObjects | None, record: CaptureRecord, *, random: bool = True) -> Iterator[None]:
    """A context that puts back whatever a run in it has changed of the user's, and warns of it.

    Args:
        users: what is guarded; None where a capture has none.
        record: of the capture: whether Python code runs in its graph.
        random: whether random numbers are put back too; silently, for hooks that run again may draw some.
    """
    key = id(users)
    if users is None or key in _THREAD.guarded:
        yield
        return
    state = _state_before(users, copies=runs_python(record), random=random)
    outer = _THREAD.guarded
    _THREAD.guarded = outer | {key}
    try:
        yield
    finally:
        _THREAD.guarded = outer
        if state is not None:
            _report(state.restore())


def runs_python(record: CaptureRecord) -> bool:
    """Whether Python code of the user's runs in a graph's replay."""
    return any(
        (node.kind in ("custom_function", "cpp_function") and not node.framework)
        or any(
            hook.name != "<C++>" and not hook.framework and not is_left_out(node, hook.kind, "run")
            for hook in node.hooks
        )
        for node in record.autograd_nodes
    )


def _state_before(users: UserObjects, *, copies: bool, random: bool) -> _UserState | None:
    try:
        settings = [(setting, setting.read()) for setting in torch_adapter.settings()]
        with _quietly():
            return _UserState(users, settings, CopyBudget(COPIED_BYTES if copies else 0), random=random)
    except Exception as error:  # noqa: BLE001  # whatever it is, the call that was asked for must be made
        warn(f"whether this call changes your model was not checked ({type(error).__name__}: {error})")
        return None


@contextmanager
def _quietly() -> Iterator[None]:
    """A context in which no mode of the user's sees what is done."""
    with torch.no_grad(), torch_adapter.below_modes_and_functions():
        yield


class _UserState:
    """What of the user's is compared, as it was when this was made."""

    def __init__(
        self, users: UserObjects, settings: list[tuple[Setting, Any]], budget: CopyBudget, *, random: bool
    ) -> None:
        self.settings = settings
        self.random = RandomState() if random else None
        modules = list(users.modules())
        self.classes = [(path, module, type(module)) for path, module in modules]
        self.attributes = [AttributeState(path, vars(module)) for path, module in modules]
        self.tensors: list[TensorState] = []
        known: set[int] = set()
        labelled = [pair for attributes in self.attributes for pair in attributes.tensors()]
        own = ((f"a leaf {torch_adapter.shape_of(tensor)}", tensor) for tensor in users.tensors())
        for label, tensor in (*labelled, *own):
            if id(tensor) not in known and not torch.nn.parameter.is_lazy(tensor):
                known.add(id(tensor))
                self.tensors.append(TensorState(label, tensor, budget))

    def restore(self) -> list[str]:
        """Put everything back; returns what differed, in words."""
        differences: list[str] = []
        for setting, before in self.settings:
            _collect(differences, _restored(setting, before))
        with _quietly():
            for path, module, cls in self.classes:
                _collect(differences, _class_restored(path, module, cls))
            for attributes in self.attributes:
                _collect(differences, attributes.restore())
            for tensor in self.tensors:
                _collect(differences, tensor.restore())
        if self.random is not None:
            self.random.restore()
        return differences


def _restored(setting: Setting, before: Any) -> Iterator[str]:
    if setting.read() != before:
        yield f"{setting.name} changed"
        setting.write(before)


def _class_restored(path: str, module: torch.nn.Module, cls: type) -> Iterator[str]:
    if type(module) is not cls:
        name = type(module).__name__
        module.__class__ = cls
        yield f"module {path or '(the model)'} is a {name} and was a {cls.__name__}"


def _collect(differences: list[str], restored: Iterator[str]) -> None:
    """Add what one part yields while it is put back."""
    try:
        differences.extend(restored)
    except Exception as error:  # noqa: BLE001  # the other parts must be put back whatever this one raises
        differences.append(f"something could not be put back ({type(error).__name__}: {error})")


def _report(differences: list[str]) -> None:
    if differences:
        more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        warn(
            "this call changed what belongs to you, which is a fault of cabw_viz or of a hook that ran again: "
            f"{'; '.join(differences[:SHOWN])}{more}. It was put back, unless it says otherwise"
        )
