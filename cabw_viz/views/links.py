"""Links from boxes to lines of code: `vscode://file/{file}:{line}`.

The reader's text says what kind of address it is; a file's name, which may be anybody's, only fills a place in it.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath
from urllib.parse import quote

from cabw_viz.errors import CabwError
from cabw_viz.record.source_line import SourceLine

EXAMPLE = "vscode://file/{file}:{line}"

RUNS_CODE = frozenset({"javascript", "data", "vbscript", "blob"})
"""Addresses that a browser runs or shows as a page of its own, instead of opening something elsewhere."""

_TEMPLATE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?:[^{}\s]|\{file\}|\{line\})*")


def check_links(template: object) -> None:
    """Let pass what makes an address of a file and a line.

    Raises:
        CabwError: it does not; says what does.
    """
    if template is None:
        return
    match = _TEMPLATE.fullmatch(template) if isinstance(template, str) else None
    if match is None or "{file}" not in match[0] or match[1].lower() in RUNS_CODE:
        raise CabwError(
            f"links={template!r} makes no address of a line of code",
            expected="the beginning of an address, with {file} and perhaps {line} in it",
            try_=f"links={EXAMPLE!r}, or links='file://{{file}}'",
        )


def link(template: str | None, line: SourceLine | None) -> str:
    """The address of a line; empty where there is none to go to, as for a notebook's cell."""
    if template is None or line is None or not _is_absolute(line.file):
        return ""
    file = quote(line.file.replace("\\", "/"), safe="/:")
    return template.replace("{line}", str(line.line)).replace("{file}", file)


def _is_absolute(file: str) -> bool:
    return PurePosixPath(file).is_absolute() or PureWindowsPath(file).is_absolute()
