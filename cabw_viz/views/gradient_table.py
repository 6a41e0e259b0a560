"""The sizes of gradients as DataFrames."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cabw_viz.analysis.memory import module_text
from cabw_viz.record.gradients import GradientSizes, GradientStatistics, NodeSizes, together
from cabw_viz.record.model import AutogradNode, CaptureRecord
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


def _leaf_rows(record: CaptureRecord, sizes: GradientSizes) -> Iterator[tuple[Any, ...]]:
    for each in sizes.leaves:
        leaf, gradient = record.leaves[each.leaf], each.gradient
        node = None if leaf.autograd_node is None else record.by_number.get(leaf.autograd_node)
        kind = (None, leaf.shape, _short(leaf.dtype)) if gradient is None else _kind(gradient)
        norm = None if gradient is None else gradient.norm
        size = _number(each.parameter_norm), ratio_of(norm, each.parameter_norm), math.nan
        note = "no gradient" if gradient is None else gradient.note
        yield "leaf", leaf.label, leaf.autograd_node, *_figures(gradient), *size, *kind, *_origin(node), note


def _node_rows(record: CaptureRecord, sizes: GradientSizes) -> Iterator[tuple[Any, ...]]:
    by_number = {each.number: each for each in sizes.nodes}
    for node in record.autograd_nodes:
        each = by_number.get(node.number, NodeSizes(node.number))
        into, out = together(each.inputs), together(each.outputs)
        kind = (None, None, None) if into is None else _kind(into)
        size = math.nan, math.nan, _number(None if out is None else out.rms)
        note = "" if into is None else into.note
        yield "node", record.label(node), node.number, *_figures(into), *size, *kind, *_origin(node), note


def _origin(node: AutogradNode | None) -> tuple[str | None, str | None]:
    """Module and line; None where they are not known."""
    if node is None:
        return None, None
    return module_text(node) or None, None if node.line is None else str(node.line)


def _figures(gradient: GradientStatistics | None) -> tuple[Any, ...]:
    if gradient is None or gradient.norm is None:
        return math.nan, math.nan, math.nan, math.nan, math.nan, None, None
    count = max(gradient.elements, 1)
    shares = gradient.zeros / count, gradient.subnormals / count
    return gradient.norm, gradient.rms, gradient.largest, *shares, gradient.nans, gradient.infinities


def _kind(gradient: GradientStatistics) -> tuple[Any, ...]:
    return gradient.elements, gradient.shape, _short(gradient.dtype)


def _short(dtype: str) -> str:
    return dtype.removeprefix("torch.")


def _number(figure: float | None) -> float:
    return math.nan if figure is None else figure


def ratio_of(gradient: float | None, parameter: float | None) -> float:
    """A gradient's norm by its parameter's: infinite for a parameter of zeros, NaN where one is not known."""
    if gradient is None or parameter is None or (gradient == 0 and parameter == 0):
        return math.nan
    return gradient / parameter if parameter else math.inf
