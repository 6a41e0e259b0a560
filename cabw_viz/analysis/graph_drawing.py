"""The drawings with a box for each node of the captured graph, or of the graph of aten ops that it was lowered to."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace

from cabw_viz.analysis.autograd_drawing import autograd_box, inner_function, short_target
from cabw_viz.analysis.drawing import Arrow, Box, BoxKind, Cluster, Drawing, call_title, local_name, problem_of
from cabw_viz.analysis.flow import incoming
from cabw_viz.errors import CabwError
from cabw_viz.record.kinds import PLUMBING, GraphKind
from cabw_viz.record.model import AutogradNode, CaptureRecord, GraphNode, LiftedInput
from cabw_viz.record.options import Level
from cabw_viz.record.wording import counted

BOX_KIND_OF: dict[GraphKind, BoxKind] = {
    "aot_op": "aot_backward",
    "copy_slices_prologue": "copy_slices",
    "copy_slices_epilogue": "copy_slices",
    "validate_outputs": "validate_outputs",
    "gradient_sum": "gradient_sum",
    "hook": "hook",
    "unpack_hook": "hook",
    "accumulate_grad": "accumulate_grad",
    "other": "other",
}
"""How graph nodes are drawn; a backward call is drawn as its autograd node, the rest as plumbing."""

SHOWN_INPUTS = 3
"""So many lifted inputs are named in the box that reads them; of the others the number is given."""

FRAMED = 3
"""An autograd node that became so many visible graph nodes gets a frame around them."""


def draw_graph(
    record: CaptureRecord, *, plumbing: bool = False, only: frozenset[int] | None = None, level: Level = "fx"
) -> Drawing:
    """Draw the captured graph.

    Args:
        record: The capture to draw.
        plumbing: Draw the nodes that only carry values too. Otherwise arrows lead through them, and lifted
            inputs are named in the boxes that read them.
        only: The autograd nodes whose graph nodes are drawn; None for all.
        level: What the drawing is called.
    """
    nodes = [
        node
        for node in record.graph_nodes
        if (plumbing or node.kind not in PLUMBING) and (only is None or node.autograd_node in only)
    ]
    frames = _frames(record, nodes)
    lifted = {} if plumbing else _lifted_texts(record)
    origins = _origins(record, {node.ordinal for node in nodes})
    boxes = [_box(record, node, _named_inputs(node, lifted), frames) for node in nodes]
    arrows = [arrow for node in nodes for arrow in _arrows(record, node, origins)]
    arrows += _orders(record, {arrow.target for arrow in arrows})
    if not plumbing:
        _add_returned(record, origins, boxes, arrows, alone=only is None)
    _add_failed(record, nodes, boxes, arrows)
    facts = _facts(record, len(nodes), "aten node" if level == "aten" else "graph node")
    clusters = tuple(frames.values())
    return Drawing(level, call_title(record), facts, tuple(boxes), tuple(arrows), clusters, problem_of(record))


def as_lowered(record: CaptureRecord, lowered: tuple[GraphNode, ...]) -> CaptureRecord:
    """The record with the lowered graph in the place of the captured one.

    Raises:
        CabwError: The capture has not been lowered.
    """
    if not lowered:
        raise CabwError("this capture has no graph of aten ops yet", try_="cap.lower() first, or %cabw lower")
    made: dict[int | None, list[int]] = defaultdict(list)
    for node in lowered:
        made[node.autograd_node].append(node.ordinal)
    takes = {node.name: node.ordinal for node in lowered if node.op == "placeholder"}
    inputs = [replace(lifted, graph_node=takes.get(f"inputs_{lifted.index}", -1)) for lifted in record.inputs]
    # All gradients are returned: those that are accumulated in the order in which that happens, then the others.
    order = sorted(record.leaves, key=lambda leaf: (leaf.output is not None, leaf.output or leaf.autograd_node or 0))
    known = [leaf for leaf in order if leaf.autograd_node is not None]
    return replace(
        record,
        graph_nodes=lowered,
        autograd_nodes=tuple(
            replace(node, graph_nodes=tuple(made[node.number]), hooks=()) for node in record.autograd_nodes
        ),
        inputs=tuple(inputs),
        leaves=tuple(replace(leaf, output=place) for place, leaf in enumerate(known)),
    )


def _origins(record: CaptureRecord, visible: set[int]) -> list[int | None]:
    """For each graph node the visible one from which its value comes; None for a value from outside the graph."""
    origins: list[int | None] = []
    for node in record.graph_nodes:
        if node.ordinal in visible:
            origins.append(node.ordinal)
        elif node.kind == "getitem" and node.inputs and node.inputs[0] < node.ordinal:
            origins.append(origins[node.inputs[0]])
        else:
            origins.append(None)
    return origins


def border_values(record: CaptureRecord, drawing: Drawing) -> list[tuple[str, int, bool]]:
    """The values that cross the border of a part that was drawn.

    Returns:
        (box in the part, number of the autograd node beyond it, whether the value flows into the part), for each.
    """
    drawn = {box.id for box in drawing.boxes}
    visible = {row.ordinal for row in record.graph_nodes if row.kind not in PLUMBING or f"g{row.ordinal}" in drawn}
    origins, values = _origins(record, visible), []
    for node in record.graph_nodes:
        if node.ordinal not in visible:
            continue
        for ordinal in node.inputs:
            origin = origins[ordinal]
            if origin is None or (f"g{origin}" in drawn) == (f"g{node.ordinal}" in drawn):
                continue
            entering = f"g{node.ordinal}" in drawn
            inside, outside = (node.ordinal, origin) if entering else (origin, node.ordinal)
            number = record.graph_nodes[outside].autograd_node
            if number is not None:
                values.append((f"g{inside}", number, entering))
    return values


def _lifted_texts(record: CaptureRecord) -> dict[int, str]:
    """What to call each lifted tensor, by the graph node that takes it in."""
    return {lifted.graph_node: f"{_name(lifted)} {lifted.shape}" for lifted in record.inputs}


def _name(lifted: LiftedInput) -> str:
    if lifted.names:
        return " = ".join(lifted.names)
    return f"view of {' = '.join(lifted.view_of)}" if lifted.view_of else f"inputs[{lifted.index}]"


def _named_inputs(node: GraphNode, lifted: dict[int, str]) -> tuple[str, ...]:
    names = [lifted[ordinal] for ordinal in node.inputs if ordinal in lifted]
    more = len(names) - SHOWN_INPUTS
    return tuple(names) if more <= 0 else (*names[:SHOWN_INPUTS], f"and {counted(more, 'more input')}")


def _frames(record: CaptureRecord, nodes: list[GraphNode]) -> dict[int, Cluster]:
    """Frames around the autograd nodes that became several visible graph nodes, by their number."""
    sizes = Counter(node.autograd_node for node in nodes if _in_frame(node))
    return {
        node.number: Cluster(f"cluster_n{node.number}", node.kind, record.label(node), node.number)
        for node in record.autograd_nodes
        if sizes[node.number] >= FRAMED
    }


def _in_frame(node: GraphNode) -> bool:
    """Whether a graph node belongs inside the frame of its autograd node; a sum lies between several."""
    return node.kind != "gradient_sum" and node.kind not in PLUMBING


def _box(record: CaptureRecord, node: GraphNode, named: tuple[str, ...], frames: dict[int, Cluster]) -> Box:
    owner = None if node.autograd_node is None else record.by_number.get(node.autograd_node)
    frame = frames.get(owner.number) if owner is not None and _in_frame(node) else None
    title, details = _words(record, node, owner, named)
    own = owner is not None and node.kind in {"backward_call", "accumulate_grad", "aot_op", "aten_op"}
    return Box(
        f"g{node.ordinal}",
        _box_kind(node, owner),
        title,
        details,
        None if owner is None or frame is not None or node.kind == "gradient_sum" else owner.number,
        None if frame is None else frame.id,
        f"{node.name} = {node.target}{node.arguments}" if node.op != "placeholder" else node.name,
        nodes=(owner.number,) if owner is not None and own else (),
        line=owner.line if owner is not None and own else None,
    )


def _box_kind(node: GraphNode, owner: AutogradNode | None) -> BoxKind:
    """A call of a node is drawn as that node; GraphRoot calls nothing, but the check of the roots' gradients is its."""
    if owner is not None and (node.kind in {"backward_call", "aten_op"} or owner.kind == "graph_root"):
        return owner.kind
    return BOX_KIND_OF.get(node.kind, "plumbing")


def _words(
    record: CaptureRecord, node: GraphNode, owner: AutogradNode | None, named: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    """Title and smaller lines of a graph node."""
    if node.kind == "gradient_sum":
        return "+", ()
    if node.kind == "accumulate_grad" and owner is not None and owner.leaf is not None:
        leaf = record.leaves[owner.leaf]
        return leaf.label, tuple(text for text in named if not text.startswith(leaf.label))  # an old .grad stays
    if node.kind in {"hook", "unpack_hook"} and owner is not None:
        hook = next((hook for hook in owner.hooks if hook.graph_node == node.ordinal), None)
        return (node.target, ()) if hook is None else (local_name(hook.name), (hook.kind,))
    if node.kind == "backward_call" and owner is not None:
        return (inner_function(record, owner) if owner.kind == "copy_slices" else owner.name), named
    if node.kind in PLUMBING:
        return node.name, ()
    return short_target(node.target).removeprefix("aten.").removesuffix(".default"), named


def _arrows(record: CaptureRecord, node: GraphNode, origins: list[int | None]) -> list[Arrow]:
    """The arrows into a graph node, one from each box; into a sum, one for each summand."""
    carried: dict[int, list[GraphNode]] = defaultdict(list)
    for ordinal in node.inputs:
        origin = origins[ordinal]
        if origin is not None:
            carried[origin].append(record.graph_nodes[ordinal])
    arrows = []
    for origin, values in carried.items():
        groups = [[value] for value in values] if node.kind == "gradient_sum" else [values]
        for group in groups:
            tooltip = f"{', '.join(value.name for value in group)} to {node.name}"
            faint = record.graph_nodes[origin].kind == "unpack_hook"  # a saved tensor, not a gradient
            arrows.append(Arrow(f"g{origin}", f"g{node.ordinal}", tooltip=tooltip, faint=faint))
    return arrows


def _orders(record: CaptureRecord, reached: set[str]) -> list[Arrow]:
    """Faint arrows to the post-accumulate hooks, which read the leaf and nothing that the graph computes."""
    arrows = []
    for node in record.autograd_nodes:
        calls = [ordinal for ordinal in node.graph_nodes if record.graph_nodes[ordinal].kind == "accumulate_grad"]
        for hook in node.hooks if calls else ():
            target = f"g{hook.graph_node}"
            if hook.kind == "post_acc_grad_hook" and hook.graph_node is not None and target not in reached:
                arrows.append(Arrow(f"g{calls[0]}", target, tooltip="runs after it", faint=True))
    return arrows


def _returned_values(record: CaptureRecord) -> dict[int, int]:
    """Ordinals of the graph nodes whose values the graph returns, by their place among the results."""
    last = record.graph_nodes[-1] if record.graph_nodes else None
    if last is None or last.kind != "output":
        return {}
    by_name = {record.graph_nodes[ordinal].name: ordinal for ordinal in last.inputs}
    names = re.findall(r"[^\W\d]\w*", last.arguments)  # the results are names of graph nodes, or None
    return {place: by_name[name] for place, name in enumerate(names) if name in by_name}


def _add_returned(
    record: CaptureRecord, origins: list[int | None], boxes: list[Box], arrows: list[Arrow], *, alone: bool
) -> None:
    """A box for each gradient that the graph returns, in the place of the folded output node.

    `alone`: those too that no visible node has made.
    """
    names = {leaf.output: leaf.label for leaf in record.leaves}
    for place, ordinal in sorted(_returned_values(record).items()):
        if origins[ordinal] is None and not alone:
            continue
        title = names.get(place, record.graph_nodes[ordinal].name)
        boxes.append(Box(f"returned_{place}", "returned", title, (f"returned as result {place}",), tooltip=title))
        if origins[ordinal] is not None:
            arrows.append(Arrow(f"g{origins[ordinal]}", f"returned_{place}", tooltip=title))


def _add_failed(record: CaptureRecord, nodes: list[GraphNode], boxes: list[Box], arrows: list[Arrow]) -> None:
    """A box for the autograd node at which the trace stopped, after the boxes that its gradients come from."""
    number = None if record.failure is None else record.failure.autograd_node
    if number is None or number not in record.by_number:
        return
    boxes.append(autograd_box(record, record.by_number[number]))
    last = {node.autograd_node: node.ordinal for node in nodes}  # later ones overwrite: the last graph node of each
    sources = {s.number for sources in incoming(record).get(number, {}).values() for s in sources} | {number}
    arrows += [Arrow(f"g{last[s]}", f"n{number}", faint=True) for s in sorted(sources) if s in last]


def _facts(record: CaptureRecord, count: int, noun: str) -> tuple[str, ...]:
    total = len(record.graph_nodes)
    drawn = counted(total, noun) if count == total else f"{count:,} of {counted(total, noun)}"
    facts = [drawn, counted(len(record.autograd_nodes), "autograd node")]
    facts += [counted(len(record.inputs), "lifted input")] if record.inputs else []
    facts += [counted(len(record.sizes), "lifted size")] if record.sizes else []
    return tuple(facts)
