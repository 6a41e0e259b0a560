"""The sizes of gradients as DataFrames."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from cabw_viz.analysis.memory import module_text
from cabw_viz.record.gradients import GradientSizes, GradientStatistics, together
from cabw_viz.record.model import CaptureRecord
from cabw_viz.views.tables import frame_of

if TYPE_CHECKING:
    import pandas as pd

GRADIENT_COLUMNS = {
    "kind": "object",
    "name": "object",
    "autograd_node": "Int64",
    "norm": "float64",
    "rms": "float64",
    "largest": "float64",
    "zeros": "float64",
    "subnormals": "float64",
    "nans": "Int64",
    "infinities": "Int64",
    "parameter_norm": "float64",
    "ratio": "float64",
    "rms_out": "float64",
    "elements": "Int64",
    "shape": "object",
    "dtype": "object",
    "module": "object",
    "line": "object",
    "note": "object",
}


def gradient_frame(record: CaptureRecord, sizes: GradientSizes) -> pd.DataFrame:
    """A row for each leaf, then one for each autograd node, in the order of the backward."""
    return frame_of([*_leaf_rows(record, sizes), *_node_rows(record, sizes)], GRADIENT_COLUMNS)


def _leaf_rows(record: CaptureRecord, sizes: GradientSizes) -> list[tuple[Any, ...]]:
    rows = []
    for each in sizes.leaves:
        leaf = record.leaves[each.leaf]
        node = None if leaf.autograd_node is None else record.by_number.get(leaf.autograd_node)
        origin = (None, None) if node is None else (module_text(node) or None, None if node.line is None else str(node.line))
        gradient = each.gradient
        rows.append((
            "leaf", leaf.label, leaf.autograd_node, *_figures(gradient), _number(each.parameter_norm),
            ratio_of(None if gradient is None else gradient.norm, each.parameter_norm), math.nan,
            *(_kind(gradient) if gradient is not None else (None, leaf.shape, leaf.dtype)), *origin,
            "no gradient" if gradient is None else gradient.note,
        ))  # fmt: skip
    return rows


def _node_rows(record: CaptureRecord, sizes: GradientSizes) -> list[tuple[Any, ...]]:
    by_number = {each.number: each for each in sizes.nodes}
    rows = []
    for node in record.autograd_nodes:
        each = by_number.get(node.number)
        into, out = (None, None) if each is None else (together(each.inputs), together(each.outputs))
        note = "" if into is None else into.note
        rows.append((
            "node", record.label(node), node.number, *_figures(into), math.nan, math.nan,
            math.nan if out is None else _number(out.rms), *(_kind(into) if into is not None else (None, None, None)),
            module_text(node) or None, None if node.line is None else str(node.line), note or _why_unknown(node.kind, each),
        ))  # fmt: skip
    return rows


def _why_unknown(kind: str, sizes: object) -> str:
    """What is said of a node without gradients."""
    return "" if kind == "graph_root" or sizes is not None else "not kept"


def _figures(gradient: GradientStatistics | None) -> tuple[Any, ...]:
    if gradient is None or gradient.norm is None:
        return math.nan, math.nan, math.nan, math.nan, math.nan, None, None
    count = max(gradient.elements, 1)
    shares = gradient.zeros / count, gradient.subnormals / count
    return gradient.norm, gradient.rms, gradient.largest, *shares, gradient.nans, gradient.infinities


def _kind(gradient: GradientStatistics) -> tuple[Any, ...]:
    return gradient.elements, gradient.shape, gradient.dtype.removeprefix("torch.")


def _number(figure: float | None) -> float:
    return math.nan if figure is None else figure


def ratio_of(gradient: float | None, parameter: float | None) -> float:
    """A gradient's norm by its parameter's: infinite for a parameter of zeros, NaN where one is not known."""
    if gradient is None or parameter is None or (gradient == 0 and parameter == 0):
        return math.nan
    return gradient / parameter if parameter else math.inf
