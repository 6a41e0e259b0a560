"""Where each autograd node of a backward comes from: the module, its call, and the line of the user's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from cabw_viz import torch_adapter
from cabw_viz.errors import warn
from cabw_viz.record.changed import changed
from cabw_viz.record.missing import MissingGradient
from cabw_viz.record.model import AutogradNode, Hook, Leaf
from cabw_viz.record.options import LinesMode
from cabw_viz.record.source_line import SourceLine
from cabw_viz.runtime.user_objects import UserObjects
from cabw_viz.torch_adapter import EngineCall
from cabw_viz.tracing.forward_uses import ForwardUses
from cabw_viz.tracing.forwards import Forwards
from cabw_viz.tracing.missing_gradients import MissingSearch, hidden_calls
from cabw_viz.tracing.module_calls import ModuleCall, ModuleCalls
from cabw_viz.tracing.module_names import ModuleNames
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes, number_nodes
from cabw_viz.tracing.other_calls import OtherCalls
from cabw_viz.tracing.source_lines import SourceLines, line_of_anomaly_mode, reason_for_no_lines, user_line


class Provenance:
    """Records the forwards of one block.

    Args:
        subject: the module whose parts are named; for anything else, modules are named by their classes.
        lines: whether forward lines are recorded; see `cabw_viz.capture`.
        is_selective: whether `only=` leaves calls out.
    """

    def __init__(self, subject: Any, lines: LinesMode, *, is_selective: bool = False) -> None:
        self._subject, self._mode = subject, lines
        self._names = ModuleNames(subject)
        self.lines: SourceLines | None = None
        self.calls = ModuleCalls(self._names, None)
        self._forwards, self._other_calls = Forwards(self.calls, None), OtherCalls()
        self._is_selective = is_selective
        self.lines_off = "the block has not been entered"

    def prepare(self) -> None:
        """Decide whether lines are recorded, and make the recorders; `changes_of_block` enters them."""
        self.lines_off = reason_for_no_lines(self._mode, self._subject)
        self.lines = None if self.lines_off else SourceLines()
        self.calls = ModuleCalls(self._names, self.lines)
        self._forwards = Forwards(self.calls, self.lines)
        if self.lines is not None:
            is_inside, in_function = self.calls.is_inside(), self.lines.functions()
            self.lines.uses = ForwardUses(user_line, is_inside, in_function, notes_grads=self._is_selective)

    def begin_forward(self, names: Names) -> None:
        """The block was entered, or a backward call has ended."""
        if self.lines is not None and self.lines.uses is not None:
            self.lines.uses.watch(tensor for _, tensor in names.parameters() or ())
        self._forwards.begin_epoch()

    def note_left_out(self) -> None:
        """A call that `only=` leaves out has ended."""
        if self.lines is not None and self.lines.uses is not None:
            try:
                self._other_calls.note(self.lines.uses)
            except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward has been made
                warn(f"it is not known what this backward gave a gradient ({type(error).__name__}: {error})")

    def missing(
        self, call: EngineCall, numbering: NumberedNodes, leaves: Sequence[Leaf], names: Names, later: set[str]
    ) -> tuple[MissingGradient, ...]:
        """The parameters of the subject that a call is about to give no gradient, with the reasons.

        Args:
            call: of the engine.
            numbering: its autograd nodes.
            leaves: of the call.
            names: of the subject's tensors.
            later: gets the labels of those to which a call that `only=` leaves out gives a gradient later.
        """
        parameters = names.parameters()
        if parameters is None:
            return ()
        hidden = hidden_calls(self._subject, self.lines_off, other_threads=self.calls.has_other_threads)
        if not hidden and self.lines is not None and self.lines.uses is not None and self.lines.uses.error:
            hidden = f"operations were not watched to the end ({self.lines.uses.error})"
        forward = self._forwards.of(numbering)
        search = MissingSearch(call, names, self._names, forward, hidden)
        missing = search.missing(leaves, parameters)
        if self._is_selective:
            return self._other_calls.read(missing, leaves, parameters, forward, later)
        return missing

    def user_objects(self, leaves: Sequence[Any]) -> UserObjects:
        """What later runs must leave as it is: the subject, the modules that were called, and the leaves."""
        return UserObjects.of(self._subject, self._names.called, leaves)

    def forget(self) -> None:
        """Drop the reference to the subject."""
        self._subject = None
        self._names.forget()

    def annotate(self, nodes: Sequence[AutogradNode], walk: NumberedNodes, names: Names) -> tuple[AutogradNode, ...]:
        """Autograd nodes, each with its module, the call of it, and the line of its forward op."""
        rows = zip(nodes, self.calls.of(walk.nodes), self.calls.makers(walk.nodes), strict=True)
        return tuple(
            changed(node, backward_of=maker, **self._origin(node, walk.nodes[node.number], call, names))
            for node, call, maker in rows
        )

    def hooks_on_tensors(self) -> Callable[[Any], list[Hook]]:
        """Reads which hooks were registered in the block on tensors: a function of an autograd node."""
        by_number = {} if self.lines is None else self.lines.hooks.by_node()

        def hooks_of(live: Any) -> list[Hook]:
            number = torch_adapter.sequence_number_of(live) if by_number else None
            return by_number.get(number, []) if number is not None and self.calls.is_own(live) else []

        return hooks_of

    @contextmanager
    def of_backward(self, call: EngineCall) -> Iterator[None]:
        """A context in which the eager engine makes this call: the nodes that it makes belong to those that it runs."""
        if not call.create_graph or not self.calls.is_own_thread:
            yield
            return
        with ExitStack() as stack:
            try:
                with torch_adapter.unseen_operators(), torch_adapter.without_any_torch_function():
                    nodes = number_nodes(call.roots, call.inputs).nodes
                stack.enter_context(self.calls.of_backward(node for node in nodes if node is not ROOT))
            except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must be made
                warn(f"it is not known where the nodes that this backward makes come from ({error})")
            yield

    def _origin(self, node: AutogradNode, live: Any, call: ModuleCall | None, names: Names) -> dict[str, Any]:
        """The fields of a node's record that say where it comes from, as far as it is known."""
        if live is ROOT:
            return {}
        if node.kind == "accumulate_grad":  # has no number of its own; it belongs to the leaf's module
            owner = self._names.owner(names.subject_names(live.variable))
            return {} if owner is None else {"module": owner.path, "module_class": owner.cls}
        line = self._line(live)
        if call is None:
            return {"line": line}
        return {"module": call.name.path, "module_class": call.name.cls, "visit": call.visit, "line": line}

    def _line(self, live: Any) -> SourceLine | None:
        number = torch_adapter.sequence_number_of(live)
        line = None
        if self.lines is not None and number is not None and self.calls.is_own(live):
            line = self.lines.of(number)
        return line or line_of_anomaly_mode(live)
