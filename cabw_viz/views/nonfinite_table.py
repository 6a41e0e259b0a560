"""Where NaN and infinity begin, as a pandas DataFrame, as a coloured table, and as text."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

from cabw_viz.analysis import nonfinite as analysis
from cabw_viz.analysis.drawing import file_and_line
from cabw_viz.record.nonfinite import NonFiniteOrigin, NonFiniteSearch, ValueRange
from cabw_viz.views.tables import CELL_STYLES, RED_BOLD
from cabw_viz.views.text import aligned, in_line

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

COLUMNS = {
    "stage": "object",
    "number": "int64",
    "name": "object",
    "module": "object",
    "visit": "int64",
    "line": "object",
    "how": "object",
    "what": "object",
    "nans": "Int64",
    "infinities": "Int64",
    "elements": "Int64",
    "dtype": "object",
    "into_low": "float64",
    "into_high": "float64",
    "into_smallest": "float64",
    "into_largest": "float64",
    "others": "object",
    "note": "object",
}
SHOWN = {
    "stage": "where",
    "number": "#",
    "name": "step or op",
    "module": "module",
    "line": "line",
    "how": "how",
    "nans": "NaN",
    "infinities": "inf",
    "into_low": "into, min",
    "into_high": "max",
    "into_largest": "max abs",
}
"""The columns of the coloured table, and their headings there; the frame has all."""

STAGES = {
    "leaf": "leaf",
    "input": "input",
    "forward": "forward",
    "root_gradient": "first gradient",
    "backward": "backward",
}

_TEXTS = ("stage", "name", "module", "line", "how")
_STYLES: Any = [
    {"selector": ".cabw-bad", "props": RED_BOLD},
    *CELL_STYLES,
    {
        "selector": ", ".join(f"th.col{i}" for i, column in enumerate(SHOWN) if column in _TEXTS),
        "props": "text-align: left",
    },
]


def nonfinite_frame(search: NonFiniteSearch) -> pd.DataFrame:
    """A row for each place where NaN or infinity begins, the earliest cause first.

    `stage` is `leaf`, `input`, `forward`, `root_gradient` or `backward`; `how` the way, several with `or` where it is
    not known which, empty where nothing is known. `into_…` are the range of what flowed in, over all its tensors;
    `others` the numbers of nodes whose op may have made it instead.
    """
    import pandas as pd

    rows = [_cells(origin) for origin in search.origins]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    pairs = zip(COLUMNS.items(), columns, strict=True)
    return pd.DataFrame({name: pd.Series(list(values), dtype=dtype) for (name, dtype), values in pairs})


def _cells(origin: NonFiniteOrigin) -> tuple[Any, ...]:
    out = origin.out
    line = None if origin.line is None else str(origin.line)
    counts = (None, None, None, None) if out is None else (out.nans, out.infinities, _elements(out), out.dtype)
    how = " or ".join(analysis.WAYS[way] for way in origin.ways)
    place = origin.stage, origin.number, origin.name, origin.module or None, origin.visit, line
    return *place, how, origin.what, *counts, *_range(origin.into), origin.others, origin.note


def _elements(values: ValueRange) -> int:
    count = 1
    for size in values.shape:
        count *= size
    return count


def _range(into: tuple[ValueRange, ...]) -> tuple[float | None, ...]:
    known = [values for values in into if not math.isnan(values.low)]
    if not known:
        return None, None, None, None
    smallest = [values.smallest for values in known if values.smallest is not None]
    low, high = min(values.low for values in known), max(values.high for values in known)
    return low, high, min(smallest, default=None), max(values.largest for values in known)


def nonfinite_styler(search: NonFiniteSearch) -> Styler:
    """The rows, coloured; texts are escaped."""
    import pandas as pd

    frame = nonfinite_frame(search)[list(SHOWN)]
    classes = pd.DataFrame("", index=frame.index, columns=frame.columns)
    for column in _TEXTS:
        classes[column] = "cabw-text"
    classes.loc[classes.index[:1], "name"] = "cabw-text cabw-bad"
    formats: Any = dict.fromkeys(("name", "module", "how"), _escaped) | {
        "stage": STAGES.get,
        "number": "#{:d}".format,
        "line": lambda line: _escaped(None if line is None else file_and_line(line)),
    }
    formats |= dict.fromkeys(("into_low", "into_high", "into_largest"), _figure)
    formats |= dict.fromkeys(("nans", "infinities"), _count)
    styler = frame.rename(columns=SHOWN).style.set_uuid("cabw_nonfinite").hide(axis="index")
    styler = styler.set_table_styles(_STYLES).set_td_classes(classes.rename(columns=SHOWN))
    styler = styler.set_table_attributes('class="tex2jax_ignore mathjax_ignore"')  # a name with $ is no formula
    return styler.format({SHOWN[column]: how for column, how in formats.items()})


def _escaped(text: str | None) -> str:
    return html.escape(in_line(text or "", 120))


def _figure(number: float) -> str:
    return "" if math.isnan(number) else f"{number:.4g}"


def _count(count: Any) -> str:
    return f"{int(count):,}" if hasattr(count, "__index__") else ""  # pandas' NA has none


def nonfinite_text(search: NonFiniteSearch) -> str:
    """The outcome as plain text: a line for each origin, then the findings."""
    table = [("", "#", "step or op", "module", "line", "how"), *map(_line, search.origins)]
    head = [*aligned(table), ""] if search.origins else []
    return "\n".join([*head, *(in_line(line, 1000) for line in analysis.findings(search))])


def _line(origin: NonFiniteOrigin) -> tuple[str, ...]:
    line = "" if origin.line is None else file_and_line(str(origin.line))
    how = " or ".join(analysis.WAYS[way] for way in origin.ways) or "not known"
    number = str(origin.number)
    return STAGES[origin.stage], number, in_line(origin.name), in_line(origin.module, 40), in_line(line, 40), how
