"""A picture that shows itself in a notebook and can be saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cabw_viz.errors import CabwError
from cabw_viz.views.depth_frame import standalone
from cabw_viz.views.files import path_named, write_file
from cabw_viz.views.html import picture_html

if TYPE_CHECKING:
    from pathlib import Path


class SvgPicture:
    """An SVG picture; its text and lines take the colour of the page that it stands in."""

    def __init__(self, svg: str, words: str, example: str) -> None:
        self.svg = svg
        """The picture as SVG text."""
        self._words, self._example = words, example

    def save(self, path: str | Path) -> Path:
        """Write the picture to an `.svg` file.

        Raises:
            CabwError: the name ends otherwise, or the file cannot be written.
        """
        target = path_named(path, self._example)
        if target.suffix.lower() != ".svg":
            raise CabwError(
                f"this picture cannot be saved as {target.suffix or target.name!r}", expected=".svg", try_=self._example
            )
        return write_file(target, standalone(self.svg), self._example)

    def __repr__(self) -> str:
        return f"<{self._words}>"

    def _repr_html_(self) -> str:
        return picture_html(self.svg)
