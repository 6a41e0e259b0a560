"""Where in a captured graph the gradients are that flow into and out of autograd nodes.

The graph has neither edges nor gradients: it has calls, and their arguments. For one autograd node:

    one or more gradients sent to it ── torch.add ── tensor hooks ── pre-hooks ── call ── validate_outputs ── post-hooks
    sent                                summed                       call input           checked              sent on

Each of these is a result of a graph node, known here by its name: nodes keep their names when the graph is placed at
another target.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.record.divergence import StepKind
from cabw_viz.record.kinds import HookKind
from cabw_viz.record.model import AutogradNode, CaptureRecord
from cabw_viz.runtime.capture_state import Captured
from cabw_viz.runtime.gradient_snapshots import Gradient, GradientSnapshot, NodeGradients

UNSEEN = object()
"""In the place of a gradient of which the user's own run shows nothing."""

Port = tuple[int, int]
"""An autograd node's number, and which of its gradients."""


@dataclass(frozen=True)
class Step:
    """A step of the backward, its inputs and outputs by the names of their graph nodes.

    An autograd node, a sum of gradients at one of its inputs, a hook, or an in-place write to a pending gradient.
    """

    kind: StepKind
    number: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input: int | None = None
    """For a sum: into which gradient of the node."""
    hooks: tuple[HookKind, ...] = ()
    """For hooks: of which kinds, in the order in which they run."""
    positions: tuple[int, ...] = ()
    """For an autograd node that is called: which of its gradients `inputs` are."""


@dataclass
class GradientSites:
    """The steps of a graph in the order in which it runs, and what the user's own run had at each site."""

    gradients: NodeGradients
    steps: list[Step] = field(default_factory=list)
    names: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Graph node: (field of `NodeGradients`, autograd node, which gradient)."""
    call_inputs: dict[str, tuple[tuple[int, int, str], ...]] = field(default_factory=dict)
    """Graph node that calls an autograd node: (autograd node, which gradient, graph node) of each gradient it takes."""
    sums: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Graph node that sums gradients of which the user's own run shows the parts alone: those."""

    @cached_property
    def observed(self) -> frozenset[str]:
        """All sites: where the user's own run shows a gradient, and what steps take and make."""
        return frozenset(self.names) | {name for step in self.steps for name in (*step.inputs, *step.outputs)}

    @property
    def has_writes(self) -> bool:
        """Whether what a call takes is looked at again when the call is made."""
        return any(step.kind == "in_place_write" for step in self.steps)

    @property
    def reads_at_call(self) -> dict[str, list[tuple[str, str]]]:
        """Graph node that calls an autograd node: (name of the site, graph node) of each gradient that it takes.

        Empty where what a call takes is not looked at again.
        """
        if not self.has_writes:
            return {}
        return {
            call: [(call_input_name(number, position), name) for number, position, name in taken]
            for call, taken in self.call_inputs.items()
        }

    def with_writes(self) -> GradientSites:
        """The same, with a step before each call for the writes to what it takes.

        The output of that step is not in the graph; it is the graph node's result when the call is made.
        """
        steps: list[Step] = []
        names = dict(self.names)
        for step in self.steps:
            at_call = [call_input_name(step.number, i) for i in step.positions]
            for i, before, later in zip(step.positions, step.inputs, at_call, strict=False):
                names[later] = "inputs", step.number, i
                steps.append(Step("in_place_write", step.number, (before,), (later,), i))
            steps.append(replace(step, inputs=tuple(at_call)) if at_call else step)
        return replace(self, steps=steps, names=names)

    def snapshots(self, name: str) -> tuple[GradientSnapshot | None, ...]:
        """What the user's own run had at a site, None for a gradient that did not flow; empty where nothing was seen.

        Of a sum that only hooks have seen, it is the sum of the parts, as far as these were kept in full.
        """
        if name in self.names:
            side, number, position = self.names[name]
            return tuple(getattr(self.gradients, side).get(number, ())[position : position + 1])
        parts = [part for term in self.sums.get(name, ()) for part in self.snapshots(term) or (UNSEEN,)]
        values = [part.value for part in parts if isinstance(part, Gradient)]
        if not values or len(values) != len([part for part in parts if part is not None]):
            return ()
        total = values[0]
        for value in values[1:]:
            total = total + value
        return (Gradient(total, None),)


def call_input_name(number: int, position: int) -> str:
    """The name of the site at which an autograd node's call takes a gradient."""
    return f"taken by #{number}, input {position}"


def gradient_sites(captured: Captured, gradients: NodeGradients) -> GradientSites:
    """The sites of a capture's gradients; found once in each capture.

    Args:
        captured: one that can run.
        gradients: those of the user's own run.
    """
    derived = captured.state.derived
    if GradientSites not in derived:
        derived[GradientSites] = _SiteFinder(captured.record, captured.runnable().graph.graph, gradients).sites()
    sites: GradientSites = derived[GradientSites]
    return sites


class _SiteFinder:
    """Finds the sites in one graph."""

    def __init__(self, record: CaptureRecord, graph: torch.fx.Graph, gradients: NodeGradients) -> None:
        self.record, self.graph = record, graph
        self.rows = dict(zip(graph.nodes, record.graph_nodes, strict=True))
        self.order = {node.name: ordinal for ordinal, node in enumerate(graph.nodes)}
        self.result = GradientSites(gradients)
        self.sent: dict[Port, torch.fx.Node] = {}
        """(autograd node, output): the graph node, behind all hooks."""
        self.call_inputs: dict[Port, torch.fx.Node] = {}
        """(autograd node, input): the graph node that its call takes."""
        self.calls: dict[int, torch.fx.Node] = {}
        self.post_hooks: dict[int, list[torch.fx.Node]] = {}
        """By autograd node, in the order in which they run."""
        for node, row in self.rows.items():
            if row.kind == "hook" and torch_adapter.hook_type(node.target, node.kwargs) == "post_hook":
                self.post_hooks.setdefault(row.autograd_node or 0, []).append(node)

    def sites(self) -> GradientSites:
        """All sites of the graph."""
        computing = [node for node, row in self.rows.items() if row.autograd_node is not None and row.kind != "getitem"]
        for node in computing:
            self._add_call(node)
        self._add_returned()
        for node in computing:
            self._add_outputs(node)
        arrivals = {port: self._before_hooks(port, node) for port, node in self.call_inputs.items()}
        self._add_unchecked(arrivals)
        for number in {number for number, _ in self.call_inputs}:
            self._add_sums(self.record.by_number[number], arrivals)
        self.result.steps.sort(key=lambda step: min(self.order[name] for name in step.outputs))
        return self.result

    # -- what each call takes, and what it makes -----------------------------------------------------------------

    def _add_call(self, node: torch.fx.Node) -> None:
        """Add the gradients that a graph node takes, if it is the call of an autograd node."""
        row = self.rows[node]
        number = row.autograd_node
        if number is None or number in self.calls:
            return
        kind = self.record.by_number[number].kind
        gradients: Any = None
        if row.kind == "copy_slices_prologue" or (row.kind == "backward_call" and kind != "copy_slices"):
            gradients = torch_adapter.backward_gradients(node)
        elif row.kind == "accumulate_grad":
            gradients = [torch_adapter.accumulated_gradient(node.args)]
        elif torch_adapter.is_aot_prologue(node.target):  # the prologue of a compiled region's backward
            gradients = torch_adapter.aot_prologue_gradients(node.args)
        if isinstance(gradients, list | tuple):
            self.calls[number] = node
            inputs = _items_of(gradients)
            self.result.call_inputs[node.name] = tuple((number, i, each.name) for i, each in inputs.items())
            self.call_inputs |= {(number, i): each for i, each in inputs.items()}

    def _add_returned(self) -> None:
        """Add the gradients that the graph returns: they enter nodes at which the engine stops."""
        (output,) = self.graph.find_nodes(op="output")
        returned = output.args[0] if isinstance(output.args[0], list | tuple) else ()
        for leaf in self.record.leaves:
            if leaf.output is None or leaf.autograd_node is None or leaf.output >= len(returned):
                continue
            gradient = returned[leaf.output]
            if isinstance(gradient, torch.fx.Node):
                self.call_inputs.setdefault((leaf.autograd_node, leaf.input), gradient)

    def _add_outputs(self, node: torch.fx.Node) -> None:
        """Add the gradients that an autograd node makes, if this is where they are checked, and its post-hooks."""
        number = self.rows[node].autograd_node
        if number is None or self.rows[node].kind != "validate_outputs":
            return
        checked = _items(node)
        last: dict[int, torch.fx.Node | None] = {**checked}
        for hook in self.post_hooks.get(number, ()):
            before = _items_of(torch_adapter.hook_input(hook.args))
            # What the hook makes of a gradient that is not wanted is not in the graph: there it is seen before alone.
            last |= dict.fromkeys(before) | _items(hook)
            self._add_step("hook", number, before.values(), _items(hook).values(), hooks=("post_hook",))
        for j, item in checked.items() if number else ():  # the engine's root has no hooks to see its gradients by
            self._add_site(item, "outputs" if last[j] is item else "outputs_before_hooks", number, j)
        for j, behind in last.items():
            self.sent[number, j] = behind or checked.get(j, node)
            if behind is not None and checked.get(j) is not behind:
                self._add_site(behind, "outputs", number, j)
        self._add_node_step(number, checked.values())

    def _add_node_step(self, number: int, results: Iterable[torch.fx.Node]) -> None:
        row = self.record.by_number[number]
        sources = {i: self.call_inputs[number, i] for i in range(row.inputs) if (number, i) in self.call_inputs}
        positions = tuple(sources) if number in self.calls else ()
        self._add_step(row.kind, number, sources.values(), results, positions=positions)

    # -- hooks, and gradients that meet --------------------------------------------------------------------------

    def _before_hooks(self, port: Port, call_input: torch.fx.Node) -> torch.fx.Node:
        """The gradient before the hooks of the node that takes it; the hooks are added as a step of their own."""
        number, i = port
        kinds: list[HookKind] = []
        node = call_input
        for _ in self.order:  # there are no more hooks than graph nodes
            if (hook := self._pre_hook(node, number)) is None:
                break
            kind, node = hook
            kinds.insert(0, kind)
            if kind == "pre_hook" and "tensor_pre_hook" not in kinds:
                self._add_site(node, "inputs_before_hooks", number, i)
        if node is not call_input:
            self._add_step("hook", number, [node], [call_input], hooks=tuple(kinds))
        self._add_site(call_input, "inputs", number, i)
        return node

    def _pre_hook(self, node: torch.fx.Node, number: int) -> tuple[HookKind, torch.fx.Node] | None:
        """The kind of hook that a gradient comes from, and the gradient that the hook took."""
        picked = node.args[1] if node.target is operator.getitem else None
        call = node.args[0] if picked is not None else node
        if not isinstance(call, torch.fx.Node) or self.rows[call].autograd_node != number:
            return None
        if self.rows[call].kind != "hook" or torch_adapter.hook_type(call.target, call.kwargs) == "post_hook":
            return None
        gradients = torch_adapter.hook_input(call.args)
        before = gradients[picked] if isinstance(gradients, list | tuple) and isinstance(picked, int) else gradients
        kind: HookKind = "pre_hook" if picked is not None else "tensor_pre_hook"
        return (kind, before) if isinstance(before, torch.fx.Node) else None

    def _terms(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """The gradients that are summed in a graph node; itself where it sums none."""
        terms: list[torch.fx.Node] = []
        waiting = [node]  # no recursion: a weight that is used a thousand times has a thousand terms
        for _ in self.order:
            if not waiting:
                break
            part = waiting.pop()
            if self.rows[part].kind == "gradient_sum":
                waiting += [arg for arg in reversed(part.args[:2]) if isinstance(arg, torch.fx.Node)]
            else:
                terms.append(part)
        return terms

    def _add_unchecked(self, arrivals: dict[Port, torch.fx.Node]) -> None:
        """Add what compiled regions send: the graph does not check it, so it is what no other node has sent."""
        unchecked = {node.number for node in self.record.autograd_nodes if node.kind == "aot_backward"}
        for number in sorted(unchecked):
            outputs: dict[str, torch.fx.Node] = {}
            for edge in self.record.by_number[number].edges:
                arrived = arrivals.get((edge.target, edge.input))
                term = self._term_of(number, arrived) if arrived is not None else None
                if term is not None and (number, edge.output) not in self.sent:
                    self.sent[number, edge.output] = outputs[term.name] = term
                    self._add_site(term, "outputs", number, edge.output)
            if outputs:
                self._add_node_step(number, outputs.values())

    def _term_of(self, number: int, arrived: torch.fx.Node) -> torch.fx.Node | None:
        terms = [term for term in self._terms(arrived) if term not in self.sent.values()]
        mine = [term for term in terms if self.rows[term].autograd_node == number] or terms
        return mine[0] if mine else None

    def _add_sums(self, row: AutogradNode, arrivals: dict[Port, torch.fx.Node]) -> None:
        """Add the sums before a node, and the accumulation that it is."""
        for i in range(row.inputs):
            arrived = arrivals.get((row.number, i))
            if arrived is None or self.rows[arrived].kind != "gradient_sum":
                continue
            terms = self._terms(arrived)
            self._add_step("gradient_sum", row.number, terms, [arrived], input=i)
            if arrived.name not in self.result.names:
                self.result.sums[arrived.name] = tuple(term.name for term in terms)
        if row.kind == "accumulate_grad" and row.number in self.calls:
            call = self.calls[row.number]
            self._add_node_step(row.number, [call])
            self._add_site(call, "inputs", row.number, 0)

    # -- adding --------------------------------------------------------------------------------------------------

    def _add_site(self, node: torch.fx.Node, side: str, number: int, position: int) -> None:
        self.result.names.setdefault(node.name, (side, number, position))

    def _add_step(
        self,
        kind: StepKind,
        number: int,
        sources: Iterable[torch.fx.Node],
        results: Iterable[torch.fx.Node],
        *,
        input: int | None = None,  # noqa: A002  # the record's word
        hooks: tuple[HookKind, ...] = (),
        positions: tuple[int, ...] = (),
    ) -> None:
        names = tuple(dict.fromkeys(node.name for node in results))
        if names:
            inputs = tuple(node.name for node in sources)
            self.result.steps.append(Step(kind, number, inputs, names, input, hooks, positions))


def _items(node: torch.fx.Node) -> dict[int, torch.fx.Node]:
    """The items that are picked from a graph node's result."""
    return {int(user.args[1]): user for user in node.users if user.target is operator.getitem}  # type: ignore[arg-type]  # an index


def _items_of(gradients: Any) -> dict[int, torch.fx.Node]:
    """The graph nodes in a list of gradients, by position."""
    listed = gradients if isinstance(gradients, list | tuple) else (gradients,)
    return {i: each for i, each in enumerate(listed) if isinstance(each, torch.fx.Node)}
