"""Text from other people's models, made fit to be shown."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

SHORT = 60
"""Longer names are cut where they stand in a line or a box; the full text stands in a tooltip or a table."""

_FIRST_STRONG_ISOLATE, _POP_ISOLATE = "\u2068", "\u2069"


def visible(text: str) -> str:
    """The text with a visible escape for each control, line break and invisible character."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


SENTENCE = 600
"""The same for sentences, which end with what to try."""


def shorten(text: str, limit: int = SHORT) -> str:
    """The text in at most `limit` characters, the end of a longer one replaced by an ellipsis.

    What is allowed to be longer than a name is a sentence: it ends with a whole word.
    """
    if len(text) <= limit:
        return text
    start = text[: limit - 1]
    words = start.rpartition(" ")[0] if limit > SHORT else ""
    return (words if len(words) > limit // 2 else start) + "…"


def in_line(text: str, limit: int = SHORT) -> str:
    """A name as part of a line of plain text: one line, of bounded length, its direction its own."""
    shown = shorten(visible(text), limit)
    if any(unicodedata.bidirectional(char) in {"R", "AL", "AN"} for char in shown):
        return f"{_FIRST_STRONG_ISOLATE}{shown}{_POP_ISOLATE}"  # else it would reverse what follows it
    return shown


def name_in_line(text: str) -> str:
    """A name as `in_line` shows it; an empty one as two quotes, so that it is seen."""
    return in_line(text) or "''"


def width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in {"Cf", "Me", "Mn"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"F", "W"} else 1


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """The text filled up with blanks to this many columns of a terminal."""
    blanks = " " * (columns - width(text))
    return blanks + text if right else text + blanks


def aligned(table: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> list[str]:
    """Rows as lines, each column as wide as its widest cell.

    Args:
        table: the rows, all of one length.
        right: whether each column stands to the right; by default none does.
    """
    widths = [max(map(width, cells)) for cells in zip(*table, strict=True)]
    sides = right or [False] * len(widths)
    return [
        "  ".join(pad(cell, size, right=side) for cell, size, side in zip(row, widths, sides, strict=True)).rstrip()
        for row in table
    ]
