"""Pictures of a drawing, made by Graphviz's program `dot` where there is one."""

from __future__ import annotations

import base64
import html
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from cabw_viz.analysis.composing import Wanted, draw, smaller
from cabw_viz.analysis.drawing import Drawing
from cabw_viz.errors import CabwError
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.results import NO_RESULTS, Results
from cabw_viz.record.wording import counted
from cabw_viz.views.dot import dot_source
from cabw_viz.views.files import path_named, write_file
from cabw_viz.views.links import check_links
from cabw_viz.views.svg import joined_words, self_contained

if TYPE_CHECKING:
    from pathlib import Path

Format = Literal["svg", "pdf", "png"]

FORMATS: dict[str, Format | None] = {".svg": "svg", ".pdf": "pdf", ".png": "png", ".dot": None, ".gv": None}
"""What to make for a file's suffix; None: the DOT text itself."""

EXAMPLE = 'cap.graph().save("backward.svg")'

MAX_BOXES = 2_000
"""Larger drawings are not laid out: `dot` takes minutes over them, and they are too large to read."""

SECONDS = 60.0
"""How long `dot` may take over one picture."""


def graph_view(
    record: CaptureRecord,
    level: str = "module",
    *,
    results: Results = NO_RESULTS,
    links: str | None = None,
    **wanted: Any,
) -> GraphView:
    """A view of a capture's graph, which shows itself in a notebook.

    Args:
        record: The capture.
        level: What a box stands for: `module`, `autograd`, `fx` or `aten`.
        results: What was computed of it.
        links: Where a box leads, a text with `{file}` and `{line}` in it; None for nowhere.
        wanted: The other fields of `cabw_viz.analysis.composing.Wanted`.

    Raises:
        CabwError: Something asked for is not there, or does not go together.
    """
    check_links(links)
    drawing = draw(record, Wanted(level, **wanted), results)
    return GraphView(drawing, links=links, smaller=smaller(record, drawing) if len(drawing.boxes) > MAX_BOXES else "")


@dataclass(frozen=True)
class GraphView:
    """A drawn graph as DOT text, and as a picture where `dot` is installed."""

    drawing: Drawing
    timeout: float = SECONDS
    """Seconds that `dot` may take."""
    links: str | None = None
    """Where a box leads: a text with `{file}` and `{line}` in it."""
    smaller: str = ""
    """What to ask for instead if this is too large to be drawn."""

    @cached_property
    def source(self) -> str:
        """The graph in the DOT language."""
        return dot_source(self.drawing, self.links)

    def svg(self) -> str:
        """The graph as an SVG element, without the XML prologue, so that it can stand in a page."""
        text = joined_words(self._render("svg").decode())
        return text[text.index("<svg") :]

    def save(self, path: str | Path) -> Path:
        """Write the graph to a file whose suffix says what it becomes: svg, pdf, png, dot or gv.

        Raises:
            CabwError: the suffix is none of these, `dot` is needed and fails, or the file cannot be written.
        """
        target = path_named(path, EXAMPLE)
        if target.suffix.lower() not in FORMATS:
            raise CabwError(
                f"{target.name!r} has no suffix that says what to write",
                expected=", ".join(FORMATS),
                try_=f"save({str(target.with_suffix('.svg'))!r})" if target.name else EXAMPLE,
            )
        return write_file(target, self._content(FORMATS[target.suffix.lower()]), EXAMPLE)

    def _content(self, format_: Format | None) -> str | bytes:
        if format_ is None:
            return self.source
        return self_contained(self.svg()) if format_ == "svg" else self._render(format_)

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
                try_=f"{self.smaller}, or save('graph.dot') for a tool that draws larger graphs".removeprefix(", or "),
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
            picture = self.svg() if self.links else self._image()  # links in an image lead nowhere
            return {"text/html": _framed(picture), "text/plain": repr(self)}
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
            try_="a part of it (focus=, around=, path_to=), level='module', or save('graph.dot') for another tool",
        ) from None
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise CabwError(
            f"`dot` failed with exit status {done.returncode}: {message}",
            try_="save('graph.dot') to see what it was given",
        )
    return done.stdout
