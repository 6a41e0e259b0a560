"""What is known of a captured backward, as plain data.

Nothing here holds a tensor, an autograd node or an address. Everything that points at something else does so
by number: an autograd node by its NodeCall number, a graph node by its ordinal (its place in the graph as
compiled autograd hands it to a compiler). The same program gives equal records; only times are left out of
the comparison.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from cabw_viz.record.inner_backward import InnerBackward
from cabw_viz.record.kinds import AutogradKind, GraphKind, HookKind, Outcome, Phase, Toucher
from cabw_viz.record.missing import MissingGradient
from cabw_viz.record.source_line import SourceLine

_PASTED = re.compile(r"aot\d+_(?:\d+_)?(\w+)")
"""Number of the compiled region, how often it was pasted before, and the name of the node there."""


@dataclass(frozen=True)
class Hook:
    """A hook on an autograd node or on the tensor whose gradient enters it."""

    kind: HookKind
    name: str
    """Qualified name of the Python function; `<C++>` where there is none."""
    where: str = ""
    """`file:line` of the function's definition; empty where there is none."""
    graph_node: int | None = None
    """Ordinal of the graph node that calls it; None where the graph was not finished."""
    input: int | None = None
    """For a hook on a tensor: which of the gradients that enter the autograd node it sees; None for other hooks."""
    framework: str = ""
    """The training framework that it belongs to (`FSDP`): no replay runs it. Empty for the user's own."""


@dataclass(frozen=True)
class Edge:
    """Gradient `output` of an autograd node goes into gradient `input` of the autograd node `target`."""

    output: int
    target: int
    input: int


@dataclass(frozen=True)
class GradientSpec:
    """What the forward op left of a gradient's metadata, for the engine to check the gradient against."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that an autograd node keeps for its backward."""

    field: str
    """As autograd calls it: `self`, `result`, `indices[1]`, `saved_tensors[0]`; the attribute of a Function's `ctx`."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    device: str = ""
    bytes: int = 0
    """Of its elements."""
    storage: int | None = None
    """Number of its storage in this record, in order of first appearance; tensors with the same number share memory.
    None where it has none of its own to speak of (a tensor packed by a hook, a layout without storage)."""
    storage_bytes: int = 0
    """What the storage takes; more than `bytes` where the tensor is a part of it."""
    names: tuple[str, ...] = ()
    """All its names, where it is a parameter, a buffer or a leaf."""
    view_of: tuple[str, ...] = ()
    """Where it is a part or another view of a parameter or buffer (a transposed weight): the names of that."""
    made_by: int | None = None
    """Number of the autograd node whose forward op made it; None where that is not part of this backward."""
    input: int | None = None
    """Index into `CaptureRecord.inputs`, where the graph lifts it."""
    packed: bool = False
    """Whether a hook of the user's has packed it: nothing else is known then, for only that hook could tell."""
    aot_node: str = ""
    """For a compiled region: its name in the region's backward graph (`primals_1`, `sin`)."""


@dataclass(frozen=True)
class AutogradNode:
    """One NodeCall of the backward."""

    number: int
    """NodeCall number; GraphRoot is 0."""
    name: str
    """As autograd calls it, without its namespace: `AddmmBackward0`."""
    kind: AutogradKind
    inputs: int
    """How many gradients flow in (the forward op's outputs)."""
    outputs: int
    """How many gradients flow out (the forward op's inputs), those that go nowhere included."""
    edges: tuple[Edge, ...] = ()
    leaf: int | None = None
    """For an accumulate node: index into `CaptureRecord.leaves`."""
    hooks: tuple[Hook, ...] = ()
    graph_nodes: tuple[int, ...] = ()
    """Ordinals of the graph nodes made for it, ascending."""
    lifted: tuple[LiftedUse, ...] = ()
    baked: tuple[Baked, ...] = ()
    module: str = ""
    """Path of the module in whose forward it was made: `layers.3.mlp`; the leaf's own module for an accumulation.
    `(Linear)` where the subject does not know the module, `layers.3.(Linear)` where one that it knows called it.
    Empty for the subject itself, and outside of any module: then `module_class` is empty too."""
    module_class: str = ""
    visit: int = 0
    """Which call of the module, counted from 0 among those that this backward goes back through."""
    line: SourceLine | None = None
    """The line of the user's that ran the forward op; None where that is not known."""
    saved: tuple[SavedTensor, ...] = ()
    gradients_in: tuple[GradientSpec | None, ...] = ()
    """The gradients that flow in; None where the forward op left no such output."""
    gradients_out: tuple[GradientSpec | None, ...] = ()
    """The gradients that flow out, as the nodes that they go to expect them; None for one that goes nowhere."""
    aot_graph: int | None = None
    """For the backward of a compiled region: which one, as in the names of its graph nodes (`aot0_mm`)."""
    framework: str = ""
    """For a Function of a training framework that no replay runs: the framework's name; its gradients pass on."""
    order: int | None = None
    """Place in the order in which the nodes of this backward were made; None for an accumulation."""
    backward_of: str = ""
    """For a node that a backward with `create_graph=True` has made: the name of the autograd node whose formula made
    it, and to whose module it belongs. Empty for what a forward has made."""


@dataclass(frozen=True)
class GraphNode:
    """One node of the captured FX graph."""

    ordinal: int
    name: str
    op: str
    """FX opcode: placeholder, call_function, get_attr, call_module, output."""
    target: str
    """What is called, as text: `ops.AddmmBackward0`, `torch.add`, `aten.mul.Tensor`, `getitem`."""
    arguments: str
    """Rendered arguments, other nodes by name: `([getitem_5], getitem_2, 1, torch.strided)`."""
    kind: GraphKind
    inputs: tuple[int, ...] = ()
    """Ordinals of the graph nodes it reads, in order of first mention."""
    users: tuple[int, ...] = ()
    """Ordinals of the graph nodes that read it, ascending."""
    autograd_node: int | None = None
    """Number of the autograd node during whose call it was made. A gradient sum is made during the call of the
    node that brings the last summand. None for placeholders, lifted values and the output."""

    @property
    def aot_node(self) -> str:
        """For what is pasted in from the backward of a compiled region: its name in that graph; empty for the rest."""
        match = _PASTED.match(self.name)
        return match[1] if match else ""


@dataclass(frozen=True)
class LiftedInput:
    """A tensor that the graph takes as an input: a saved tensor, a leaf, a gradient of a root, an old `.grad`."""

    index: int
    """Index into the graph's `inputs`."""
    graph_node: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    layout: str
    names: tuple[str, ...] = ()
    """All its names: the subject's, or a leaf's made-up one; empty where it has none."""
    view_of: tuple[str, ...] = ()
    """Where it is a view of a named tensor (a transposed weight): the names of that."""
    autograd_node: int | None = None
    """Number of the autograd node that lifted it first; None where that is not known."""


@dataclass(frozen=True)
class LiftedSize:
    """An integer that the graph takes as a symbolic input."""

    index: int
    """Index into the graph's `sizes`."""
    graph_node: int
    value: int
    """Its value in the captured call."""
    autograd_node: int | None = None
    """Number of the autograd node that lifted it; None where that is not known."""


@dataclass(frozen=True)
class Leaf:
    """A tensor whose gradient the backward computes: an accumulated leaf, or an input of `torch.autograd.grad`."""

    names: tuple[str, ...]
    """All its names, at least one: the subject's, or a made-up one such as `param_0 (8, 4)`."""
    shape: tuple[int, ...]
    dtype: str
    autograd_node: int | None
    """Its accumulate node; for a non-leaf, the node that its gradient enters; None where it is not part of the call."""
    input: int = 0
    """Which of that node's gradients it is."""
    output: int | None = None
    """Index into what `torch.autograd.grad` returns; None where accumulated into `.grad`."""

    @property
    def label(self) -> str:
        """All names in one text: `wte.weight = lm_head.weight`."""
        return " = ".join(self.names)


@dataclass(frozen=True)
class Touch:
    """Reads of one piece of metadata by one line of code, or one op that it ran on a tensor."""

    phase: Phase
    attribute: str
    """`size`, `stride`, `storage_offset`, `numel`, `dim`, `dtype`, `device`, `layout`, `contiguity`; `data` for a read
    of values (`.item()`, `nonzero`); an op by its name (`aten.clone.default`); in the graph_pass phase the key that
    was looked up (`val`, `example_value`, `tensor_meta`)."""
    autograd_node: int | None
    """Number of the autograd node in whose call it happened."""
    node: int | None
    """Ordinal of the graph node whose output was read (initial_trace, graph_pass) or that did the reading
    (execution); None where that is not known."""
    by: Toucher
    where: str
    """`file:line` of whoever it was; `C++` where no Python line can be named."""
    count: int = 1


@dataclass(frozen=True)
class LiftedUse:
    """A symbolic input of the graph that an autograd node uses: changing it needs no new capture."""

    size: int
    """Index into the graph's `sizes`."""
    meaning: str
    """Of which tensor and dimension: `self_sym_sizes[0]`, `gradient 1, dimension 0`."""
    value: int
    """Its value in the captured call."""


@dataclass(frozen=True)
class Baked:
    """Metadata that stands in the graph as a constant of an autograd node: changing it needs a new capture."""

    attribute: str
    """`device`, `dtype`, `layout`, `memory_format`, `size`, `stride`, `storage_offset`, `dim`, `scalar`, `flag`; and
    `other` for a number of which nothing more is known."""
    value: str
    """As text: `cpu`, `torch.float32`, `2.0`, `[0, 1]`."""
    meaning: str
    """Where it stands: the saved field (`exponent`) where that is known, otherwise `argument 3 of PowBackward0`."""


@dataclass(frozen=True)
class BackwardCall:
    """How the user called the backward."""

    index: int | None
    """Which of the block's own backward calls, from 0; None for those that were never up for capture (nested ones,
    other threads')."""
    function: str
    """`backward` (accumulates) or `grad` (returns)."""
    where: str
    """`file:line` of the user's frame that made the call."""
    roots: int = 1
    retain_graph: bool = False
    create_graph: bool = False


@dataclass(frozen=True)
class Failure:
    """What stopped a trace."""

    type: str
    """Class of the exception: `NotImplementedError`."""
    message: str
    """The cause in one line: in plain words where it is a known one, else what PyTorch says."""
    autograd_node: int | None = None
    """Number of the autograd node in whose call it was raised; None where it was raised outside of one."""
    name: str = ""
    """Name of that node."""
    module: str = ""
    """Path of the module that made that node; see `AutogradNode`."""
    line: SourceLine | None = None
    """The line of the user's that made it; None where that is not known."""
    try_: str = ""
    """A way out; empty where none is known."""
    details: str = ""
    """All that the exception says, with frames of C++."""

    @property
    def cause(self) -> str:
        """Where it stopped and why, in one sentence."""
        at = "" if self.autograd_node is None else f" at {self.name} (#{self.autograd_node})"
        module = f" in {self.module}" if self.module else ""
        line = "" if self.line is None else f" at {_name_of_file(str(self.line))}"
        origin = f", made{module}{line}" if module or line else ""
        return f"{self.type}{at}{origin}: {self.message}"

    def __str__(self) -> str:
        return f"{self.cause}; try: {self.try_}" if self.try_ else self.cause


def _name_of_file(where: str) -> str:
    return where.replace("\\", "/").rpartition("/")[2]


@dataclass(frozen=True)
class CaptureRecord:
    """One initial trace: the autograd nodes of the call and the graph that was made of them."""

    call: BackwardCall
    torch_version: str
    run: str
    """How the call itself ran: `eager`, `compiled` (ours), or `user` (their compiler was in charge)."""
    autograd_nodes: tuple[AutogradNode, ...]
    graph_nodes: tuple[GraphNode, ...] = ()
    inputs: tuple[LiftedInput, ...] = ()
    sizes: tuple[LiftedSize, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    watched: tuple[Phase, ...] = ()
    """The phases of the capture in which reads were watched: that there is no touch means something only there."""
    touches: tuple[Touch, ...] = ()
    """The metadata reads before the graph ran, in order of first reading."""
    outer: tuple[int, int | None] | None = None
    """Of a call that was made inside another captured one: the index of that capture, and the number of its autograd
    node in which the call was made, None where that is not known. None for any other call."""
    inner_backwards: tuple[InnerBackward, ...] = ()
    """In the user's own run, as far as they accumulate into a `.grad`."""
    other_gradients: tuple[str, ...] = ()
    """Labels of the subject's tensors whose `.grad` was set in that run by something else."""
    parameters: int | None = None
    """How many parameters the subject has; None where the block got no subject."""
    missing: tuple[MissingGradient, ...] = ()
    """The parameters of the subject that the call's graph does not reach, in the order of the subject."""
    lines_off: str = ""
    """Why no forward lines were noted in the block; empty where they were."""
    is_traced: bool = True
    """Whether compiled autograd traced the call. False under `trace=False`: there is no graph then, nor what is read
    of one (inputs, sizes, touches, lifted and baked metadata)."""
    failure: Failure | None = None
    """What stopped the trace; the rest of the record is then what was known until that moment."""
    seconds: float = field(default=0.0, compare=False)
    """Wall time that the capture took, the user's own run not included."""

    @cached_property
    def frameworks(self) -> tuple[str, ...]:
        """Training frameworks whose hooks and Functions stand in the backward, and are left out of replays."""
        return tuple(sorted(set(self.framework_calls)))

    @cached_property
    def framework_calls(self) -> tuple[str, ...]:
        """The framework of each of these hooks and Functions."""
        hooks = [hook.framework for node in self.autograd_nodes for hook in node.hooks]
        return tuple(name for name in (*hooks, *(node.framework for node in self.autograd_nodes)) if name)

    @cached_property
    def by_number(self) -> dict[int, AutogradNode]:
        """Autograd nodes by NodeCall number."""
        return {node.number: node for node in self.autograd_nodes}

    def label(self, node: AutogradNode) -> str:
        """The node's name as people read it; an accumulate node carries its leaf's names."""
        return node.name if node.leaf is None else f"{node.name} {self.leaves[node.leaf].label}"

    def input_label(self, row: LiftedInput) -> str:
        """What to call a lifted input in a message."""
        if row.names:
            return f"{' = '.join(row.names)} {row.shape}"
        if row.view_of:
            return f"{' = '.join(row.view_of)} (seen through inputs[{row.index}], a view {row.shape} of it)"
        node = self.by_number.get(row.autograd_node) if row.autograd_node is not None else None
        if node is None:
            return f"inputs[{row.index}] {row.shape}"
        how = "given to" if node.kind == "graph_root" else "saved by"  # the gradient that the call begins with
        return f"inputs[{row.index}] {row.shape}, {how} {node.name} (#{node.number})"

    def is_only_accumulated(self, row: LiftedInput) -> bool:
        """Whether nothing uses an input but accumulations: as the leaf, or as its `.grad` from before."""
        users = self.graph_nodes[row.graph_node].users
        return all(self.graph_nodes[user].kind == "accumulate_grad" for user in users)


@dataclass(frozen=True)
class Event:
    """What became of one backward call in a session."""

    call: BackwardCall
    outcome: Outcome
    reason: str = ""
    """Why it was captured (again), bypassed or failed; and what it raised, where the user's own run raised."""
    capture: int | None = None
    """Index of the capture that was made, or that the call hit in the cache."""
    seconds: float = field(default=0.0, compare=False)
    """Wall time that the session spent on it, the user's own run not included."""
