"""Pictures of a drawing, made by Graphviz's program `dot` where there is one."""

from __future__ import annotations

import base64
import html
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from cabw_viz.analysis.autograd_drawing import draw_autograd
from cabw_viz.analysis.drawing import LEVELS, Drawing, counted
from cabw_viz.analysis.graph_drawing import draw_graph
from cabw_viz.analysis.marking import marked
from cabw_viz.errors import CabwError
from cabw_viz.record.model import CaptureRecord
from cabw_viz.views.dot import dot_source

Format = Literal["svg", "pdf", "png"]

FORMATS: dict[str, Format | None] = {".svg": "svg", ".pdf": "pdf", ".png": "png", ".dot": None, ".gv": None}
"""What to make for a file's suffix; None: the DOT text itself."""

MAX_BOXES = 2_000
"""Larger drawings are not laid out: `dot` takes minutes over them, and nobody finds anything in them."""

SECONDS = 60.0
"""How long `dot` may take over one picture."""


def draw(record: CaptureRecord, level: str = "autograd", *, plumbing: bool = False) -> Drawing:
    """Draw a capture at a level: `autograd` or `fx`; `plumbing=True` unfolds what `fx` leaves out."""
    if level not in LEVELS:
        raise CabwError(f"level={level!r} is no level of the graph", expected=" or ".join(map(repr, LEVELS)))
    if level == "fx":
        return marked(draw_graph(record, plumbing=plumbing), record)
    if plumbing:
        raise CabwError(
            "plumbing=True was given for level='autograd', which has no plumbing",
            try_="level='fx' with it, or level='autograd' without it",
        )
    return marked(draw_autograd(record), record)


def graph_view(record: CaptureRecord, level: str = "autograd", *, plumbing: bool = False) -> GraphView:
    """A view of a capture's graph, which shows itself in a notebook; see `draw` for the arguments."""
    return GraphView(draw(record, level, plumbing=plumbing))


@dataclass(frozen=True)
class GraphView:
    """A drawn graph as DOT text, and as a picture where `dot` is installed."""

    drawing: Drawing
    timeout: float = SECONDS
    """Seconds that `dot` may take."""

    @cached_property
    def source(self) -> str:
        """The graph in the DOT language."""
        return dot_source(self.drawing)

    def svg(self) -> str:
        """The graph as an SVG element, without the XML prologue, so that it can stand in a page."""
        text = self._render("svg").decode()
        return text[text.index("<svg") :]

    def save(self, path: str | Path) -> Path:
        """Write the graph to a file whose suffix says what it becomes: svg, pdf, png, dot or gv."""
        path = Path(path)
        if path.suffix.lower() not in FORMATS:
            raise CabwError(
                f"{path.name!r} has no suffix that says what to write",
                expected=", ".join(FORMATS),
                try_=f"save({str(path.with_suffix('.svg'))!r})",
            )
        format_ = FORMATS[path.suffix.lower()]
        path.write_bytes(self.source.encode() if format_ is None else self._render(format_))
        return path

    def html(self, *, inline: bool = True) -> str:
        """The picture as part of a page; what stands in its way where there is none.

        Args:
            inline: As an SVG element, which has tooltips. JupyterLab takes those out of a notebook that it does not
                trust, that is, of one that somebody sent; an image, `inline=False`, it shows.
        """
        try:
            picture = self.svg() if inline else self._image()
        except CabwError as error:
            return f"<pre>{html.escape(str(error))}</pre>"
        return _framed(picture)

    def _image(self) -> str:
        data = base64.b64encode(self.svg().encode()).decode()
        alt = html.escape(repr(self), quote=True)
        return f'<img style="max-width: none" alt="{alt}" src="data:image/svg+xml;base64,{data}">'

    def _render(self, format_: Format) -> bytes:
        boxes = len(self.drawing.boxes)
        if boxes > MAX_BOXES:
            raise CabwError(
                f"The graph at level {self.drawing.level!r} has {boxes:,} nodes, too many for a picture",
                expected=f"at most {MAX_BOXES:,}",
                try_=("" if self.drawing.level == "autograd" else "level='autograd', or ")
                + "save('graph.dot') for a tool that draws larger graphs",
            )
        return run_dot(self.source, format_, self.timeout)

    def __repr__(self) -> str:
        drawing = self.drawing
        return (
            f"<graph of {drawing.title} at level {drawing.level!r}: "
            f"{counted(len(drawing.boxes), 'node')}, {counted(len(drawing.arrows), 'edge')}>"
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        try:
            return {"text/html": _framed(self._image()), "text/plain": repr(self)}
        except CabwError as error:
            return {"text/plain": f"{self!r}\n{error}"}


def _framed(picture: str) -> str:
    """A picture in its own size, to be scrolled where it is larger than the page."""
    return f'<div style="overflow: auto; max-height: 80vh">{picture}</div>'


def run_dot(source: str, format_: Format, timeout: float = SECONDS) -> bytes:
    """Have `dot` lay out and paint a graph."""
    program = shutil.which("dot")
    if program is None:
        raise CabwError(
            "Graphviz's program `dot` was not found on the PATH",
            expected="`dot`, which lays out the pictures; the DOT text and the outline do without it",
            try_="apt-get install graphviz, conda install -c conda-forge graphviz, or brew install graphviz",
        )
    try:
        done = subprocess.run(
            [program, f"-T{format_}"], input=source.encode(), capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise CabwError(
            f"`dot` was not done after {timeout:g} seconds and was stopped",
            try_="level='autograd', which has fewer nodes, or save('graph.dot') and lay it out elsewhere",
        ) from None
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise CabwError(
            f"`dot` failed with exit status {done.returncode}: {message}",
            try_="save('graph.dot') to see what it was given",
        )
    return done.stdout
