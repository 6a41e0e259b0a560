"""What each kind of node looks like: one mark, one colour and one name in all views.

The marks tell the kinds apart without the colours. The colours keep apart for the common kinds of colour
blindness and have a contrast of at least 4.5 to 1 on white.
"""

from __future__ import annotations

from dataclasses import dataclass

from cabw_viz.analysis.drawing import BoxKind

TEXT, MUTED, FAINT = "#1b2026", "#515b66", "#59636e"
PAPER, LINE, EDGE, FAINT_EDGE = "#ffffff", "#c3cad2", "#8a949f", "#a3abb4"
FRAME_LINE, FRAME_TINT = "#b9c5d1", "#f8fafc"
"""Of the frame around a module that is drawn open; lighter than the boxes in it."""
ALARM, ALARM_TINT = "#b3370a", "#fbe9e2"


@dataclass(frozen=True)
class Look:
    """The look of one kind."""

    mark: str
    color: str
    line: str
    """Colour of the box's outline."""
    tint: str
    """Colour of the box, light enough for dark text."""
    words: str
    """The kind's name as people read it."""


TOUCHED = Look("!", ALARM, ALARM, ALARM_TINT, "metadata touched")
"""The badge of a node whose metadata somebody read when nobody should."""

LOOKS: dict[BoxKind, Look] = {
    "graph_root": Look("◆", "#007556", "#7fbfaf", "#e5f2ef", "graph root"),
    "builtin": Look("■", "#0a6cb3", "#a9c9e2", "#f5f9fd", "built-in node"),
    "custom_function": Look("●", "#9a5600", "#dcae74", "#fcf2e4", "custom Function"),
    "cpp_function": Look("▲", "#a83c80", "#dba3c7", "#f9edf5", "C++ Function"),
    "copy_slices": Look("▼", "#7a3fb5", "#bc9fda", "#f5f0fa", "in-place on a view"),
    "aot_backward": Look("★", "#1f5fd0", "#8fafe7", "#e6eefb", "compiled region"),
    "accumulate_grad": Look("►", "#59636e", "#a3abb4", "#eef0f2", "accumulates into .grad"),
    "gradient_sum": Look("⊕", "#1b2026", "#1b2026", "#ffffff", "gradient sum"),
    "hook": Look("↪", "#8f3f00", "#c08a62", "#ffffff", "hook"),
    "returned": Look("◁", "#59636e", "#a3abb4", "#eef0f2", "returned gradient"),
    "validate_outputs": Look("✓", "#667079", "#d5dae0", "#ffffff", "check of the outputs"),
    "plumbing": Look("·", "#667079", "#dfe3e8", "#ffffff", "plumbing"),
    "other": Look("□", "#667079", "#a3abb4", "#ffffff", "other operation"),
    "group": Look("▣", "#39536b", "#8fa3b5", "#e6edf4", "module"),
    "line": Look("≡", "#39536b", "#8fa3b5", "#e6edf4", "line of code"),
    "outside": Look("⋯", "#59636e", "#a3abb4", "#ffffff", "beyond the part that is drawn"),
}


@dataclass(frozen=True)
class Tone:
    """The look of one step of a scale."""

    fill: str
    ink: str
    """Colour of what is written on it."""
    bars: str
    """The step without colours: so many of five bars."""


def _tones(fills: tuple[str, ...]) -> dict[int, Tone]:
    """From the step that stands for nothing to the largest: ever darker, so that they are told apart in grey too."""
    dark_from = 4
    return {
        step: Tone(fill, PAPER if step >= dark_from else TEXT, "●" * step + "○" * (len(fills) - 1 - step))
        for step, fill in enumerate(fills)
    }


AMOUNT = _tones(("#f4f6f8", "#dbe8f3", "#b3d2e8", "#82b5d9", "#2d6ea3", "#0b3d66"))
"""How much: touches, bytes, time."""

ERROR = _tones(("#f4f6f8", "#fbe3d4", "#f5c19f", "#e99a66", "#b04a12", "#6e2600"))
"""How wrong."""

UNKNOWN_TONE = Tone(PAPER, MUTED, "")
WORSE_TONE = Tone("#2a0f2e", PAPER, "✗")
"""Of what is not known, and of what is worse than any figure."""
