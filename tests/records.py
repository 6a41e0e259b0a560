"""Records of backwards that were never run, for tests of what is drawn and printed from records.

`Backward` plays compiled autograd: it takes the autograd nodes, in NodeCall order, and lays out the graph
that the trace would make of them (read off real graphs of PyTorch 2.13).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cabw_viz.record.kinds import AutogradKind, GraphKind, HookKind
from cabw_viz.record.model import (
    AutogradNode,
    BackwardCall,
    CaptureRecord,
    Edge,
    Failure,
    GraphNode,
    Hook,
    Leaf,
    LiftedInput,
    LiftedSize,
)

CALL = BackwardCall(0, "backward", "/home/ada/train.py:12")


@dataclass
class Backward:
    """Autograd nodes to make a record of."""

    nodes: list[AutogradNode] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    saved: dict[int, list[tuple[tuple[str, ...], tuple[int, ...]]]] = field(default_factory=dict)
    aot_ops: int = 3

    def node(
        self,
        name: str,
        *edges: tuple[int, int, int],
        kind: AutogradKind = "builtin",
        inputs: int = 1,
        outputs: int | None = None,
        hooks: tuple[Hook, ...] = (),
        saves: tuple[tuple[int, ...], ...] = (),
    ) -> int:
        number = len(self.nodes)
        outputs = max([e[0] + 1 for e in edges], default=0) if outputs is None else outputs
        made = tuple(Edge(*edge) for edge in edges)
        self.nodes.append(AutogradNode(number, name, kind, inputs, outputs, made, hooks=hooks))
        self.saved[number] = [((), shape) for shape in saves]
        return number

    def leaf(self, *names: str, shape: tuple[int, ...] = (4, 8), hooks: tuple[Hook, ...] = ()) -> int:
        number = self.node("AccumulateGrad", kind="accumulate_grad", hooks=hooks)
        self.leaves.append(Leaf(names, shape, "float32", number))
        self.nodes[number] = replace(self.nodes[number], leaf=len(self.leaves) - 1)
        self.saved[number] = [(names, shape)]
        return number

    def record(self, call: BackwardCall = CALL) -> CaptureRecord:
        return _Tracer(self).record(call)


class _Tracer:
    def __init__(self, backward: Backward) -> None:
        self.backward = backward
        self.graph: list[GraphNode] = []
        self.inputs: list[LiftedInput] = []
        self.sizes: list[LiftedSize] = []
        self.arriving: dict[tuple[int, int], list[int]] = {}
        self.hooks_seen = 0
        self.names: dict[str, int] = {}

    def add(
        self, name: str, target: str, kind: GraphKind, inputs=(), arguments="", number=None, op="call_function"
    ) -> int:
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        ordinal = len(self.graph)
        arguments = arguments or "(" + ", ".join(self.graph[i].name for i in inputs) + ")"
        self.graph.append(
            GraphNode(
                ordinal, f"{name}_{count}" if count else name, op, target, arguments, kind, tuple(inputs), (), number
            )
        )
        return ordinal

    def getitem(self, source: int, index: int, kind: GraphKind = "getitem", number=None) -> int:
        return self.add("getitem", "getitem", kind, (source,), f"({self.graph[source].name}, {index})", number)

    def record(self, call: BackwardCall) -> CaptureRecord:
        for name in ("inputs", "sizes", "scalars", "hooks", "packed_data"):
            self.add(name, name, "placeholder", arguments="()", op="placeholder")
        lifted = self._lift()
        made = [self._call(node, lifted[node.number]) for node in self.backward.nodes]
        self.add("_exec_final_callbacks_stub", "_exec_final_callbacks_stub", "final_callbacks", arguments="()")
        self.add("output", "output", "output", arguments="([],)", op="output")
        users: dict[int, list[int]] = {}
        for node in self.graph:
            for source in node.inputs:
                users.setdefault(source, []).append(node.ordinal)
        graph = tuple(replace(node, users=tuple(users.get(node.ordinal, ()))) for node in self.graph)
        by_number: dict[int, list[int]] = {}
        for node in graph:
            if node.autograd_node is not None:
                by_number.setdefault(node.autograd_node, []).append(node.ordinal)
        nodes = tuple(replace(node, graph_nodes=tuple(by_number.get(node.number, ()))) for node in made)
        inputs, sizes = tuple(self.inputs), tuple(self.sizes)
        return CaptureRecord(
            call, "2.13.0", "eager", nodes, graph, inputs, sizes, tuple(self.backward.leaves), seconds=0.5
        )

    def _lift(self) -> dict[int, list[int]]:
        """Inputs first, then two sizes for each node, as compiled autograd does it."""
        lifted: dict[int, list[int]] = {}
        for node in self.backward.nodes:
            saved = [((), ())] if node.kind == "graph_root" else self.backward.saved[node.number]
            lifted[node.number] = []
            for names, shape in saved:
                index = len(self.inputs)
                ordinal = self.getitem(0, index, "lifted_input")
                self.inputs.append(
                    LiftedInput(index, ordinal, shape, "float32", "cpu", "strided", names, (), node.number)
                )
                lifted[node.number].append(ordinal)
        for node in self.backward.nodes:
            if node.kind == "builtin":
                index = len(self.sizes)
                raw = self.getitem(1, index, "lifted_size")
                self.sizes.append(LiftedSize(index, raw, 8, node.number))
                lifted[node.number].append(
                    self.add("unwrap_maybe_dynamic_int", "unwrap_maybe_dynamic_int", "lifted_size", (raw,))
                )
        return lifted

    def _call(self, node: AutogradNode, lifted: list[int]) -> AutogradNode:
        number, hooks = node.number, list(node.hooks)
        gradients = [self._sum(values, number) for _, values in sorted(self.arriving_at(number).items())]
        for kinds in (("tensor_pre_hook", "cpp_tensor_pre_hook"), ("pre_hook",)):
            gradients = self._hooks(hooks, kinds, gradients, number)
        results = self._body(node, gradients, lifted)
        if node.kind != "accumulate_grad":
            checked = self.add("validate_outputs", "validate_outputs", "validate_outputs", results, number=number)
            results = [self.getitem(checked, edge.output, number=number) for edge in node.edges]
        self._hooks(hooks, ("post_acc_grad_hook",), lifted, number)  # such a hook reads the leaf
        results = self._hooks(hooks, ("post_hook",), results, number)
        for edge, value in zip(node.edges, results, strict=False):
            self.arriving.setdefault((edge.target, edge.input), []).append(value)
        return replace(node, hooks=tuple(hooks))

    def arriving_at(self, number: int) -> dict[int, list[int]]:
        node = self.backward.nodes[number]
        return {i: self.arriving[number, i] for i in range(node.inputs) if (number, i) in self.arriving}

    def _sum(self, values: list[int], number: int) -> int:
        total, *rest = values
        for value in rest:
            total = self.add("add", "torch.add", "gradient_sum", (total, value), number=number)
        return total

    def _hooks(self, hooks: list[Hook], kinds: tuple[HookKind, ...], values: list[int], number: int) -> list[int]:
        for place, hook in enumerate(hooks):
            if hook.kind in kinds:
                wrapped = self.getitem(3, self.hooks_seen, "lifted_object")
                self.hooks_seen += 1
                called = self.add("call_hook", "call_hook", "hook", (wrapped, *values), number=number)
                hooks[place] = replace(hook, graph_node=called)
                values = [called] * len(values)
        return values

    def _body(self, node: AutogradNode, gradients: list[int], lifted: list[int]) -> list[int]:
        number, fx_name = node.number, node.name.lower()
        if node.kind == "graph_root":
            return lifted
        if node.kind == "accumulate_grad":
            return [
                self.add(
                    "call_accumulate_grad",
                    "call_accumulate_grad",
                    "accumulate_grad",
                    (*lifted, *gradients),
                    number=number,
                )
            ]
        if node.kind == "aot_backward":
            value = self.add(
                "call_aot_bwd_prologue", "call_aot_bwd_prologue", "aot_op", (*lifted, *gradients), number=number
            )
            for _ in range(self.backward.aot_ops - 1):
                value = self.add("aot0_mm", "aten.mm.default", "aot_op", (value,), number=number)
            return [value]
        if node.kind == "copy_slices":
            before = self.add(
                "copy_slices_prologue",
                "copy_slices_prologue",
                "copy_slices_prologue",
                (*gradients, *lifted),
                number=number,
            )
            picked = [self.getitem(before, index, number=number) for index in range(3)]
            inner = self.add(
                "torch_autograd_copy_backwards",
                "torch::autograd::CopyBackwards",
                "backward_call",
                picked[2:],
                number=number,
            )
            rest = [self.getitem(inner, 1, number=number)]
            after = self.add(
                "copy_slices_epilogue",
                "copy_slices_epilogue",
                "copy_slices_epilogue",
                [*picked[:2], *rest],
                number=number,
            )
            return [self.getitem(after, edge.output, number=number) for edge in node.edges]
        target = "call_backward" if node.kind == "custom_function" else f"ops.{node.name}"
        called = self.add(fx_name, target, "backward_call", (*gradients, *lifted), number=number)
        return [self.getitem(called, edge.output, number=number) for edge in node.edges]


def mlp() -> CaptureRecord:
    """Two linear layers with a ReLU between them."""
    b = Backward()
    b.node("GraphRoot", (0, 1, 0), kind="graph_root", inputs=0)
    b.node("SumBackward0", (0, 2, 0))
    b.node("AddmmBackward0", (0, 9, 0), (1, 5, 0), (2, 3, 0), saves=((3, 8), (8, 2)))
    b.node("TBackward0", (0, 4, 0))
    b.leaf("2.weight", shape=(2, 8))
    b.node("ReluBackward0", (0, 6, 0), saves=((3, 8),))
    b.node("AddmmBackward0", (0, 10, 0), (2, 7, 0), outputs=3, saves=((3, 4),))
    b.node("TBackward0", (0, 8, 0))
    b.leaf("0.weight", shape=(8, 4))
    b.leaf("2.bias", shape=(2,))
    b.leaf("0.bias", shape=(8,))
    return b.record()


def hooked() -> CaptureRecord:
    """`h * h.sigmoid() + h` with hooks of every kind; three gradients meet at AddmmBackward0."""
    b = Backward()
    on_node = (
        Hook("post_hook", "log_outputs", "train.py:31"),
        Hook("pre_hook", "clip", "train.py:22"),
        Hook("tensor_pre_hook", "double", "train.py:21"),
    )
    b.node("GraphRoot", (0, 1, 0), kind="graph_root", inputs=0)
    b.node("SumBackward0", (0, 2, 0))
    b.node("AddBackward0", (0, 3, 0), (1, 5, 0))
    b.node("MulBackward0", (0, 5, 0), (1, 4, 0), saves=((3, 8), (3, 8)))
    b.node("SigmoidBackward0", (0, 5, 0), saves=((3, 8),))
    b.node("AddmmBackward0", (0, 8, 0), (2, 6, 0), hooks=on_node, saves=((3, 4),))
    b.node("TBackward0", (0, 7, 0))
    b.leaf("lin.weight", "tied.weight", hooks=(Hook("post_acc_grad_hook", "step", "train.py:40"),), shape=(8, 4))
    b.leaf("lin.bias", hooks=(Hook("tensor_pre_hook", "<C++>"),), shape=(8,))
    return b.record()


def copy_slices() -> CaptureRecord:
    """`y = zeros(3, 4); y[0] = w; y[1] = w * 2`."""
    b = Backward()
    b.node("GraphRoot", (0, 1, 0), kind="graph_root", inputs=0)
    b.node("SumBackward0", (0, 2, 0))
    b.node("CopySlices", (0, 4, 0), (1, 3, 0), kind="copy_slices")
    b.node("MulBackward0", (0, 5, 0), outputs=2)
    b.node("CopySlices", (1, 5, 0), kind="copy_slices")
    b.leaf("w", shape=(4,))
    return b.record()


def kinds() -> CaptureRecord:
    """A compiled region, a Python Function and a C++ one."""
    b = Backward()
    b.node("GraphRoot", (0, 1, 0), kind="graph_root", inputs=0)
    b.node("SwishBackward", (0, 2, 0), kind="custom_function", saves=((3, 8),))
    b.node("CompiledFunctionBackward", (0, 3, 0), (1, 4, 0), kind="aot_backward", saves=((8, 4), (3, 8)))
    b.node("RoIAlignFunction", (0, 5, 0), kind="cpp_function", inputs=1)
    b.leaf("region.weight", shape=(8, 4))
    b.leaf("roi.weight", shape=(8,))
    return b.record()


def failed() -> CaptureRecord:
    """The trace stopped at ReluBackward0 of `mlp()`, with the graph as far as it had come."""
    whole = mlp()
    stop = whole.by_number[5].graph_nodes[0]
    nodes = tuple(
        replace(node, graph_nodes=tuple(i for i in node.graph_nodes if i < stop)) for node in whole.autograd_nodes
    )
    failure = Failure("NotImplementedError", "no <fake> for this & that", 5, "ReluBackward0")
    return replace(whole, autograd_nodes=nodes, graph_nodes=whole.graph_nodes[:stop], failure=failure)


HOSTILE = (
    "<b>bold</b> & \"quoted\" 'single' &amp; &#34;",
    r"back\slash \N \G \E \n \l \\ end\\",
    "line\nbreak\tand\x00null\x1b[31mred",
    "right to left \u202eevil\u202c שלום",
    "x" * 10_000,
    "</TABLE>]; evil -> node; /* -->",
    "重み.権重",
    "<>",
    "",
)


def hostile(names: tuple[str, ...] = HOSTILE) -> CaptureRecord:
    """Leaves, nodes and hooks whose names mean something to DOT, HTML or a terminal."""
    b = Backward()
    count = len(names)
    b.node("GraphRoot", *[(i, i + 1, 0) for i in range(count)], kind="graph_root", inputs=0)
    for place, name in enumerate(names):
        hook = Hook("pre_hook", name, name)
        b.node(name, (0, 1 + count + place, 0), kind="custom_function", hooks=(hook,))
    for name in names:
        b.leaf(name, shape=(2,))
    return b.record()


def chain(length: int) -> CaptureRecord:
    """A chain of nodes, deeper than any recursion."""
    b = Backward()
    b.node("GraphRoot", (0, 1, 0), kind="graph_root", inputs=0)
    for number in range(1, length + 1):
        b.node("SinBackward0", (0, number + 1, 0), saves=((4,),))
    b.leaf("w", shape=(4,))
    return b.record()


SAMPLES = {f.__name__: f for f in (mlp, hooked, copy_slices, kinds, failed, hostile)}
