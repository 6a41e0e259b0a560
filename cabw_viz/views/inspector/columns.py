"""Packs a capture's graph and its code. See `packing` for the format.

A capture comes in parts, so that nothing is sent twice: the graph; its touches, parity and times, which are computed
later or never (`findings`); its code, which outweighs the rest, and that of the lowered graph, each fetched when it is
first shown. The levels `fx` and `aten` of the picture are drawn from the code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import get_args

import numpy as np

from cabw_viz.analysis.drawing import call_title, file_and_line, problem_of
from cabw_viz.analysis.folding import Structure
from cabw_viz.analysis.module_tree import Group, ModuleTree, module_tree
from cabw_viz.record.coverage import coverage_text
from cabw_viz.record.kinds import PLUMBING, AutogradKind
from cabw_viz.record.model import AutogradNode, CaptureRecord, GraphNode
from cabw_viz.record.results import NO_RESULTS, Results
from cabw_viz.record.source_line import SourceLine
from cabw_viz.record.wording import run_words
from cabw_viz.views.inspector.packing import (
    Column,
    Differences,
    Table,
    growing,
    joined,
    offsets,
    one_based,
    places_of,
    short,
    smallest,
)
from cabw_viz.views.inspector.sources import MOST, around

KINDS = get_args(AutogradKind)

Packed = tuple[dict[str, Column | Differences], dict[str, Sequence[object]]]
"""Columns, and the tables of the texts whose numbers they hold."""


def pack_graph(
    record: CaptureRecord,
    results: Results = NO_RESULTS,
    capture: int = 0,
    files: Mapping[str, str] | None = None,
) -> bytes:
    """The autograd nodes of a capture, the gradients between them, and what each node carries.

    Args:
        record: the capture.
        results: what was computed of it.
        capture: its place in the session, by which the other parts are known to belong to it.
        files: where to read the code of a name that is no file's, such as a notebook cell's.
    """
    nodes = record.autograd_nodes
    names, parameters, places = Table(), Table(), places_of(record)
    (groups, group_texts), model = _groups(record)
    columns: dict[str, Column | Differences] = {
        "id": growing([node.number for node in nodes]),
        "name": names.of(node.name for node in nodes),
        "kind": smallest([KINDS.index(node.kind) for node in nodes]),
        "within": smallest([bool(node.module or node.module_class) for node in nodes]),
        "parameter": parameters.optional(_parameter(record, node) for node in nodes),
        "graph_nodes": smallest([len(node.graph_nodes) for node in nodes]),
        **_edges(record, places),
        **groups,
    }
    tables: dict[str, Sequence[object]] = {"kinds": KINDS, "names": names.values, **group_texts}
    lines, texts = _forward(record, files or {})
    columns |= lines
    tables |= texts
    for pack in (_leaves, _hooks, _lifted, _baked, _gradients, _saved):
        more, texts = pack(record, parameters, places)
        columns |= more
        tables |= texts
    tables |= {"parameters": parameters.values}
    return joined(_facts(record, results, capture, model), tables, columns)


def _facts(record: CaptureRecord, results: Results, capture: int, model: str) -> dict[str, object]:
    failure = record.failure
    return {
        "capture": capture,
        "title": call_title(record),
        "where": file_and_line(record.call.where),
        "way": run_words(record.run).way,
        "torch": record.torch_version,
        "seconds": record.seconds,
        "traced": record.is_traced,
        "graph_nodes": len(record.graph_nodes),
        "plumbing": sum(node.kind in PLUMBING for node in record.graph_nodes),
        "inputs": len(record.inputs),
        "sizes": len(record.sizes),
        "lowered": len(results.lowered),
        "failure": problem_of(record),
        "failed_at": None if failure is None else failure.autograd_node,
        "model": model,
        "lines_off": record.lines_off,
        "coverage": coverage_text(record, "no part of this graph"),
    }


def _groups(record: CaptureRecord) -> tuple[Packed, str]:
    """The tree of modules, a row for each group, with the row of each node's innermost group; and the subject's class.

    Modules of parameters alone are left out where the forward ran outside of the block: no node was made in a module
    around them, and their boxes would pull apart what belongs together.
    """
    tree = module_tree(record)
    row_of, groups = {tree.root: 0}, [tree.root]
    parameters_alone = _parameters_alone(tree)
    for group in tree.groups[1:]:
        if group not in parameters_alone and group.parent in row_of:
            row_of[group] = len(groups)
            groups.append(group)
    home = dict.fromkeys(tree.root.nodes, 0)
    for row, group in enumerate(groups):  # inner groups come after those around them
        home.update(dict.fromkeys(group.nodes, row))
    structure = Structure(tree)
    stacks = {group: blocks for group in groups if (blocks := structure.odd_blocks(group)) is not None}
    odd = set(chain.from_iterable(stacks.values()))
    names, classes = Table(), Table()
    columns: dict[str, Column | Differences] = {
        "group": smallest([home[node.number] for node in record.autograd_nodes]),
        "group_parent": growing([0 if group.parent is None else row_of[group.parent] for group in groups]),
        "group_name": names.of(group.path[-1] if group.path else "" for group in groups),
        "group_class": classes.of(group.cls for group in groups),
        "group_suffix": smallest([group.suffix for group in groups]),
        "group_part": smallest([group.part for group in groups]),
        "group_parts": smallest([group.parts for group in groups]),
        "group_stack": smallest([group in stacks for group in groups]),
        "group_odd": smallest([group in odd for group in groups]),
    }
    return (columns, {"group_names": names.values, "group_classes": classes.values}), tree.root.cls


def _parameters_alone(tree: ModuleTree) -> set[Group]:
    """The outermost modules of which nothing ran, where the subject itself made no node either."""
    if any(node.module_class and not node.module for node in tree.record.autograd_nodes if node.leaf is None):
        return set()
    return {group for group in tree.root.modules if tree.accumulations.issuperset(group.nodes)}


def _parameter(record: CaptureRecord, node: AutogradNode) -> str | None:
    return None if node.leaf is None else record.leaves[node.leaf].label


def _edges(record: CaptureRecord, places: Mapping[int, int]) -> dict[str, Column | Differences]:
    """One edge for each pair of nodes that are joined, whatever the number of gradients between them."""
    ends = [
        (place, target)
        for place, node in enumerate(record.autograd_nodes)
        for edge in node.edges
        if (target := places.get(edge.target)) is not None and target != place
    ]
    pairs = np.asarray(ends, "<i8").reshape(-1, 2)
    _, first = np.unique(pairs[:, 0] * len(record.autograd_nodes) + pairs[:, 1], return_index=True)
    pairs = pairs[np.sort(first)]
    return {"edge_from": growing(pairs[:, 0]), "edge_to": growing(pairs[:, 1])}


def _leaves(record: CaptureRecord, parameters: Table, places: Mapping[int, int]) -> Packed:
    dtypes, shapes = Table(), Table()
    columns: dict[str, Column | Differences] = {
        "leaf_name": parameters.of(leaf.label for leaf in record.leaves),
        "leaf_node": growing([one_based(places, leaf.autograd_node) for leaf in record.leaves]),
        "leaf_shape": shapes.of(leaf.shape for leaf in record.leaves),
        "leaf_dtype": dtypes.of(short(leaf.dtype) for leaf in record.leaves),
        "leaf_output": smallest([0 if leaf.output is None else leaf.output + 1 for leaf in record.leaves]),
    }
    return columns, {"leaf_shapes": shapes.values, "leaf_dtypes": dtypes.values}


def _hooks(record: CaptureRecord, _: Table, __: Mapping[int, int]) -> Packed:
    hooks = list(chain.from_iterable(node.hooks for node in record.autograd_nodes))
    kinds, names, places = Table(), Table(), Table()
    columns: dict[str, Column | Differences] = {
        "hook_at": offsets(node.hooks for node in record.autograd_nodes),
        "hook_kind": kinds.of(hook.kind for hook in hooks),
        "hook_name": names.of(hook.name for hook in hooks),
        "hook_place": places.optional(hook.where for hook in hooks),
    }
    return columns, {"hook_kinds": kinds.values, "hook_names": names.values, "hook_places": places.values}


def _lifted(record: CaptureRecord, _: Table, __: Mapping[int, int]) -> Packed:
    uses = list(chain.from_iterable(node.lifted for node in record.autograd_nodes))
    meanings = Table()
    columns: dict[str, Column | Differences] = {
        "lifted_at": offsets(node.lifted for node in record.autograd_nodes),
        "lifted_size": growing([use.size for use in uses]),
        "lifted_meaning": meanings.of(use.meaning for use in uses),
        "lifted_value": np.asarray([use.value for use in uses], "<f8"),
    }
    return columns, {"lifted_meanings": meanings.values}


def _baked(record: CaptureRecord, _: Table, __: Mapping[int, int]) -> Packed:
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


def _forward(record: CaptureRecord, files: Mapping[str, str]) -> Packed:
    """Where in the user's code, and in which call of its module, each node's forward op ran."""
    lines, makers = Table(), Table()
    nodes = record.autograd_nodes
    columns: dict[str, Column | Differences] = {
        "line": lines.optional(node.line for node in nodes),
        "visit": smallest([node.visit for node in nodes]),
        "backward_of": makers.optional(node.backward_of for node in nodes),
    }
    texts = [_line(line, files if row < MOST else None) for row, line in enumerate(lines.values)]
    return columns, {"lines": texts, "makers": makers.values}


def _line(line: SourceLine, files: Mapping[str, str] | None) -> list[object]:
    """`[file:line, path:line, text]`, and where the file is there the number of the first line around it and those."""
    excerpt = None if files is None else around(line, files)
    return [file_and_line(str(line)), str(line), line.text, *(excerpt or ())]


def _gradients(record: CaptureRecord, _: Table, __: Mapping[int, int]) -> Packed:
    specs = Table()
    columns: dict[str, Column | Differences] = {}
    for side in ("in", "out"):
        lists = [getattr(node, f"gradients_{side}") for node in record.autograd_nodes]
        columns[f"{side}_at"] = offsets(lists)
        # As tuples, for the hash of a dataclass is computed in Python.
        columns[f"{side}_spec"] = specs.optional([spec and (spec.shape, spec.dtype) for each in lists for spec in each])
    return columns, {"specs": [[shape, short(dtype)] for shape, dtype in specs.values]}


def _saved(record: CaptureRecord, _: Table, places: Mapping[int, int]) -> Packed:
    """What each node holds. A storage is numbered from 1; 0 is one of which nothing is known."""
    saved = list(chain.from_iterable(node.saved for node in record.autograd_nodes))
    fields, shapes, dtypes, names = Table(), Table(), Table(), Table()
    columns: dict[str, Column | Differences] = {
        "saved_at": offsets(node.saved for node in record.autograd_nodes),
        "saved_field": fields.of(one.field for one in saved),
        "saved_shape": shapes.of(one.shape for one in saved),
        "saved_dtype": dtypes.of(f"{short(one.dtype)} {one.device}".strip() for one in saved),
        "saved_bytes": np.asarray([one.bytes if one.storage is None else one.storage_bytes for one in saved], "<f8"),
        "saved_storage": growing([0 if one.storage is None else one.storage + 1 for one in saved]),
        "saved_of": names.optional(" = ".join(one.names or one.view_of) for one in saved),
        "saved_shared": smallest([bool(one.names or one.view_of) for one in saved]),
        "saved_packed": smallest([one.packed for one in saved]),
        "saved_by": growing([one_based(places, one.made_by) for one in saved]),
    }
    texts = {"fields": fields.values, "shapes": shapes.values, "dtypes": dtypes.values, "names": names.values}
    return columns, {f"saved_{name}": values for name, values in texts.items()}


# ----------------------------------------------------------------------------------------------------------------- code


def pack_code(record: CaptureRecord, capture: int = 0) -> bytes:
    """The graph's code without its plumbing: a statement in a line, the autograd node of each, and what each reads."""
    return _code(record, record.graph_nodes, capture)


def pack_lowered(record: CaptureRecord, results: Results, capture: int = 0) -> bytes:
    """The same of the lowered graph; no bytes where it was not lowered."""
    return _code(record, results.lowered, capture) if results.lowered else b""


def _code(record: CaptureRecord, graph: Sequence[GraphNode], capture: int) -> bytes:
    shown = [node for node in graph if node.kind not in PLUMBING]
    places, kinds = places_of(record), Table()
    reads, begin = _reads(graph)
    text = "\n".join(_one_line(f"{node.name} = {node.target}{node.arguments}") for node in shown)
    columns: dict[str, Column | Differences] = {
        "ordinal": growing([node.ordinal for node in shown]),
        "line_node": growing([one_based(places, node.autograd_node) for node in shown]),
        "line_kind": kinds.of(node.kind for node in shown),
        "reads_at": growing(begin),
        "reads": growing(reads),
        "text": np.frombuffer(text.encode("utf-8", "replace"), "u1"),
    }
    return joined({"capture": capture, "lines": len(shown)}, {"line_kinds": kinds.values}, columns)


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ") if "\n" in text or "\r" in text else text


def _reads(graph: Sequence[GraphNode]) -> tuple[list[int], list[int]]:
    """The lines that the shown nodes read, past the plumbing that hands their results on; and where each node's begin.

    No list for each node: a hundred thousand of them would have the garbage collector look at the whole record.
    """
    line_of: dict[int, int] = {}
    handed: dict[int, tuple[int, ...]] = {}
    reads, begin = list[int](), [0]
    for node in graph:  # what a node reads stands before it
        lines: list[int] = []
        for ordinal in node.inputs:
            if ordinal in line_of:
                lines.append(line_of[ordinal])
            else:
                lines += handed.get(ordinal, ())
        if node.kind not in PLUMBING:
            line_of[node.ordinal] = len(line_of)
            reads += lines if len(lines) < 2 else dict.fromkeys(lines)
            begin.append(len(reads))
        elif node.kind == "getitem":
            handed[node.ordinal] = tuple(lines)
    return reads, begin
