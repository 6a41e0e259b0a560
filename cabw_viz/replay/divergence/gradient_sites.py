"""Where in a captured graph the gradients stand that flow into and out of autograd nodes.

The graph knows neither edges nor gradients: it has calls, and what they are called with. For one autograd node:

    one or more gradients sent to it ── torch.add ── tensor hooks ── pre-hooks ── call ── validate_outputs ── post-hooks
    sent                                summed                       taken                made                sent on

Each of these stands in a graph node, known here by its name: nodes keep their names when the graph goes elsewhere.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.record.divergence import StepKind
from cabw_viz.record.kinds import HookKind
from cabw_viz.record.model import AutogradNode, CaptureRecord
from cabw_viz.runtime.gradient_snapshots import Gradient, GradientSnapshot, NodeGradients

UNSEEN = object()
"""In the place of a gradient of which nothing was seen."""

Place = tuple[int, int]
"""An autograd node's number, and which of its gradients."""


@dataclass(frozen=True)
class Step:
    """What makes gradients of gradients, by the names of the graph nodes in which they stand."""

    kind: StepKind
    number: int
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    input: int | None = None
    """For a sum: into which gradient of the node."""
    hooks: tuple[HookKind, ...] = ()
    """For hooks: of which kinds, in the order in which they run."""
    inputs: tuple[int, ...] = ()
    """For an autograd node that is called: which gradients it reads."""


@dataclass
class GradientSites:
    """The steps of a graph in the order in which it runs, and what eager's own run has to be called at each place."""

    steps: list[Step] = field(default_factory=list)
    names: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Graph node: (field of `NodeGradients`, autograd node, which gradient)."""
    taken: dict[str, tuple[tuple[int, int, str], ...]] = field(default_factory=dict)
    """Graph node that calls an autograd node: (node, which gradient, where it stands) of each that it takes."""
    sums: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Graph node that sums gradients of which eager's own run shows the parts alone: those."""

    def with_writes(self) -> GradientSites:
        """The same, with a step before each call in which somebody may write to what it takes.

        The place behind that step is not in the graph; it is what stands in a graph node when the call is made.
        """
        steps: list[Step] = []
        names = dict(self.names)
        for step in self.steps:
            then = [moment(step.number, i) for i in step.inputs]
            for i, before, later in zip(step.inputs, step.reads, then, strict=False):
                names[later] = "inputs", step.number, i
                steps.append(Step("in_place_write", step.number, (before,), (later,), i))
            steps.append(replace(step, reads=tuple(then)) if then else step)
        return replace(self, steps=steps, names=names)

    def kept(self, name: str, gradients: NodeGradients) -> tuple[GradientSnapshot | None, ...]:
        """What eager's own run had at a place, None for a gradient that did not flow; empty where nothing was seen.

        Of a sum that only hooks have seen, it is the sum of the parts, as far as these were kept in full.
        """
        if name in self.names:
            side, number, position = self.names[name]
            return tuple(getattr(gradients, side).get(number, ())[position : position + 1])
        parts = [part for term in self.sums.get(name, ()) for part in self.kept(term, gradients) or (UNSEEN,)]
        values = [part.value for part in parts if isinstance(part, Gradient)]
        if not values or len(values) != len([part for part in parts if part is not None]):
            return ()
        total = values[0]
        for value in values[1:]:
            total = total + value
        return (Gradient(total, None),)


def moment(number: int, position: int) -> str:
    """The name of the place at which an autograd node's call takes a gradient."""
    return f"taken by #{number}, input {position}"


_READ: WeakKeyDictionary[torch.fx.Graph, GradientSites] = WeakKeyDictionary()


def gradient_sites(record: CaptureRecord, graph: torch.fx.Graph) -> GradientSites:
    """Find the gradients in a captured graph; looked for once in each."""
    if graph not in _READ:
        _READ[graph] = _Reading(record, graph).read()
    return _READ[graph]


class _Reading:
    """One graph, read."""

    def __init__(self, record: CaptureRecord, graph: torch.fx.Graph) -> None:
        self.record, self.graph = record, graph
        self.rows = dict(zip(graph.nodes, record.graph_nodes, strict=True))
        self.order = {node.name: place for place, node in enumerate(graph.nodes)}
        self.found = GradientSites()
        self.sent: dict[Place, torch.fx.Node] = {}
        """(autograd node, output): where it stands, behind all hooks."""
        self.taken: dict[Place, torch.fx.Node] = {}
        """(autograd node, input): what its call is given."""
        self.calls: dict[int, torch.fx.Node] = {}

    def read(self) -> GradientSites:
        """Read it."""
        computing = [node for node, row in self.rows.items() if row.autograd_node is not None and row.kind != "getitem"]
        for node in computing:
            self._taken_by(node)
        self._returned()
        for node in computing:
            self._made_by(node)
        arrivals = {place: self._behind_hooks(place, node) for place, node in self.taken.items()}
        self._sent_unchecked(arrivals)
        for number in {number for number, _ in self.taken}:
            self._describe(self.record.by_number[number], arrivals)
        self.found.steps.sort(key=lambda step: min(self.order[name] for name in step.makes))
        return self.found

    # -- what each call is given, and what it makes --------------------------------------------------------------

    def _taken_by(self, node: torch.fx.Node) -> None:
        """Note the gradients that a graph node takes, if it is the call of an autograd node."""
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
            given = [(number, i, part.name) for i, part in enumerate(gradients) if isinstance(part, torch.fx.Node)]
            self.found.taken[node.name] = tuple(given)
            self.taken |= {(number, i): given for i, given in enumerate(gradients) if isinstance(given, torch.fx.Node)}

    def _returned(self) -> None:
        """Note the gradients that the graph returns: they enter nodes at which the engine stops."""
        (output,) = self.graph.find_nodes(op="output")
        returned = output.args[0] if isinstance(output.args[0], list | tuple) else ()
        for leaf in self.record.leaves:
            if leaf.output is None or leaf.autograd_node is None or leaf.output >= len(returned):
                continue
            given = returned[leaf.output]
            if isinstance(given, torch.fx.Node):
                self.taken.setdefault((leaf.autograd_node, leaf.input), given)

    def _made_by(self, node: torch.fx.Node) -> None:
        """Note the gradients that an autograd node makes, if this is where they are checked, and what hooks do then."""
        number = self.rows[node].autograd_node
        if number is None or self.rows[node].kind != "validate_outputs":
            return
        made = _items(node)
        last = made
        while (hook := self._post_hook(last.values(), number)) is not None:
            before, last = last, {**last, **_items(hook)}
            changed = {j: item for j, item in last.items() if before.get(j) is not item}
            self._step("hook", number, before.values(), changed.values(), hooks=("post_hook",))
        for j, item in made.items() if number else ():  # the engine's root has no hooks to see its gradients by
            self._stands(item, "outputs" if last[j] is item else "outputs_before_hooks", number, j)
        for j, item in last.items():
            self.sent[number, j] = item
            if made.get(j) is not item:
                self._stands(item, "outputs", number, j)
        self._node_step(number, made.values())

    def _post_hook(self, gradients: Iterable[torch.fx.Node], number: int) -> torch.fx.Node | None:
        """The post-hook of an autograd node that is called with these gradients."""
        for gradient in gradients:
            for user in gradient.users:
                if self.rows[user].kind == "hook" and self.rows[user].autograd_node == number:
                    given = torch_adapter.hook_input(user.args)
                    if torch_adapter.hook_type(user.target, user.kwargs) == "post_hook" and gradient in _flat(given):
                        return user
        return None

    def _node_step(self, number: int, made: Iterable[torch.fx.Node]) -> None:
        row = self.record.by_number[number]
        reads = {i: self.taken[number, i] for i in range(row.inputs) if (number, i) in self.taken}
        inputs = tuple(reads) if number in self.calls else ()
        self._step(row.kind, number, reads.values(), made, inputs=inputs)

    # -- hooks, and gradients that meet --------------------------------------------------------------------------

    def _behind_hooks(self, place: Place, taken: torch.fx.Node) -> torch.fx.Node:
        """Where a gradient stands before the hooks of the node that takes it, and note those as a step of their own."""
        number, i = place
        kinds: list[HookKind] = []
        node = taken
        while (hooked := self._hooked(node, number)) is not None:
            kind, node = hooked
            kinds.insert(0, kind)
            if kind == "pre_hook" and "tensor_pre_hook" not in kinds:
                self._stands(node, "inputs_before_hooks", number, i)
        if node is not taken:
            self._step("hook", number, [node], [taken], hooks=tuple(kinds))
        self._stands(taken, "inputs", number, i)
        return node

    def _hooked(self, node: torch.fx.Node, number: int) -> tuple[HookKind, torch.fx.Node] | None:
        """The kind of hook that a gradient comes from, and the gradient that the hook was given."""
        picked = node.args[1] if node.target is operator.getitem else None
        call = node.args[0] if picked is not None else node
        if not isinstance(call, torch.fx.Node) or self.rows[call].autograd_node != number:
            return None
        if self.rows[call].kind != "hook" or torch_adapter.hook_type(call.target, call.kwargs) == "post_hook":
            return None
        given = torch_adapter.hook_input(call.args)
        before = given[picked] if isinstance(given, list | tuple) and isinstance(picked, int) else given
        kind: HookKind = "pre_hook" if picked is not None else "tensor_pre_hook"
        return (kind, before) if isinstance(before, torch.fx.Node) else None

    def _terms(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """The gradients that are summed in a graph node; itself where it sums none."""
        if self.rows[node].kind != "gradient_sum":
            return [node]
        return [term for part in node.args[:2] if isinstance(part, torch.fx.Node) for term in self._terms(part)]

    def _sent_unchecked(self, arrivals: dict[Place, torch.fx.Node]) -> None:
        """Find what compiled regions send: the graph does not check it, so it is what nobody else has sent."""
        unchecked = {node.number for node in self.record.autograd_nodes if node.kind == "aot_backward"}
        for number in sorted(unchecked):
            made: dict[str, torch.fx.Node] = {}
            for edge in self.record.by_number[number].edges:
                arrived = arrivals.get((edge.target, edge.input))
                term = self._term_of(number, arrived) if arrived is not None else None
                if term is not None and (number, edge.output) not in self.sent:
                    self.sent[number, edge.output] = made[term.name] = term
                    self._stands(term, "outputs", number, edge.output)
            if made:
                self._node_step(number, made.values())

    def _term_of(self, number: int, arrived: torch.fx.Node) -> torch.fx.Node | None:
        terms = [term for term in self._terms(arrived) if term not in self.sent.values()]
        mine = [term for term in terms if self.rows[term].autograd_node == number] or terms
        return mine[0] if mine else None

    def _describe(self, row: AutogradNode, arrivals: dict[Place, torch.fx.Node]) -> None:
        """Note the sums before a node, and the accumulation that it is."""
        for place in self._places(row):
            arrived = arrivals.get(place)
            if arrived is None or self.rows[arrived].kind != "gradient_sum":
                continue
            terms = self._terms(arrived)
            self._step("gradient_sum", row.number, terms, [arrived], input=place[1])
            if arrived.name not in self.found.names:
                self.found.sums[arrived.name] = tuple(term.name for term in terms)
        if row.kind == "accumulate_grad" and row.number in self.calls:
            call = self.calls[row.number]
            self._node_step(row.number, [call])
            self._stands(call, "inputs", row.number, 0)

    # -- noting --------------------------------------------------------------------------------------------------

    @staticmethod
    def _places(row: AutogradNode) -> Iterator[Place]:
        yield from ((row.number, i) for i in range(row.inputs))

    def _stands(self, node: torch.fx.Node, side: str, number: int, position: int) -> None:
        self.found.names.setdefault(node.name, (side, number, position))

    def _step(
        self,
        kind: StepKind,
        number: int,
        reads: Iterable[torch.fx.Node],
        makes: Iterable[torch.fx.Node],
        *,
        input: int | None = None,  # noqa: A002  # the record's word
        hooks: tuple[HookKind, ...] = (),
        inputs: tuple[int, ...] = (),
    ) -> None:
        names = tuple(dict.fromkeys(node.name for node in makes))
        if names:
            self.found.steps.append(Step(kind, number, tuple(node.name for node in reads), names, input, hooks, inputs))


def _items(node: torch.fx.Node) -> dict[int, torch.fx.Node]:
    """The items that are picked from a graph node's result."""
    return {int(user.args[1]): user for user in node.users if user.target is operator.getitem}  # type: ignore[arg-type]  # an index


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
