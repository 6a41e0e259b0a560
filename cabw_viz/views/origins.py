"""Where autograd nodes come from, as columns of a line of text."""

from __future__ import annotations

from cabw_viz.analysis.drawing import file_and_line
from cabw_viz.analysis.memory import module_text
from cabw_viz.record.model import AutogradNode, CaptureRecord
from cabw_viz.views.text import in_line, pad, visible, width

MODULE_COLUMNS, LINE_COLUMNS = 30, 28
"""Where a path is longer, its beginning is left out; where a line is, what follows it is moved to the right."""


def origins(record: CaptureRecord) -> dict[int, str]:
    """Module and line of each autograd node by number, as columns of equal width; empty where none is known.

    A leaf's own module stands in its name already, and is left out here.
    """
    cells = {node.number: (_module(node), _line(node)) for node in record.autograd_nodes}
    columns = [max((width(cell[place]) for cell in cells.values()), default=0) for place in range(2)]
    limits = [min(found, most) for found, most in zip(columns, (MODULE_COLUMNS, LINE_COLUMNS), strict=True)]
    return {
        number: "".join(f"{pad(cell, limit)}  " for cell, limit in zip(row, limits, strict=True) if limit)
        for number, row in cells.items()
        if any(limits)
    }


def _module(node: AutogradNode) -> str:
    if node.leaf is not None or node.kind == "accumulate_grad":
        return ""
    text = visible(module_text(node))
    if node.visit:
        text += f", call {node.visit + 1}"
    return in_line(text if len(text) <= MODULE_COLUMNS else f"…{text[1 - MODULE_COLUMNS :]}")


def _line(node: AutogradNode) -> str:
    return "" if node.line is None else in_line(file_and_line(str(node.line)))
