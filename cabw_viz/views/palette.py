"""What each kind of node looks like: one mark, one colour and one name in all views.

The marks tell the kinds apart without the colours. The colours keep apart for the common kinds of colour
blindness and have a contrast of at least 4.5 to 1 on white.
"""

from __future__ import annotations

from dataclasses import dataclass

from cabw_viz.analysis.drawing import BoxKind

TEXT, MUTED, FAINT = "#1b2026", "#515b66", "#667079"
PAPER, LINE, EDGE = "#ffffff", "#c3cad2", "#8a949f"
ALARM, ALARM_TINT = "#b3370a", "#fbe9e2"


@dataclass(frozen=True)
class Look:
    """The look of one kind."""

    mark: str
    color: str
    tint: str
    """Colour of the box, light enough for dark text."""
    words: str
    """The kind's name as people read it."""


LOOKS: dict[BoxKind, Look] = {
    "graph_root": Look("◆", "#00805f", "#ddefea", "graph root"),
    "builtin": Look("■", "#0a6cb3", "#f3f8fc", "built-in node"),
    "custom_function": Look("●", "#a85f00", "#fbeedb", "custom Function"),
    "cpp_function": Look("▲", "#b8478f", "#f7e8f1", "C++ Function"),
    "copy_slices": Look("▼", "#7a3fb5", "#f0e9f7", "CopySlices, in-place on a view"),
    "aot_backward": Look("★", "#1f5fd0", "#e3ebfa", "compiled region"),
    "accumulate_grad": Look("►", "#59636e", "#eceef0", "accumulates into .grad"),
    "gradient_sum": Look("⊕", "#1b2026", "#ffffff", "gradient sum"),
    "hook": Look("↪", "#8f3f00", "#ffffff", "hook"),
    "returned": Look("◁", "#59636e", "#eceef0", "returned gradient"),
    "validate_outputs": Look("✓", "#667079", "#ffffff", "check of the outputs"),
    "plumbing": Look("·", "#667079", "#ffffff", "plumbing"),
    "other": Look("□", "#667079", "#ffffff", "other operation"),
}
