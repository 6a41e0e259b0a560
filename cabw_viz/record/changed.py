"""Records with other values in some of their fields."""

from __future__ import annotations

from typing import Any, TypeVar

from cabw_viz.record.model import AutogradNode, SavedTensor

Row = TypeVar("Row", AutogradNode, SavedTensor)


def changed(row: Row, **values: Any) -> Row:
    """What `dataclasses.replace` returns, in a tenth of the time, since it sets no field by its constructor.

    Only for records that keep nothing but their fields: a cached property would be copied too.
    """
    copy = object.__new__(type(row))
    fields = vars(copy)
    fields.update(vars(row))
    fields.update(values)
    return copy
