"""Where each autograd node of a backward comes from: the module, its call, and the line of the user's code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cabw_viz import torch_adapter
from cabw_viz.record.model import AutogradNode, SourceLine
from cabw_viz.record.options import LinesMode
from cabw_viz.runtime.user_objects import UserObjects
from cabw_viz.tracing.module_calls import ModuleCall, ModuleCalls
from cabw_viz.tracing.module_names import ModuleNames
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes
from cabw_viz.tracing.source_lines import SourceLines, line_of_anomaly_mode, reason_for_no_lines


class Provenance:
    """Records the forwards of one block.

    Args:
        subject: the module whose parts are named; for anything else, modules are named by their classes.
        lines: whether forward lines are recorded; see `cabw_viz.capture`.
    """

    def __init__(self, subject: Any, lines: LinesMode) -> None:
        self._subject, self._mode = subject, lines
        self._names = ModuleNames(subject)
        self.lines: SourceLines | None = None
        self.calls = ModuleCalls(self._names, None)
        self.lines_off = "the block has not been entered"

    def prepare(self) -> None:
        """Decide whether lines are recorded, and make the recorders; `changes_of_block` enters them."""
        self.lines_off = reason_for_no_lines(self._mode, self._subject)
        self.lines = None if self.lines_off else SourceLines()
        self.calls = ModuleCalls(self._names, self.lines)

    def user_objects(self, leaves: Sequence[Any]) -> UserObjects:
        """What later runs must leave as it is: the subject, the modules that were called, and the leaves."""
        return UserObjects.of(self._subject, self._names.called, leaves)

    def forget(self) -> None:
        """Drop the reference to the subject."""
        self._subject = None
        self._names.forget()

    def annotate(self, nodes: Sequence[AutogradNode], walk: NumberedNodes, names: Names) -> tuple[AutogradNode, ...]:
        """Autograd nodes, each with its module, the call of it, and the line of its forward op."""
        calls = self.calls.of(walk.nodes)
        return tuple(
            self._annotate(node, walk.nodes[node.number], call, names) for node, call in zip(nodes, calls, strict=True)
        )

    def _annotate(self, node: AutogradNode, live: Any, call: ModuleCall | None, names: Names) -> AutogradNode:
        if live is ROOT:
            return node
        if node.kind == "accumulate_grad":  # has no number of its own; it belongs to the leaf's module
            owner = self._names.owner(names.subject_names(live.variable))
            return node if owner is None else replace(node, module=owner.path, module_class=owner.cls)
        line = self._line(live)
        if call is None:
            return replace(node, line=line)
        return replace(node, module=call.name.path, module_class=call.name.cls, visit=call.visit, line=line)

    def _line(self, live: Any) -> SourceLine | None:
        number = torch_adapter.sequence_number_of(live)
        line = None
        if self.lines is not None and number is not None and self.calls.is_own(live):
            line = self.lines.of(number)
        return line or line_of_anomaly_mode(live)
