"""The one table of looks: what each kind and family of node, each verdict and each step of a scale looks like.

Drawings, tables and pictures read it here; the browser reads `inspector/src/palette.js`, which is written from it
(`python -m cabw_viz.views.inspector.browser_palette`). The browser's colours are tokens of `inspector.css`, for they
differ between its light and its dark theme.

A drawing's scale has five steps between its own least and its own most figure, for its legend says them; the
inspector's are fixed, so that a colour means the same in another capture.

The marks tell the kinds apart without the colours. The colours keep apart for the common kinds of colour
blindness and have a contrast of at least 4.5 to 1 on white.
"""

from __future__ import annotations

from dataclasses import dataclass

from cabw_viz.analysis.coloring import bytes_text
from cabw_viz.analysis.drawing import BoxKind
from cabw_viz.analysis.families import Family
from cabw_viz.record.kinds import Verdict
from cabw_viz.record.options import ColorBy

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

FAMILY_TONES: dict[Family, Tone] = {
    "matmul": Tone("#d6e7f5", TEXT, "■"),
    "norm": Tone("#f3dcea", TEXT, "▲"),
    "pointwise": Tone("#f9e6cc", TEXT, "●"),
    "loss": Tone("#d2ebe2", TEXT, "◆"),
    "custom": Tone("#e7dbf3", TEXT, "★"),
    "compiled": Tone("#d7e2f9", TEXT, "□"),
    "hook": Tone("#e7dbf3", TEXT, "↪"),
    "check": Tone("#f4f6f8", TEXT, "○"),
    "view": Tone("#eef0f2", TEXT, "▬"),
    "parameter": Tone("#dfe3e8", TEXT, "►"),
}
"""Of a drawing that is coloured by families; the hues are those of the inspector."""

# ------------------------------------------------------------------------------------------------------------ verdicts


@dataclass(frozen=True)
class VerdictLook:
    """The look of one verdict, so that none is told by its colour alone."""

    mark: str
    """In text and tables."""
    cell: str
    """Background of a table's cell, translucent, on whatever the theme's is; empty for the table's own alarm."""
    color: str
    """In the picture of errors."""
    shape: str
    """In the picture of errors: `circle`, `square`, `diamond` or `cross`."""
    browser_mark: str
    """In the inspector."""


ALARM_CELL = "rgba(214, 80, 30, 0.3)"
_BAD = {"cell": "", "color": "#dc5a1e", "shape": "cross", "browser_mark": "differ"}

VERDICT_LOOKS: dict[Verdict, VerdictLook] = {
    "bitwise": VerdictLook("✓", "rgba(0, 128, 95, 0.18)", "#16996f", "circle", "equal"),
    "within_tolerance": VerdictLook("≈", "rgba(10, 108, 179, 0.18)", "#2584c9", "square", "bar1"),
    "within_noise": VerdictLook("~", "rgba(128, 110, 190, 0.18)", "#8b6fd1", "diamond", "bar2"),
    "metadata": VerdictLook("!", **_BAD),
    "unexpected": VerdictLook("+", **_BAD),
    "not_judged": VerdictLook("?", **_BAD),
    "not_reproducible": VerdictLook("↯", **_BAD),
    "mismatch": VerdictLook("✗", **_BAD),
    "missing": VerdictLook("∅", **_BAD),
    "nonfinite": VerdictLook("∞", **_BAD),
}

# --------------------------------------------------------------------------------------------------------- the browser


@dataclass(frozen=True)
class ColorClass:
    """One entry of the inspector's legend."""

    key: str
    words: str
    token: str
    """Of `inspector.css`, without the dashes."""
    mark: str
    """A shape of `markPath` in `encode.js`."""
    limit: float | None = None
    """The least figure of the class, of a scale by amount."""
    rare: bool = False
    """Shown in the legend only where there are such nodes."""
    background: bool = False
    """Whether a group has this colour only where all of its nodes are of such classes."""


@dataclass(frozen=True)
class Encoding:
    """What the inspector's colours stand for, the strongest class first."""

    label: str
    classes: tuple[ColorClass, ...]
    is_categorical: bool = False
    """Whether a group has the colour of most of its nodes (see `background`), and not of the strongest."""


def _amount(key: str, words: str, token: str, mark: str, limit: float) -> ColorClass:
    return ColorClass(key, words.format(bytes_text(limit).replace(".0 ", " ")), token, mark, limit)


DIFFERS_MUCH = 1e-3
"""The relative error from which a difference has the stronger of two colours."""

ENCODINGS: dict[ColorBy, Encoding] = {
    "family": Encoding(
        "Family",
        (
            ColorClass("matmul", "Matmul", "c-matmul", "square"),
            ColorClass("norm", "Norm, softmax", "c-norm", "triangle"),
            ColorClass("pointwise", "Pointwise", "c-pointwise", "circle"),
            ColorClass("loss", "Loss, lookup", "c-loss", "diamond"),
            ColorClass("custom", "Custom Function", "c-custom", "star", rare=True),
            ColorClass("compiled", "Compiled region", "c-compiled", "frame", rare=True),
            ColorClass("hook", "Hook", "c-custom", "hook", rare=True),
            ColorClass("check", "Check of a gradient", "c-none", "ring", rare=True, background=True),
            ColorClass("view", "View, copy", "c-view", "bar", background=True),
            ColorClass("parameter", "Parameter", "c-parameter", "tag", background=True),
        ),
        is_categorical=True,
    ),
    "kind": Encoding(
        "Kind",
        (
            ColorClass("builtin", "Built-in node", "c-matmul", "square"),
            ColorClass("custom_function", "Custom Function", "c-pointwise", "circle", rare=True),
            ColorClass("cpp_function", "C++ Function", "c-norm", "triangle", rare=True),
            ColorClass("copy_slices", "In-place on a view", "c-custom", "star", rare=True),
            ColorClass("aot_backward", "Compiled region", "c-compiled", "frame", rare=True),
            ColorClass("gradient_sum", "Gradient sum", "c-parameter", "cross", rare=True, background=True),
            ColorClass("hook", "Hook", "c-custom", "hook", rare=True),
            ColorClass("validate_outputs", "Check of a gradient", "c-none", "ring", rare=True, background=True),
            ColorClass("other", "Other operation", "c-none", "bar", rare=True, background=True),
            ColorClass("graph_root", "Graph root", "c-loss", "diamond"),
            ColorClass("accumulate_grad", "Accumulates into .grad", "c-parameter", "tag", background=True),
        ),
        is_categorical=True,
    ),
    "touches": Encoding(
        "Touches",
        (
            ColorClass("initial", "Initial trace, graph pass", "c-alarm", "bang"),
            ColorClass("e3", "Execution, 9 or more", "q4", "bar3", 9),
            ColorClass("e2", "4 to 8 reads", "q3", "bar2", 4),
            ColorClass("e1", "1 to 3", "q1", "bar1", 1),
            ColorClass("none", "Untouched", "c-none", "ring"),
        ),
    ),
    "parity": Encoding(
        "Parity",
        (
            ColorClass("first", "First divergence", "c-alarm", "flag", rare=True),
            ColorClass("d3", f"Differs, ≥ {DIFFERS_MUCH:.0e}".replace("e-0", "e-"), "d3", "bar3", DIFFERS_MUCH),
            ColorClass("d2", "Differs, less", "d2", "bar2", 0),
            ColorClass("close", "Within tolerance", "q2", "bar1"),
            ColorClass("equal", "Bitwise equal", "c-equal", "equal"),
            ColorClass("none", "Not compared", "c-none", "ring"),
        ),
    ),
    "bytes": Encoding(
        "Bytes",
        (
            _amount("b4", "≥ {}", "q4", "bar3", 1e6),
            _amount("b3", "≥ {}", "q3", "bar2", 500e3),
            _amount("b2", "≥ {}", "q2", "bar2", 50e3),
            ColorClass("b1", "Less", "q1", "bar1", 1),
            ColorClass("none", "Nothing saved", "c-none", "ring"),
        ),
    ),
    "time": Encoding(
        "Time",
        (
            ColorClass("t4", "≥ half of the slowest", "q4", "bar3", 1 / 2),
            ColorClass("t3", "≥ 1/8", "q3", "bar2", 1 / 8),
            ColorClass("t2", "≥ 1/64", "q2", "bar2", 1 / 64),
            ColorClass("t1", "Less", "q1", "bar1", 0),
            ColorClass("none", "Not timed", "c-none", "ring"),
        ),
    ),
}
"""By the names of `color_by`, in the order in which the inspector offers them."""
