"""Which gradients of a backward call are no part of its captured graph: those that a comparison of the graph misses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cabw_viz.record.inner_backward import InnerBackward
from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.wording import counted

NAMED = 4
"""So many gradients are named; of the others the number is given."""


def missed_names(record: CaptureRecord) -> tuple[str, ...]:
    """Labels of the tensors that got a gradient in the call and are no leaves of its graph."""
    own = {leaf.label for leaf in record.leaves}
    inner = (label for each in record.inner_backwards for label in each.leaves)
    return tuple(dict.fromkeys(label for label in (*inner, *record.other_gradients) if label not in own))


def coverage_text(record: CaptureRecord, verdict: str = "not compared here") -> str:
    """What got a gradient and is not in the graph, and why, in a sentence for each; empty where there is nothing."""
    return " ".join(_sentences(record, verdict))


def _sentences(record: CaptureRecord, verdict: str) -> Iterator[str]:
    own, missed = {leaf.label for leaf in record.leaves}, missed_names(record)
    total = len(own.union(missed))
    inner = dict.fromkeys(label for each in record.inner_backwards for label in each.leaves)
    others = [label for label in record.other_gradients if label in missed and label not in inner]
    alone, shared = [label for label in inner if label not in own], [label for label in inner if label in own]
    if record.inner_backwards:
        place = _place(record, record.inner_backwards)
        if alone:
            yield f"{len(alone):,} of {total:,} gradients came from {place}, {verdict}: {_listed(alone)}."
        if shared:
            yield f"A part of the gradient of {_listed(shared)} came from {place}, {verdict}."
        if not inner:
            yield f"There was {place}, {verdict}."
        captures = [f"session[{each.capture}]" for each in record.inner_backwards if each.capture is not None]
        if captures:
            yield f"Captured as {_listed(captures)}."
    if others and record.frameworks:  # FSDP's own parameters are shards: their .grad is made of what was compared
        frameworks = " and ".join(record.frameworks)
        yield f"{frameworks} reduces these gradients to the .grad of {_listed(others)}, which is {verdict}."
    elif others:
        yield (
            f"{len(others):,} of {total:,} gradients were set in .grad by a hook or by code in C++, {verdict}: "
            f"{_listed(others)}."
        )


def _place(record: CaptureRecord, inner: Iterable[InnerBackward]) -> str:
    """`2 backwards inside CheckpointFunctionBackward (#3, #8)`."""
    inner = tuple(inner)
    numbers = dict.fromkeys(each.autograd_node for each in inner if each.autograd_node is not None)
    by_name: dict[str, list[int]] = {}
    for number in numbers:
        node = record.by_number.get(number)
        by_name.setdefault("a node" if node is None else node.name, []).append(number)
    nodes = " and ".join(f"{name} ({', '.join(f'#{n}' for n in group)})" for name, group in by_name.items())
    return f"{counted(len(inner), 'backward')} inside {nodes or 'this one'}"


def _listed(labels: Iterable[str]) -> str:
    labels = list(labels)
    more = f" and {len(labels) - NAMED:,} more" if len(labels) > NAMED else ""
    return ", ".join(labels[:NAMED]) + more
