"""What to call parts of a captured graph in a message."""

from __future__ import annotations

from cabw_viz.record.model import CaptureRecord, LiftedInput


def input_label(record: CaptureRecord, row: LiftedInput) -> str:
    """What to call a lifted input in a message."""
    if row.names:
        return f"{' = '.join(row.names)} {row.shape}"
    if row.view_of:
        return f"{' = '.join(row.view_of)} (seen through inputs[{row.index}], a view {row.shape} of it)"
    node = record.by_number.get(row.autograd_node) if row.autograd_node is not None else None
    if node is None:
        return f"inputs[{row.index}] {row.shape}"
    how = "given to" if node.kind == "graph_root" else "saved by"  # the gradient that the call begins with
    origin = f", {how} {node.name} (#{node.number})"
    return f"inputs[{row.index}] {row.shape}{origin}"
