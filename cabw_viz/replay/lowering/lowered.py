"""A backward as a graph of aten ops, and how to run it."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.kinds import GraphKind
from cabw_viz.record.model import GraphNode
from cabw_viz.replay.lowering.guards import Guards
from cabw_viz.replay.lowering.python_constants import PythonConstant, differing_structure, python_constants
from cabw_viz.replay.lowering.signature import flat_values
from cabw_viz.replay.replay import Replay
from cabw_viz.replay.user_state.guard import unchanged_user_state
from cabw_viz.runtime.capture_state import AUTOCAST_DEVICES, Captured
from cabw_viz.runtime.fx_text import arguments_text

META = "cabw"
"""Key in a node's `meta`: a dict with `autograd_node` (NodeCall number), `name`, `module`, `module_class`, `visit`,
`line` (`file:line`, or empty) and `graph_node` (ordinal in the captured graph). Inputs and constants have none."""


class CaptureLike(Protocol):
    """A capture, as `session[0]` is one."""

    @property
    def _captured(self) -> Captured:
        """The record, and what is alive of the capture."""


@dataclass(frozen=True)
class Constant:
    """A tensor that is an attribute of the graph: not lifted, because hooks or custom Functions reach it themselves."""

    name: str
    """Of the attribute."""
    shape: tuple[int, ...]
    dtype: str
    label: str
    """The autograd node whose code reaches it: `ScaleBackward (#4)`."""
    parameter: bool = False
    """Whether it is an nn.Parameter; then it is that very one."""
    literal: bool = False
    """Whether it is a literal of the program (`torch.tensor([1.0])`), copied whenever the graph runs."""


@dataclass(frozen=True)
class Parts:
    """Everything of a lowered graph beside its nodes."""

    leaves: tuple[str, ...]
    indices: tuple[int, ...]
    """Of the leaves, in the record."""
    guards: Guards
    constants: tuple[Constant, ...]
    python_constants: tuple[PythonConstant, ...]
    inexact: tuple[str, ...]
    origin: Origin


class Origin:
    """The capture that a graph was made of. It keeps no tensor alive; copies share it, and pickles are without it."""

    def __init__(self, captured: Captured | None = None) -> None:
        self.record = None if captured is None else captured.record
        self._state = None if captured is None else weakref.ref(captured.state)

    def captured(self) -> Captured:
        """The capture.

        Raises:
            CabwError: it is gone.
        """
        state = None if self._state is None else self._state()
        if state is None or self.record is None:
            raise CabwError(
                "the capture that this graph was lowered from is gone, and its tensors with it",
                expected="a session that is still there, and open",
                try_="lowered(*inputs) with inputs of your own, or lowered.gradients(capture)",
            )
        return Captured(self.record, state)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context that leaves what belongs to the user as it is, random numbers apart."""
        state = None if self._state is None else self._state()
        if state is None or self.record is None:
            yield
            return
        with unchanged_user_state(state.users, self.record, random=False):
            yield

    def is_of(self, captured: Captured) -> bool:
        """Whether it is this capture."""
        return self._state is not None and captured.state is self._state()

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (Origin, ())


class Lowered(torch.fx.GraphModule):
    """A backward as an `fx.GraphModule` of aten ops: lifted tensors and sizes in, gradients out.

    `lowered(*inputs)` takes what `example_inputs()` gives (`inputs_0`, …: tensors; `sizes_0`, …: ints; `packed_0`, …:
    tensors that saved-tensor hooks packed) and returns a list of gradients, one for each of `leaves`. Guards are
    checked first. It draws random numbers from the generators as they are, and runs without autograd and autocast.

    With symbolic sizes, inputs of another batch size give the gradients at that size. Decisions of Python code
    (in a hook, in a custom Function's backward) were made once, when the graph was made.

    In each node's `meta`: `cabw` (see `META`), `stack_trace` and `nn_module_stack` as PyTorch's own tracers leave
    them, `val`. Unpickled, it is a plain `fx.GraphModule`, without the checks.
    """

    def __init__(self, root: torch.nn.Module, graph: torch.fx.Graph, parts: Parts) -> None:
        super().__init__(root, graph, class_name="Lowered")
        self._set_parts(parts)

    def _set_parts(self, parts: Parts) -> None:
        self.leaves = parts.leaves
        """Names of the gradients; a tied parameter's all in one: `wte.weight = lm_head.weight`."""
        self.guards = parts.guards.texts
        """Conditions on the sizes that the trace assumed: `inputs_1.shape[0] == inputs_6.shape[0]`."""
        self.constants = parts.constants
        """Tensors that the graph holds as attributes."""
        self.inexact = parts.inexact
        """Autograd nodes whose gradients may differ from a replay's in their last bits: PyTorch has other formulas for
        them when it traces. For all others the graph gives the bits of a replay."""
        self._parts = parts

    def __deepcopy__(self, memo: dict[int, Any]) -> Lowered:
        copied: Any = super().__deepcopy__(memo)  # of this class, though the stub names its base
        copied._set_parts(self._parts)  # noqa: SLF001  # its own class
        return copied  # type: ignore[no-any-return]  # as above

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        """Check the guards, then run.

        Raises:
            CabwError: the graph was not made for an input; names it, with what was seen and expected.
        """
        with ExitStack() as stack:
            if not torch.compiler.is_compiling():
                self.check(*inputs)
                stack.enter_context(self._parts.origin.unchanged())
            stack.enter_context(torch.no_grad())
            for device in AUTOCAST_DEVICES:
                if torch.amp.autocast_mode.is_autocast_available(device) and torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            gradients: list[torch.Tensor] = super().__call__(*inputs)
        return gradients

    def __repr__(self) -> str:
        calls = sum(node.op == "call_function" for node in self.graph.nodes)
        inexact = f", inexact: {', '.join(self.inexact)}" if self.inexact else ""
        return f"Lowered({calls} calls, {len(self.leaves)} gradients, {len(self.guards)} guards{inexact})"

    def check(self, *inputs: Any) -> None:
        """Raise a CabwError for inputs that the graph was not made for."""
        self._parts.guards.check(inputs)

    def example_inputs(self) -> tuple[Any, ...]:
        """The captured inputs, not copied.

        Raises:
            CabwError: the session is closed or gone, or an input was changed in place since.
        """
        return flat_inputs(self._parts.origin.captured())

    def gradients(self, capture: CaptureLike | None = None) -> dict[str, torch.Tensor]:
        """Run on the inputs of a capture, and under its random state; its own capture unless another is given.

        Args:
            capture: one of the same backward, at whatever sizes.

        Returns:
            Gradients by name, a tied parameter's under each of its names.

        Raises:
            CabwError: it is a capture of another backward, or one for which this graph does not hold.
        """
        captured = self._parts.origin.captured() if capture is None else _captured(capture)
        inputs = flat_inputs(captured)
        if not self._parts.origin.is_of(captured):
            self._check_like(captured)
        with (
            unchanged_user_state(captured.state.users, captured.record),
            captured.runnable().thread_state.restored(),
            torch_adapter.compiled_autograd_off(),
        ):
            gradients = self(*inputs)
        pairs = zip(self._parts.indices, gradients, strict=True)
        return {name: gradient for index, gradient in pairs for name in captured.record.leaves[index].names}

    def _check_like(self, captured: Captured) -> None:
        """Refuse a capture that this graph is not the backward of."""
        own = self._parts.origin.record
        difference = None if own is None else differing_structure(own, captured.record)
        if difference is not None:
            raise CabwError(
                f"that capture is of another backward: {difference}",
                expected="the same nodes in the same order, at whatever sizes",
                try_="capture.lower(), which lowers that capture itself",
            )
        for constant in self.constants:
            if not constant.parameter and not constant.literal:
                raise CabwError(
                    f"{constant.name} {constant.shape}, which {constant.label} reaches by itself, is a constant of the "
                    "lowered graph and may be another tensor in that capture",
                    expected="a backward whose hooks and Functions use lifted tensors alone (ctx.save_for_backward)",
                    try_="capture.lower(), or lowered(*inputs) where you know that the constants hold",
                )
        for theirs, ours in zip(python_constants(captured), self._parts.python_constants, strict=True):
            if theirs != ours:
                raise CabwError(
                    f"{ours.label} is {theirs.value!r} in that capture, and {ours.value!r} in the lowered graph",
                    expected="the same values in what the trace does not lift",
                    try_="capture.lower(), which lowers that capture itself",
                )


def flat_inputs(captured: Captured) -> tuple[Any, ...]:
    """What a lowered graph takes, of a capture."""
    return tuple(flat_values(captured.record, Replay(captured).graph.arguments))


def _captured(capture: Any) -> Captured:
    captured = getattr(capture, "_captured", None)
    if isinstance(captured, Captured):
        return captured
    raise CabwError(
        f"gradients() was called with a {type(capture).__name__}", expected="a capture", try_="gradients(session[0])"
    )


# ------------------------------------------------------------------------------------------- its nodes as plain data


def lowered_nodes(graph: torch.fx.GraphModule) -> tuple[GraphNode, ...]:
    """One row for each node, in order."""
    ordinals = {node: ordinal for ordinal, node in enumerate(graph.graph.nodes)}
    names = {node: node.name for node in ordinals}
    return tuple(
        GraphNode(
            ordinal=ordinal,
            name=node.name,
            op=node.op,
            target=_target(node),
            arguments="" if node.op in ("placeholder", "get_attr") else arguments_text(node, names),
            kind=_kind(node),
            inputs=tuple(ordinals[each] for each in node.all_input_nodes),
            users=tuple(sorted(ordinals[each] for each in node.users)),
            autograd_node=node.meta.get(META, {}).get("autograd_node"),
        )
        for node, ordinal in ordinals.items()
    )


def _kind(node: torch.fx.Node) -> GraphKind:
    if node.op == "placeholder":
        return "placeholder"
    if node.op == "output":
        return "output"
    if node.target is operator.getitem:
        return "getitem"
    # Constants, and arithmetic of sizes, are no ops on tensors.
    return "aten_op" if node.op == "call_function" and not torch_adapter.is_size_arithmetic(node.target) else "other"


def _target(node: torch.fx.Node) -> str:
    if node.op != "call_function":
        return str(node.target)
    return str(node.target) if torch_adapter.is_operator(node.target) else str(getattr(node.target, "__name__", ""))
