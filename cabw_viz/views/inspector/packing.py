"""The format in which records go to a browser: binary columns, read without parsing an object for each node.

    "cabw" | u32 length of the header | header (JSON) | padding to 8 bytes | columns, each aligned to 8 bytes

The header holds facts, tables of texts and where each column lies. What occurs again and again (names, modules, baked
values of equal blocks) stands once in a table, and columns hold numbers of rows in it. A number that may be missing is
counted from 1, and 0 means that there is none. A list for each node is a flat column beside a column `..._at` of N + 1
offsets. Each column has the smallest type that holds it; what grows along the nodes (numbers, offsets, edges) is kept
as differences, which are smaller and compress far better.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cabw_viz.record.model import CaptureRecord

Column = npt.NDArray[Any]


class _Rows(dict[Hashable, int]):
    """Numbers each key that is asked for, from 0; faster than `setdefault` with the length."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = row = len(self)
        return row


class Table:
    """Numbers values in the order in which they are first seen."""

    def __init__(self) -> None:
        self._rows = _Rows()

    @property
    def values(self) -> list[Any]:
        """The values, each at its number."""
        return list(self._rows)

    def of(self, values: Iterable[Hashable]) -> Column:
        """The number of each value."""
        return smallest(list(map(self._rows.__getitem__, values)))

    def optional(self, values: Iterable[Hashable | None]) -> Column:
        """The number of each value counted from 1; 0 for None and for an empty text."""
        rows = self._rows
        # Most values are true; comparing a dataclass with a text calls its __eq__.
        return smallest([rows[value] + 1 if value or value not in (None, "") else 0 for value in values])


def smallest(values: Sequence[int] | Column) -> Column:
    """Whole numbers as an array of the smallest unsigned type that holds them."""
    column = np.asarray(values, dtype="<u4")
    largest = int(column.max()) if column.size else 0
    return column.astype("u1" if largest < 2**8 else "<u2" if largest < 2**16 else "<u4")


@dataclass(frozen=True)
class Differences:
    """A column of whole numbers, each kept as its distance from the one before."""

    steps: Column


def growing(values: Sequence[int] | Column) -> Differences:
    """Whole numbers that mostly grow, as differences of the smallest signed type that holds them."""
    steps = np.diff(np.asarray(values, dtype="<i8"), prepend=0)
    largest = int(np.abs(steps).max()) if steps.size else 0
    return Differences(steps.astype("i1" if largest < 2**7 else "<i2" if largest < 2**15 else "<i4"))


def offsets(lists: Iterable[Sequence[object]]) -> Differences:
    """Where each list begins once they are joined, and where the last one ends."""
    lengths = np.fromiter(map(len, lists), dtype="<i8")
    return growing(np.concatenate([np.zeros(1, "<i8"), np.cumsum(lengths)]))


def joined(
    facts: Mapping[str, object],
    tables: Mapping[str, Sequence[object]],
    columns: Mapping[str, Column | Differences],
) -> bytes:
    """Facts, tables and columns as one run of bytes."""
    at, places, parts = 0, {}, []
    for name, content in columns.items():
        column = content.steps if isinstance(content, Differences) else content
        raw = column.tobytes()
        padding = -len(raw) % 8
        places[name] = [column.dtype.str.lstrip("<|"), at, len(column), isinstance(content, Differences)]
        parts += [raw, bytes(padding)]
        at += len(raw) + padding
    header = json.dumps({"facts": facts, "tables": tables, "columns": places}, separators=(",", ":")).encode()
    header += b" " * (-(len(header) + 8) % 8)
    return b"".join([b"cabw", struct.pack("<I", len(header)), header, *parts])


def errors(values: Iterable[float | None]) -> Column:
    """Numbers of which some do not exist: NaN for those."""
    return np.asarray([np.nan if value is None else value for value in values], "<f8")


def places_of(record: CaptureRecord) -> dict[int, int]:
    """Where each autograd node stands in the columns, by its number."""
    return {node.number: place for place, node in enumerate(record.autograd_nodes)}


def one_based(places: Mapping[int, int], number: int | None) -> int:
    """A node's place counted from 1; 0 for a node that is not there."""
    return 0 if number is None or number not in places else places[number] + 1


def short(dtype: str) -> str:
    """A dtype without torch's name before it."""
    return dtype.removeprefix("torch.")
