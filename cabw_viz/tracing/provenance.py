"""Where each autograd node of a backward comes from: the module, its call, and the line of the user's code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cabw_viz import torch_adapter
from cabw_viz.record.model import AutogradNode, SourceLine
from cabw_viz.record.options import LinesMode
from cabw_viz.tracing.module_calls import ModuleCall, ModuleCalls
from cabw_viz.tracing.module_names import ModuleNames
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_numbering import ROOT, NumberedNodes
from cabw_viz.tracing.source_lines import SourceLines, line_of_anomaly_mode, why_off


class Provenance:
    """Watches the forwards of one block, while installed.

    Args:
        subject: the module whose parts are named; something else or nothing gives names of classes.
        lines: whether forward lines are noted; see `cabw_viz.capture`.
    """

    def __init__(self, subject: Any, lines: LinesMode) -> None:
        self._subject, self._wanted = subject, lines
        self._names = ModuleNames(subject)
        self._lines: SourceLines | None = None
        self._calls = ModuleCalls(self._names, None)
        self.lines_off = "the block has not been entered"

    def install(self) -> None:
        """Begin to watch, in this thread."""
        self.lines_off = why_off(self._wanted, self._subject)
        self._lines = None if self.lines_off else SourceLines()
        self._calls = ModuleCalls(self._names, self._lines)
        self._calls.install()
        if self._lines is not None:
            self._lines.install()

    def uninstall(self) -> None:
        """Watch no longer; what was seen stays."""
        if self._lines is not None:
            self._lines.uninstall()
        self._calls.uninstall()

    def forget(self) -> None:
        """Let go of the subject."""
        self._subject = None
        self._names.forget()

    def told(self, nodes: Sequence[AutogradNode], walk: NumberedNodes, names: Names) -> tuple[AutogradNode, ...]:
        """Autograd nodes with what is known of where they come from."""
        calls = self._calls.of(walk.nodes)
        return tuple(
            self._told(node, walk.nodes[node.number], call, names) for node, call in zip(nodes, calls, strict=True)
        )

    def _told(self, node: AutogradNode, live: Any, call: ModuleCall | None, names: Names) -> AutogradNode:
        if live is ROOT:
            return node
        if node.kind == "accumulate_grad":  # draws no number, and belongs where its leaf does
            owner = self._names.owner(names.subject_names(live.variable))
            return node if owner is None else replace(node, module=owner.path, module_class=owner.cls)
        line = self._line(live)
        if call is None:
            return replace(node, line=line)
        return replace(node, module=call.name.path, module_class=call.name.cls, visit=call.visit, line=line)

    def _line(self, live: Any) -> SourceLine | None:
        number = torch_adapter.sequence_number_of(live)
        line = None
        if self._lines is not None and number is not None and self._calls.is_own(live):
            line = self._lines.of(number)
        return line or line_of_anomaly_mode(live)
