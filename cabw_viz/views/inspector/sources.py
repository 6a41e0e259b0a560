"""A few lines of code around a line of a record, where its file is still at hand and still says the same."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Mapping, Sequence

from cabw_viz.record.source_line import SourceLine

BESIDE = 3
"""Lines shown above and below."""
WIDEST = 160
"""Characters of a line that are shown."""
MOST = 400
"""Lines of a record that get their surroundings; a hostile record must not make a page of a hundred megabytes."""


def around(line: SourceLine, files: Mapping[str, str]) -> tuple[int, list[str]] | None:
    """The number of the first line shown, and the lines; None where the file is gone, or was changed since.

    Args:
        line: the line in the middle.
        files: what to read in place of a name that is no file's, such as a notebook cell's.
    """
    if not line.text:
        return None
    lines = linecache.getlines(files.get(line.file, line.file))
    if not 0 < line.line <= len(lines) or lines[line.line - 1].strip() != line.text.strip():
        return None
    first = max(1, line.line - BESIDE)
    return first, _shown(lines[first - 1 : line.line + BESIDE])


def _shown(lines: Sequence[str]) -> list[str]:
    """Lines without what they are all indented by, and not wider than is shown."""
    text = textwrap.dedent("".join(line.rstrip("\r\n").expandtabs(4) + "\n" for line in lines))
    return [line[:WIDEST] for line in text.split("\n")[: len(lines)]]
