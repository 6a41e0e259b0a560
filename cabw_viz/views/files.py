"""Files that the user asks for, and the errors where they cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

from cabw_viz.errors import CabwError


def path_named(path: object, example: str) -> Path:
    """A path as the user gave it.

    Args:
        path: what was given.
        example: a call that works, for the error.

    Raises:
        CabwError: it is neither a text nor a path.
    """
    if isinstance(path, str) or (isinstance(path, os.PathLike) and isinstance(os.fspath(path), str)):
        return Path(path)
    raise CabwError(f"{path!r} is no path to a file", expected="a str or a pathlib.Path", try_=example)


def write_file(path: Path, content: str | bytes, example: str) -> Path:
    """Write a file; text in UTF-8.

    Raises:
        CabwError: it cannot be written there.
    """
    try:
        if isinstance(content, str):
            path.write_text(content, "utf-8")
        else:
            path.write_bytes(content)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise CabwError(
            f"{path} cannot be written to: {reason}",
            expected="a path to a file in a folder that is there",
            try_=example,
        ) from error
    return path
