"""Records as plain text: what a terminal or a log shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from cabw_viz.analysis.autograd_drawing import inner_function
from cabw_viz.analysis.drawing import call_title, counted, problem_of
from cabw_viz.analysis.flow import AFTER, BEFORE, Entering, hooks_of, incoming, reached, summed
from cabw_viz.record.kinds import PLUMBING
from cabw_viz.record.model import AutogradNode, CaptureRecord, Event, Hook
from cabw_viz.views.palette import LOOKS
from cabw_viz.views.text import in_line, pad, width

FIRST, LAST, AROUND = 60, 20, 5
"""How many nodes a shortened outline shows at its beginning, at its end, and on either side of a failure."""

NAME_COLUMNS = 44
"""Where a name is longer, what follows it is moved to the right."""


def outline(record: CaptureRecord, *, full: bool = False) -> str:
    """A capture as text: its counts, then a line for each autograd node in the order of the NodeCalls.

    Args:
        record: The capture.
        full: Show every node; otherwise a long backward is shortened in the middle.
    """
    entering = incoming(record)
    shown = set(range(len(record.autograd_nodes))) if full else _shown(record)
    columns = min(NAME_COLUMNS, max((width(_name(record, n)) for n in record.autograd_nodes), default=0))
    digits = len(str(max((node.number for node in record.autograd_nodes), default=0))) + 1
    lines, left_out = [*_header(record), ""], 0
    for place, node in enumerate(record.autograd_nodes):
        if place not in shown:
            left_out += 1
            continue
        if left_out:
            lines.append(f"{' ' * (digits + 2)}… {left_out:,} more")
            left_out = 0
        lines += _node_lines(record, node, entering.get(node.number, {}), digits, columns)
    return "\n".join(lines)
