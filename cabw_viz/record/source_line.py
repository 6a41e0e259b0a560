"""A line of code, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceLine:
    """A line of code."""

    file: str
    """The file; `In[3]` for the cell of a notebook."""
    line: int
    text: str = ""
    """The line's own text, without indentation; empty where the file cannot be read."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"
