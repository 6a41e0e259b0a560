"""A drawing of a backward as plain data: what to draw, not yet how it looks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

from cabw_viz.record.kinds import AutogradKind
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.options import Level
from cabw_viz.record.source_line import SourceLine

BoxKind = Literal[
    AutogradKind,
    "gradient_sum",
    "hook",
    "returned",  # a gradient that the call returns instead of accumulating it
    "validate_outputs",
    "plumbing",  # carries values, computes nothing
    "other",
    "group",  # the autograd nodes of one module
    "line",  # those that one line of code made
    "outside",  # what lies beyond the part that was cut out
]

BOX_KINDS: tuple[BoxKind, ...] = get_args(BoxKind)


@dataclass(frozen=True)
class Box:
    """One node of a drawing."""

    id: str
    kind: BoxKind
    title: str
    details: tuple[str, ...] = ()
    """Smaller lines under the title."""
    number: int | None = None
    """NodeCall number of the autograd node that it is, or belongs to."""
    cluster: str | None = None
    tooltip: str = ""
    state: Literal["", "failed", "unreached"] = ""
    """Where a failed trace stopped, and what it did not come to."""
    touched: str = ""
    """Which metadata was read in the initial trace or by a graph pass, and by whom; empty for none."""
    nodes: tuple[int, ...] = ()
    """Numbers of the autograd nodes that it stands for, ascending; empty for a part of one, and for what lies between
    them."""
    times: int = 1
    """How many repeated blocks are folded into it."""
    hooks: int = 0
    """Hooks inside it that have no box of their own."""
    inside: int = 0
    """Gradients that go from one of its nodes to another, and are not drawn."""
    line: SourceLine | None = None
    """The line of the user's that its forward ran at."""
    value: str = ""
    """The figure that it is coloured by, as text."""
    shade: int | None = None
    """Its colour: index into `Drawing.shades`; None for that of its kind."""


@dataclass(frozen=True)
class Arrow:
    """A value on its way from one box to another."""

    source: str
    target: str
    label: str = ""
    tooltip: str = ""
    faint: bool = False
    """Not a gradient on its way: a saved tensor that a hook unpacks, a step that the trace did not take."""
    count: int = 1
    """How many gradients go this way."""
    back: bool = False
    """Closes a circle: it leads from a group that is left and entered again to a box further up."""


@dataclass(frozen=True)
class Cluster:
    """A frame around the boxes of one autograd node or one module."""

    id: str
    kind: BoxKind
    title: str
    number: int | None = None
    parent: str | None = None
    """The frame that it stands in."""
    details: tuple[str, ...] = ()
    """Smaller lines under the title."""
    tooltip: str = ""


@dataclass(frozen=True)
class Shade:
    """One colour of a drawing that is coloured by a figure, and what it stands for."""

    step: int
    """From 1, the least, to 5; 0 for nothing at all, -1 for what is not known, 6 for what is worse than any figure.
    In a drawing by families it is the place in `FAMILIES`."""
    text: str
    """The figures that have it: `1.2 to 3.4 MB`."""


@dataclass(frozen=True)
class Drawing:
    """Boxes in the order in which they run, arrows between them, frames around some of them."""

    level: Level
    title: str
    facts: tuple[str, ...]
    """Counts: what is drawn, and what is left out."""
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    clusters: tuple[Cluster, ...] = ()
    problem: str = ""
    """What stopped the trace."""
    findings: tuple[tuple[str, bool], ...] = ()
    """What there is to say of metadata reads, a sentence for each phase that was watched, and whether it alarms."""
    notes: tuple[str, ...] = ()
    """What else a reader must know: what was cut out, why the level is another."""
    measure: str = ""
    """What the boxes are coloured by, in words; empty for their kinds."""
    shades: tuple[Shade, ...] = ()
    """The legend of such a colouring, from nothing to most."""

    @property
    def kinds(self) -> dict[BoxKind, int]:
        """How many boxes there are of each kind that occurs, in the order of `BOX_KINDS`."""
        counts = Counter(box.kind for box in self.boxes)
        return {kind: counts[kind] for kind in BOX_KINDS if counts[kind]}


def call_title(record: CaptureRecord) -> str:
    """The call in a few words: `backward at train.py:12`, `backward at model.py:7, inside session[0] at #6`."""
    where = file_and_line(record.call.where)
    title = f"{record.call.function} at {where}" if where else record.call.function
    if record.outer is None:
        return title
    capture, node = record.outer
    return f"{title}, inside session[{capture}]" + (f" at #{node}" if node is not None else "")


def file_and_line(where: str) -> str:
    """A place in a file without the file's folders: `train.py:12`."""
    return where.replace("\\", "/").rpartition("/")[2]


def local_name(name: str) -> str:
    """A function's qualified name without the functions around it: `double` of `main.<locals>.double`."""
    return name.rpartition("<locals>.")[2]


def problem_of(record: CaptureRecord) -> str:
    """What stopped the trace, in one sentence; empty where nothing did."""
    return "" if record.failure is None else f"The trace stopped: {record.failure}"
