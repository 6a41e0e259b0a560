"""The drawing with a box for each autograd node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from cabw_viz.analysis.drawing import Arrow, Box, BoxKind, Cluster, Drawing, call_title, local_name, problem_of
from cabw_viz.analysis.flow import (
    AFTER,
    BEFORE,
    ON_TENSORS,
    Entering,
    Source,
    hooked_input,
    hooks_of,
    incoming,
    reached,
    returned_leaves,
)
from cabw_viz.analysis.recapture import baked_text, lifted_text
from cabw_viz.record.model import AutogradNode, CaptureRecord, Hook, Leaf
from cabw_viz.record.untraced import graph_words
from cabw_viz.record.wording import counted


@dataclass(frozen=True)
class _Start:
    """Where an arrow will start whose end is not drawn yet."""

    box: str
    tooltip: str = ""


@dataclass
class _Sketch:
    """A drawing in the making."""

    record: CaptureRecord
    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    clusters: list[Cluster] = field(default_factory=list)

    def through(self, starts: list[_Start], box: Box) -> list[_Start]:
        """Lead the gradients into a box; its gradient goes on from there."""
        self.boxes.append(box)
        self.lead(starts, box.id)
        return [_Start(box.id)]

    def lead(self, starts: list[_Start], target: str, label: str = "") -> None:
        """Draw the arrows from where the gradients are into a box."""
        self.arrows += [Arrow(start.box, target, label, start.tooltip) for start in starts]


def draw_autograd(record: CaptureRecord) -> Drawing:
    """Draw every autograd node, with the gradient sums and the hooks between them."""
    sketch, entering = _Sketch(record), incoming(record)
    returned = returned_leaves(record)
    for node in record.autograd_nodes:
        _draw_node(sketch, node, entering.get(node.number, {}), returned.get(node.number, []))
    return Drawing(
        "autograd",
        call_title(record),
        _facts(record, sketch),
        tuple(sketch.boxes),
        tuple(sketch.arrows),
        tuple(sketch.clusters),
        problem_of(record),
    )


def node_tooltip(record: CaptureRecord, node: AutogradNode) -> str:
    """All that the record says of an autograd node in a few words."""
    parts = [
        f"{record.label(node)} #{node.number}, {node.kind}",
        f"{counted(node.inputs, 'gradient')} in, {node.outputs} out",
    ]
    parts += [counted(len(node.graph_nodes), "graph node")] if record.is_traced else []
    parts += [f"lifted: {text}" for text in [lifted_text(node)] if text]
    parts += [f"baked: {text}" for text in [baked_text(node)] if text]
    if record.failure is not None and record.failure.autograd_node == node.number:
        parts.append(problem_of(record))
    return "; ".join(parts)


def autograd_box(record: CaptureRecord, node: AutogradNode, returned: Sequence[Leaf] = ()) -> Box:
    """The box of an autograd node; that of an accumulation is headed by the names of its leaf.

    Args:
        record: The capture.
        node: The node to draw.
        returned: The leaves whose gradients the call returns as they enter the node.
    """
    own = [record.leaves[node.leaf]] if node.leaf is not None else []
    if node.kind == "accumulate_grad" and returned:
        own = list(returned)  # stands for the box of the node, which does not run
    kind: BoxKind = "returned" if any(leaf.output is not None for leaf in own) else node.kind
    stopped = record.failure is not None and record.failure.autograd_node == node.number
    return Box(
        f"n{node.number}",
        kind,
        own[0].label if own else node.name,
        _details(record, node, own),
        node.number,
        tooltip=node_tooltip(record, node),
        state="failed" if stopped else _state(record, node),
        nodes=(node.number,),
        line=node.line,
    )


def _state(record: CaptureRecord, node: AutogradNode) -> Literal["", "unreached"]:
    return "" if reached(record, node) else "unreached"


def _details(record: CaptureRecord, node: AutogradNode, own: Sequence[Leaf]) -> tuple[str, ...]:
    lines = [f"returned as result {leaf.output}" for leaf in own if leaf.output is not None]
    if node.kind == "aot_backward":
        lines.append(region_words(record, node))
    if record.failure is not None and record.failure.autograd_node == node.number:
        lines.append(f"stopped here: {record.failure.type}")
    return tuple(lines)


def region_words(record: CaptureRecord, node: AutogradNode) -> str:
    """What is known of a compiled region: the operations of its backward that were pasted into the graph for it."""
    if not record.is_traced:
        return "a compiled region"
    pasted = sum(record.graph_nodes[ordinal].kind == "aot_op" for ordinal in node.graph_nodes)
    return counted(pasted, "op") + " of a compiled region"


def _draw_node(sketch: _Sketch, node: AutogradNode, entering: Entering, returned: list[Leaf]) -> None:
    """Draw a node from where its gradients come from to where its own can be fetched."""
    fed = {index: _summed(sketch, node, index, sources) for index, sources in entering.items()}
    whole = _tensor_hooks(sketch, node, entering, fed)
    if node.kind != "accumulate_grad":
        for leaf in returned:  # the engine takes them between the hooks on tensors and the others
            sketch.through(fed.get(leaf.input, []), _returned_box(sketch.record, node, leaf))
    pre_hooks = whole + [(place, hook) for place, hook in hooks_of(node, BEFORE) if hook.kind not in ON_TENSORS]
    if pre_hooks:
        starts = [start for starts in fed.values() for start in starts]
        for place, hook in pre_hooks:
            starts = sketch.through(starts, _hook_box(sketch.record, node, place, hook))
        fed = {0: starts}
    starts = _draw_body(sketch, autograd_box(sketch.record, node, returned), node, fed)
    for place, hook in hooks_of(node, AFTER):
        starts = sketch.through(starts, _hook_box(sketch.record, node, place, hook))


def _summed(sketch: _Sketch, node: AutogradNode, index: int, sources: list[Source]) -> list[_Start]:
    producers = [sketch.record.by_number[source.number] for source in sources]
    starts = [
        _Start(_exit(producer), route(sketch.record, producer, source.output, node, index))
        for producer, source in zip(producers, sources, strict=True)
    ]
    if len(starts) == 1:
        return starts
    box = Box(
        f"n{node.number}_sum_{index}",
        "gradient_sum",
        "+",
        tooltip=f"the sum of {len(starts)} gradients, input {index} of {sketch.record.label(node)} #{node.number}",
        state=_state(sketch.record, node),
    )
    return sketch.through(starts, box)


def route(record: CaptureRecord, producer: AutogradNode, output: int, node: AutogradNode, index: int) -> str:
    """A gradient's way in words."""
    return (
        f"output {output} of {producer.name} #{producer.number} to input {index} of {record.label(node)} #{node.number}"
    )


def _exit(node: AutogradNode) -> str:
    """The box at which a node's gradients can be fetched: the last hook after it, or the end of the node itself."""
    hooks = hooks_of(node, AFTER)
    if hooks:
        return f"n{node.number}_hook_{hooks[-1][0]}"
    return f"n{node.number}_epilogue" if node.kind == "copy_slices" else f"n{node.number}"


def _tensor_hooks(
    sketch: _Sketch, node: AutogradNode, entering: Entering, fed: dict[int, list[_Start]]
) -> list[tuple[int, Hook]]:
    """Draw the hooks on tensors, each on its input; give back those of which the input is not known."""
    unknown = []
    for place, hook in hooks_of(node, BEFORE):
        if hook.kind not in ON_TENSORS:
            continue
        index = hooked_input(sketch.record, node, hook, entering)
        if index is None:
            unknown.append((place, hook))
        else:
            fed[index] = sketch.through(fed[index], _hook_box(sketch.record, node, place, hook))
    return unknown


def _hook_box(record: CaptureRecord, node: AutogradNode, place: int, hook: Hook) -> Box:
    at = f" at {hook.where}" if hook.where else ""
    return Box(
        f"n{node.number}_hook_{place}",
        "hook",
        local_name(hook.name),
        (hook.kind,),
        tooltip=f"{hook.kind} {hook.name}{at}, on {record.label(node)} #{node.number}",
        state=_state(record, node),
    )


def _draw_body(sketch: _Sketch, box: Box, node: AutogradNode, fed: dict[int, list[_Start]]) -> list[_Start]:
    """Draw the node itself and what enters it; give back where its gradients leave it."""
    if node.kind == "copy_slices":
        return _draw_copy_slices(sketch, node, box, [start for starts in fed.values() for start in starts])
    sketch.boxes.append(box)
    for index, starts in fed.items():
        sketch.lead(starts, box.id, f"input {index}" if len(fed) > 1 else "")
    for place, hook in hooks_of(node, ("unpack_hook",)):
        unpack = _hook_box(sketch.record, node, place, hook)
        sketch.boxes.append(unpack)
        sketch.arrows.append(Arrow(unpack.id, box.id, tooltip="a saved tensor", faint=True))
    return [_Start(box.id)]


def _draw_copy_slices(sketch: _Sketch, node: AutogradNode, box: Box, starts: list[_Start]) -> list[_Start]:
    """A frame with what becomes of the view's gradient inside, and the rest of the base's beside it."""
    frame = f"cluster_n{node.number}"
    sketch.clusters.append(Cluster(frame, "copy_slices", node.name, node.number))

    def part(suffix: str, title: str, tooltip: str) -> Box:
        return Box(box.id + suffix, "copy_slices", title, cluster=frame, tooltip=tooltip, state=box.state)

    prologue = part("_prologue", "prologue", "splits the view's part off the gradient of the base")
    epilogue = part("_epilogue", "epilogue", "puts the view's part back into the gradient of the base")
    inner = replace(box, title=inner_function(sketch.record, node), cluster=frame)
    starts = sketch.through(sketch.through(starts, prologue), inner)
    return sketch.through([*starts, _Start(prologue.id, "the gradient of the base")], epilogue)


def inner_function(record: CaptureRecord, node: AutogradNode) -> str:
    """Name of the function that CopySlices wraps, as far as the trace got to it."""
    for ordinal in node.graph_nodes:
        if record.graph_nodes[ordinal].kind == "backward_call":
            return short_target(record.graph_nodes[ordinal].target)
    return "function"


def short_target(target: str) -> str:
    """A call's target without its namespace: `CopyBackwards` of `torch::autograd::CopyBackwards`."""
    return target.rpartition("::")[2].removeprefix("ops.")


def _returned_box(record: CaptureRecord, node: AutogradNode, leaf: Leaf) -> Box:
    return Box(
        f"returned_{leaf.output}",
        "returned",
        leaf.label,
        (f"returned as result {leaf.output}",),
        tooltip=f"the gradient of {leaf.label}, as it enters {node.name} #{node.number}",
        state=_state(record, node),
    )


def _facts(record: CaptureRecord, sketch: _Sketch) -> tuple[str, ...]:
    sums = sum(box.kind == "gradient_sum" for box in sketch.boxes)
    hooks = sum(len(node.hooks) for node in record.autograd_nodes)
    unreached = sum(not reached(record, node) for node in record.autograd_nodes)
    facts = [counted(len(record.autograd_nodes), "autograd node"), graph_words(record)]
    facts += [counted(sums, "gradient sum")] if sums else []
    facts += [counted(hooks, "hook")] if hooks else []
    facts += [f"{unreached:,} not reached"] if unreached else []
    return tuple(facts)
