"""What a search for NaN and infinity has not looked at, and what would be needed for it."""

from __future__ import annotations

from collections.abc import Iterator

from cabw_viz.nonfinite.kept_values import KeptValues
from cabw_viz.record.wording import counted
from cabw_viz.runtime.capture_state import Captured


def gaps(captured: Captured, kept: KeptValues) -> tuple[str, ...]:
    """In whole sentences; empty where everything was looked at."""
    return tuple(dict.fromkeys((*_of_gradients(captured), *_of_saved(captured, kept))))


def _of_gradients(captured: Captured) -> Iterator[str]:
    state, record = captured.state, captured.record
    gradients = state.node_gradients
    if record.failure is not None and not state.has_reference:
        kept = "not kept" if gradients is None else "kept in part"
        yield f"The gradients of the autograd nodes were {kept}: this backward failed ({record.failure.cause})."
    elif gradients is None and record.run != "eager":
        yield (
            "The gradients of the autograd nodes were not kept: the call ran through compiled autograd, where they "
            'cannot be seen. run="eager" keeps them.'
        )
    elif gradients is None:
        yield 'The gradients of the autograd nodes were not kept: capture(gradients="nodes") keeps them.'
    elif gradients.fingerprints:
        yield (
            f"{counted(gradients.fingerprints, 'gradient')} were kept as fingerprints: these count NaN and "
            "infinities, and do not say where in the tensor they stand. A larger max_bytes= keeps the gradients."
        )
    if state.reference_error:
        yield f"The gradients were kept in part: {state.reference_error}."


def _of_saved(captured: Captured, kept: KeptValues) -> Iterator[str]:
    record, state = captured.record, captured.state
    packed = sum(row.packed for node in record.autograd_nodes for row in node.saved)
    if packed:
        yield f"{counted(packed, 'saved tensor')} were packed by hooks, which alone can unpack them."
    changed = [record.input_label(record.inputs[index]) for index in sorted(kept.changed) if index < len(record.inputs)]
    if changed:
        more = f" and {len(changed) - 3:,} more" if len(changed) > 3 else ""
        yield (
            f"{', '.join(changed[:3])}{more} changed since the backward, and cannot be looked at any more: "
            "capture(..., snapshot=True) copies them, and cap.nonfinite() before optimizer.step() sees them."
        )
    missing = kept.unreadable - len(changed)
    if missing > 0 and state.arguments is None and not state.forward_values.has_forward:
        yield (
            f"{counted(missing, 'saved tensor')} were not kept, as there is no graph and the loss is finite; "
            "those of a node that makes a NaN are."
        )
    elif missing > 0:
        yield f"{counted(missing, 'saved tensor')} could not be read: the graph does not use them."
