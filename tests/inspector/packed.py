"""Reads packed parts as the browser does: the test's own reading of the format."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Part:
    """One part, unpacked."""

    facts: dict[str, Any]
    tables: dict[str, list[Any]]
    columns: dict[str, Any]

    def texts(self, column: str, table: str) -> list[Any]:
        """What an optional column says: the row of a table, None for 0."""
        return [self.tables[table][row - 1] if row else None for row in self.columns[column]]


def unpack(raw: bytes) -> Part:
    assert raw[:4] == b"cabw"
    (length,) = struct.unpack_from("<I", raw, 4)
    assert (8 + length) % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    columns = {}
    for name, (kind, at, count, differences) in header["columns"].items():
        assert at % 8 == 0
        column = np.frombuffer(raw, "<" + kind, count, 8 + length + at)
        columns[name] = (np.cumsum(column, dtype="<i8") if differences else column).tolist()
    return Part(header["facts"], header["tables"], columns)
