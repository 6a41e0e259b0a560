"""Packs records into binary columns, which a browser reads without parsing an object for each node.

    "cabw" | u32 length of the header | header (JSON) | padding to 8 bytes | columns, each aligned to 8 bytes

The header holds facts, tables of texts and where each column lies. What occurs again and again (names, modules, baked
values of equal blocks) stands once in a table, and columns hold numbers of rows in it. A number that may be missing is
counted from 1, and 0 means that there is none. A list for each node is a flat column beside a column `..._at` of N + 1
offsets. Each column has the smallest type that holds it; what grows along the nodes (numbers, offsets, edges) is kept
as differences, which are smaller and compress far better.

A capture comes in four parts, so that nothing is sent twice: the graph; its touches, which an audit replaces; its
parity, which is computed later or never; its code, which outweighs the rest and is fetched when it is first shown.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from cabw_viz.analysis import parity
from cabw_viz.analysis.drawing import call_title, file_and_line, problem_of
from cabw_viz.record.comparison import Comparison
from cabw_viz.record.kinds import GOOD, PLUMBING, SEVERITY, AutogradKind, Outcome, Phase, Toucher
from cabw_viz.record.model import AutogradNode, CaptureRecord, Event

Column = npt.NDArray[Any]
KINDS, OUTCOMES, PHASES, TOUCHERS = get_args(AutogradKind), get_args(Outcome), get_args(Phase), get_args(Toucher)
DEEPEST = 24
"""Modules nested deeper are drawn as one, so that a hostile name cannot make a thousand frames."""


@dataclass(frozen=True)
class Divergence:
    """How far the gradients at each autograd node are off, where that was looked for."""

    first: int | None
    """Number of the first node whose gradients differ though its inputs agree."""
    errors: Mapping[int, tuple[float | None, float | None]]
    """By number: the largest relative errors of the gradients that enter and leave it."""


class Table:
    """Numbers values in the order in which they are first seen."""

    def __init__(self) -> None:
        self._rows: dict[Hashable, int] = {}

    @property
    def values(self) -> list[Any]:
        """The values, each at its number."""
        return list(self._rows)

    def of(self, values: Iterable[Hashable]) -> Column:
        """The number of each value."""
        rows, row = self._rows, self._rows.setdefault
        return smallest([row(value, len(rows)) for value in values])

    def optional(self, values: Iterable[Hashable | None]) -> Column:
        """The number of each value counted from 1; 0 for None and for an empty text."""
        rows, row = self._rows, self._rows.setdefault
        return smallest([0 if value in (None, "") else row(value, len(rows)) + 1 for value in values])


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


# -------------------------------------------------------------------------------------------------------------- session


def pack_session(records: Sequence[CaptureRecord], events: Iterable[Event]) -> bytes:
    """What the inspector shows of a session beside the capture that is open: its captures by title, its events."""
    events = list(events)
    functions, places, reasons = Table(), Table(), Table()
    columns: dict[str, Column | Differences] = {
        "event_call": growing([0 if e.call.index is None else e.call.index + 1 for e in events]),
        "event_function": functions.of(e.call.function for e in events),
        "event_place": places.of(file_and_line(e.call.where) for e in events),
        "event_outcome": smallest([OUTCOMES.index(e.outcome) for e in events]),
        "event_reason": reasons.optional(e.reason for e in events),
        "event_capture": growing([0 if e.capture is None else e.capture + 1 for e in events]),
        "event_seconds": np.asarray([e.seconds for e in events], "<f4"),
    }
    captures = [
        {
            "title": call_title(record),
            "nodes": len(record.autograd_nodes),
            "graph_nodes": len(record.graph_nodes),
            "failed": record.failure is not None,
        }
        for record in records
    ]
    tables = {
        "outcomes": OUTCOMES,
        "functions": functions.values,
        "places": places.values,
        "reasons": reasons.values,
    }
    return joined({"captures": captures}, tables, columns)


# ---------------------------------------------------------------------------------------------------------------- graph


def pack_graph(record: CaptureRecord, capture: int = 0) -> bytes:
    """The autograd nodes of a capture, the gradients between them, and what each node carries.

    Args:
        record: the capture.
        capture: its place in the session, by which the other parts are known to belong to it.
    """
    nodes = record.autograd_nodes
    names, modules, parameters = Table(), Table(), Table()
    home = modules_of(record)
    columns: dict[str, Column | Differences] = {
        "id": growing([node.number for node in nodes]),
        "name": names.of(node.name for node in nodes),
        "kind": smallest([KINDS.index(node.kind) for node in nodes]),
        "module": modules.optional(home),
        "within": smallest([bool(node.module or node.module_class) for node in nodes]),
        "parameter": parameters.optional(_parameter(record, node) for node in nodes),
        "inputs": smallest([node.inputs for node in nodes]),
        "outputs": smallest([node.outputs for node in nodes]),
        "graph_nodes": smallest([len(node.graph_nodes) for node in nodes]),
        **_edges(record),
    }
    tables: dict[str, Sequence[object]] = {"kinds": KINDS, "names": names.values}
    for pack in (_leaves, _hooks, _lifted, _baked, _forward, _gradients, _saved):
        more, texts = pack(record, parameters)
        columns |= more
        tables |= texts
    classes = _classes(record)
    tables |= {"modules": modules.values, "parameters": parameters.values}
    tables["classes"] = [classes.get(path, "") for path in modules.values]
    return joined(_facts(record, capture), tables, columns)


def _facts(record: CaptureRecord, capture: int) -> dict[str, object]:
    failure = record.failure
    return {
        "capture": capture,
        "title": call_title(record),
        "where": file_and_line(record.call.where),
        "run": record.run,
        "torch": record.torch_version,
        "seconds": record.seconds,
        "graph_nodes": len(record.graph_nodes),
        "plumbing": sum(node.kind in PLUMBING for node in record.graph_nodes),
        "inputs": len(record.inputs),
        "sizes": len(record.sizes),
        "failure": problem_of(record),
        "failed_at": None if failure is None else failure.autograd_node,
        "model": _classes(record).get("", ""),
        "lines_off": record.lines_off,
    }


def modules_of(record: CaptureRecord) -> list[str | None]:
    """The path of each autograd node's module; a leaf without one gets the longest known path its name begins with."""
    shortened = {path: ".".join(path.split(".")[:DEEPEST]) for path in {node.module for node in record.autograd_nodes}}
    paths = [shortened[node.module] for node in record.autograd_nodes]
    known = {part for path in shortened.values() if path for part in _prefixes(path)}
    return [
        path if path or node.leaf is None or node.module_class else _owner(record.leaves[node.leaf].names[0], known)
        for node, path in zip(record.autograd_nodes, paths, strict=True)
    ]


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _owner(name: str, known: set[str]) -> str | None:
    parts = name.split(".")[: DEEPEST + 1]
    return next((path for end in range(len(parts) - 1, 0, -1) if (path := ".".join(parts[:end])) in known), None)


def _classes(record: CaptureRecord) -> dict[str, str]:
    """The class of each module by its path."""
    return {node.module: node.module_class for node in record.autograd_nodes}


def _parameter(record: CaptureRecord, node: AutogradNode) -> str | None:
    return None if node.leaf is None else record.leaves[node.leaf].label


def _places(record: CaptureRecord) -> dict[int, int]:
    """Where each autograd node stands in the columns, by its number."""
    return {node.number: place for place, node in enumerate(record.autograd_nodes)}


def _edges(record: CaptureRecord) -> dict[str, Column | Differences]:
    """One edge for each pair of nodes that are joined, whatever the number of gradients between them."""
    places = _places(record)
    pairs = dict.fromkeys(
        (place, target)
        for place, node in enumerate(record.autograd_nodes)
        for edge in node.edges
        if (target := places.get(edge.target)) is not None and target != place
    )
    return {"edge_from": growing([a for a, _ in pairs]), "edge_to": growing([b for _, b in pairs])}


Packed = tuple[dict[str, Column | Differences], dict[str, Sequence[object]]]


def _leaves(record: CaptureRecord, parameters: Table) -> Packed:
    places, dtypes, shapes = _places(record), Table(), Table()
    columns: dict[str, Column | Differences] = {
        "leaf_name": parameters.of(leaf.label for leaf in record.leaves),
        "leaf_node": growing([_one_based(places, leaf.autograd_node) for leaf in record.leaves]),
        "leaf_shape": shapes.of(leaf.shape for leaf in record.leaves),
        "leaf_dtype": dtypes.of(_short(leaf.dtype) for leaf in record.leaves),
        "leaf_output": smallest([0 if leaf.output is None else leaf.output + 1 for leaf in record.leaves]),
    }
    return columns, {"leaf_shapes": shapes.values, "leaf_dtypes": dtypes.values}


def _one_based(places: Mapping[int, int], number: int | None) -> int:
    return 0 if number is None or number not in places else places[number] + 1


def _short(dtype: str) -> str:
    return dtype.removeprefix("torch.")


def _hooks(record: CaptureRecord, _: Table) -> Packed:
    hooks = list(chain.from_iterable(node.hooks for node in record.autograd_nodes))
    kinds, names, places = Table(), Table(), Table()
    columns: dict[str, Column | Differences] = {
        "hook_at": offsets(node.hooks for node in record.autograd_nodes),
        "hook_kind": kinds.of(hook.kind for hook in hooks),
        "hook_name": names.of(hook.name for hook in hooks),
        "hook_place": places.optional(hook.where for hook in hooks),
    }
    return columns, {"hook_kinds": kinds.values, "hook_names": names.values, "hook_places": places.values}


def _lifted(record: CaptureRecord, _: Table) -> Packed:
    uses = list(chain.from_iterable(node.lifted for node in record.autograd_nodes))
    meanings = Table()
    columns: dict[str, Column | Differences] = {
        "lifted_at": offsets(node.lifted for node in record.autograd_nodes),
        "lifted_size": growing([use.size for use in uses]),
        "lifted_meaning": meanings.of(use.meaning for use in uses),
        "lifted_value": np.asarray([use.value for use in uses], "<f8"),
    }
    return columns, {"lifted_meanings": meanings.values}


def _baked(record: CaptureRecord, _: Table) -> Packed:
    constants = list(chain.from_iterable(node.baked for node in record.autograd_nodes))
    attributes, values, meanings = Table(), Table(), Table()
    columns: dict[str, Column | Differences] = {
        "baked_at": offsets(node.baked for node in record.autograd_nodes),
        "baked_attribute": attributes.of(constant.attribute for constant in constants),
        "baked_value": values.of(constant.value for constant in constants),
        "baked_meaning": meanings.of(constant.meaning for constant in constants),
    }
    tables = {"baked_attributes": attributes.values, "baked_values": values.values, "baked_meanings": meanings.values}
    return columns, dict(tables)


def _forward(record: CaptureRecord, _: Table) -> Packed:
    """Where in the user's code, and in which call of its module, each node's forward op ran."""
    lines = Table()
    nodes = record.autograd_nodes
    columns: dict[str, Column | Differences] = {
        "line": lines.optional(node.line for node in nodes),
        "visit": smallest([node.visit for node in nodes]),
    }
    return columns, {"lines": [[file_and_line(str(line)), str(line), line.text] for line in lines.values]}


def _gradients(record: CaptureRecord, _: Table) -> Packed:
    specs = Table()
    columns: dict[str, Column | Differences] = {}
    for side in ("in", "out"):
        lists = [getattr(node, f"gradients_{side}") for node in record.autograd_nodes]
        columns[f"{side}_at"] = offsets(lists)
        columns[f"{side}_spec"] = specs.optional(chain.from_iterable(lists))
    return columns, {"specs": [[spec.shape, _short(spec.dtype)] for spec in specs.values]}


def _saved(record: CaptureRecord, _: Table) -> Packed:
    """What each node holds. A storage is numbered from 1; 0 is one of which nothing is known."""
    saved = list(chain.from_iterable(node.saved for node in record.autograd_nodes))
    places, fields, shapes, dtypes, names = _places(record), Table(), Table(), Table(), Table()
    columns: dict[str, Column | Differences] = {
        "saved_at": offsets(node.saved for node in record.autograd_nodes),
        "saved_field": fields.of(one.field for one in saved),
        "saved_shape": shapes.of(one.shape for one in saved),
        "saved_dtype": dtypes.of(f"{_short(one.dtype)} {one.device}".strip() for one in saved),
        "saved_bytes": np.asarray([one.bytes if one.storage is None else one.storage_bytes for one in saved], "<f8"),
        "saved_storage": growing([0 if one.storage is None else one.storage + 1 for one in saved]),
        "saved_of": names.optional(" = ".join(one.names or one.view_of) for one in saved),
        "saved_shared": smallest([bool(one.names or one.view_of) for one in saved]),
        "saved_packed": smallest([one.packed for one in saved]),
        "saved_by": growing([_one_based(places, one.made_by) for one in saved]),
    }
    texts = {"fields": fields.values, "shapes": shapes.values, "dtypes": dtypes.values, "names": names.values}
    return columns, {f"saved_{name}": values for name, values in texts.items()}


# -------------------------------------------------------------------------------------------------------------- touches


def pack_touches(record: CaptureRecord, capture: int = 0) -> bytes:
    """Who read which metadata, and when."""
    places, attributes, wheres, at = _places(record), Table(), Table(), Table()
    graph_nodes = record.graph_nodes
    columns: dict[str, Column | Differences] = {
        "touch_phase": smallest([PHASES.index(touch.phase) for touch in record.touches]),
        "touch_node": growing([_one_based(places, touch.autograd_node) for touch in record.touches]),
        "touch_attribute": attributes.of(touch.attribute for touch in record.touches),
        "touch_by": smallest([TOUCHERS.index(touch.by) for touch in record.touches]),
        "touch_place": wheres.of(touch.where for touch in record.touches),
        "touch_count": smallest([min(touch.count, 2**32 - 1) for touch in record.touches]),
        "touch_at": at.optional(None if t.node is None else graph_nodes[t.node].name for t in record.touches),
    }
    tables = {
        "phases": PHASES,
        "touchers": TOUCHERS,
        "attributes": attributes.values,
        "touch_places": wheres.values,
        "touched_nodes": at.values,
    }
    return joined({"capture": capture, "watched": record.watched}, tables, columns)


# --------------------------------------------------------------------------------------------------------------- parity


def pack_parity(
    record: CaptureRecord, comparison: Comparison | None, capture: int = 0, divergence: Divergence | None = None
) -> bytes:
    """Gradients held against a reference, each with its leaf's node; no bytes where nothing was compared.

    Args:
        record: the capture.
        comparison: what its gradients came to.
        capture: its place in the session.
        divergence: how far each node is off, where that was looked for.
    """
    if comparison is None:
        return b""
    rows, places = comparison.rows, _places(record)
    node_of = {leaf.label: leaf.autograd_node for leaf in record.leaves}
    names, shapes, dtypes, notes = Table(), Table(), Table(), Table()
    columns: dict[str, Column | Differences] = {
        "row_name": names.of(row.name for row in rows),
        "row_node": growing([_one_based(places, node_of.get(row.name)) for row in rows]),
        "row_verdict": smallest([SEVERITY.index(row.verdict) for row in rows]),
        "row_abs": _errors(row.max_abs_err for row in rows),
        "row_rel": _errors(row.max_rel_err for row in rows),
        "row_shape": shapes.of(row.shape for row in rows),
        "row_dtype": dtypes.of(_short(row.dtype) for row in rows),
        "row_elements": np.asarray([row.elements for row in rows], "<f8"),
        "row_mismatched": np.asarray([row.mismatched for row in rows], "<f8"),
        "row_note": notes.optional(row.note for row in rows),
    }
    if divergence is not None:
        pairs = [divergence.errors.get(node.number, (None, None)) for node in record.autograd_nodes]
        columns |= {"node_into": _errors(pair[0] for pair in pairs), "node_out": _errors(pair[1] for pair in pairs)}
    facts = {
        "capture": capture,
        "first": None if divergence is None else divergence.first,
        "summary": parity.summary(comparison),
        "ok": parity.ok(comparison),
        "reference": comparison.reference,
        "candidate": comparison.candidate,
        "tolerances": comparison.tolerances,
        "notes": comparison.notes,
    }
    tables: dict[str, Sequence[object]] = {
        "verdicts": SEVERITY,
        "good": sorted(GOOD),
        "row_names": names.values,
        "row_shapes": shapes.values,
        "row_dtypes": dtypes.values,
        "row_notes": notes.values,
    }
    return joined(facts, tables, columns)


def _errors(values: Iterable[float | None]) -> Column:
    return np.asarray([np.nan if value is None else value for value in values], "<f8")


# ----------------------------------------------------------------------------------------------------------------- code


def pack_code(record: CaptureRecord, capture: int = 0) -> bytes:
    """The graph's code without its plumbing: a statement in a line, the autograd node of each, and what each reads."""
    shown = [node for node in record.graph_nodes if node.kind not in PLUMBING]
    line_of = {node.ordinal: line for line, node in enumerate(shown)}
    places, kinds = _places(record), Table()
    reads = [_reads(record, node.inputs, line_of) for node in shown]
    text = "\n".join(_one_line(f"{node.name} = {node.target}{node.arguments}") for node in shown)
    columns: dict[str, Column | Differences] = {
        "line_node": growing([_one_based(places, node.autograd_node) for node in shown]),
        "line_kind": kinds.of(node.kind for node in shown),
        "reads_at": offsets(reads),
        "reads": growing(list(chain.from_iterable(reads))),
        "text": np.frombuffer(text.encode("utf-8", "replace"), "u1"),
    }
    return joined({"capture": capture, "lines": len(shown)}, {"line_kinds": kinds.values}, columns)


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")


def _reads(record: CaptureRecord, ordinals: Sequence[int], line_of: Mapping[int, int]) -> list[int]:
    """The lines that a node reads, past the plumbing that hands their results on."""
    found: dict[int, None] = {}
    todo = list(reversed(ordinals))
    while todo:
        ordinal = todo.pop()
        if ordinal in line_of:
            found[line_of[ordinal]] = None
        elif record.graph_nodes[ordinal].kind == "getitem":
            todo.extend(reversed(record.graph_nodes[ordinal].inputs))
    return list(found)
