"""What is done to an SVG that Graphviz painted, so that a browser shows it well."""

from __future__ import annotations

import re
from itertools import groupby

_TEXT = re.compile(r'<text text-anchor="start" x="([^"]*)" y="([^"]*)"([^>]*)>(.*)</text>')

_DARK = """<style>
@media (prefers-color-scheme: dark) {
  svg { background: #1f1f1f; }
  .graph { filter: invert(0.88) hue-rotate(180deg); }
}
</style>
"""
"""As the pages that show drawings do it: their lightness is turned round, their hues are kept."""


def joined_words(svg: str) -> str:
    """The picture with the pieces of each line of text in one element.

    Graphviz sets down each piece where its own font ends the one before. Where the browser has another font, they
    would stand apart or run into each other.
    """
    lines: list[str] = []
    for _, group in groupby(enumerate(svg.split("\n")), lambda numbered: _line_of_text(*numbered)):
        pieces = [line for _, line in group]
        lines += [_joined(pieces)] if len(pieces) > 1 else pieces
    return "\n".join(lines)


def _line_of_text(number: int, line: str) -> tuple[str, object]:
    """Equal for the pieces of one line of text, and for nothing else."""
    match = _TEXT.fullmatch(line)
    return ("", number) if match is None else ("y", match[2])


def _joined(pieces: list[str]) -> str:
    matches = [match for match in map(_TEXT.fullmatch, pieces) if match is not None]
    x, y = matches[0][1], matches[0][2]
    words = "".join(f"<tspan{match[3]}>{match[4]}</tspan>" for match in matches)
    return f'<text text-anchor="start" x="{x}" y="{y}" xml:space="preserve">{words}</text>'


def self_contained(svg: str) -> str:
    """The picture as a file of its own, dark where its reader wants dark pages."""
    start = svg.index(">") + 1
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{svg[:start]}\n{_DARK}{svg[start:].lstrip()}'
