"""Records of large backwards that were never run: a transformer's, of as many blocks as wanted, each of 62 nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cabw_viz.record.comparison import Comparison, GradientComparison
from cabw_viz.record.kinds import Verdict
from cabw_viz.record.model import (
    AutogradNode,
    Baked,
    CaptureRecord,
    Edge,
    GradientSpec,
    GraphNode,
    Hook,
    Leaf,
    LiftedUse,
    SavedTensor,
    SourceLine,
    Touch,
)
from cabw_viz.record.results import Results
from tests.records import CALL

HIDDEN = GradientSpec((8, 64, 192), "torch.float32")


@dataclass
class Row:
    """One autograd node in the making."""

    name: str
    module: str
    cls: str
    line: int
    leaf: str = ""
    below: list[int] = field(default_factory=list)


class Model:
    """Collects the nodes of a backward in the order in which they run."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def op(self, name: str, *above: int, module: str = "", cls: str = "", line: int = 0) -> int:
        """A node whose gradients come from those `above`."""
        number = len(self.rows)
        self.rows.append(Row(name, module, cls, line))
        for other in above:
            self.rows[other].below.append(number)
        return number

    def leaf(self, name: str, above: int, cls: str) -> None:
        number = self.op("AccumulateGrad", above, module=name.rpartition(".")[0], cls=cls)
        self.rows[number].leaf = name

    def linear(self, path: str, above: int) -> int:
        view = self.op("ViewBackward0", above, module=path, cls="Linear", line=10)
        addmm = self.op("AddmmBackward0", view, module=path, cls="Linear", line=10)
        self.leaf(f"{path}.bias", addmm, "Linear")
        turned = self.op("TBackward0", addmm, module=path, cls="Linear", line=10)
        self.leaf(f"{path}.weight", turned, "Linear")
        return self.op("ViewBackward0", addmm, module=path, cls="Linear", line=10)

    def norm(self, path: str, above: int) -> int:
        norm = self.op("NativeLayerNormBackward0", above, module=path, cls="LayerNorm", line=20)
        self.leaf(f"{path}.bias", norm, "LayerNorm")
        self.leaf(f"{path}.weight", norm, "LayerNorm")
        return norm

    def chain(self, names: str, above: int, path: str, cls: str, line: int) -> int:
        for name in names.split():
            above = self.op(f"{name}Backward0", above, module=path, cls=cls, line=line)
        return above

    def attention(self, path: str, above: int) -> int:
        mixed = self.chain(
            "Clone UnsafeView Transpose View Bmm", self.linear(f"{path}.proj", above), path, "Attention", 30
        )
        values = self.chain("Reshape Expand Transpose View", mixed, path, "Attention", 31)
        scores = self.chain("Reshape Expand Softmax MaskedFill Div UnsafeView Bmm", mixed, path, "Attention", 32)
        keys = self.chain("Reshape Expand Transpose Transpose View", scores, path, "Attention", 33)
        queries = self.chain("Reshape Expand Transpose View", scores, path, "Attention", 34)
        split = self.op("SplitBackward0", values, keys, queries, module=path, cls="Attention", line=35)
        return self.linear(f"{path}.qkv", split)

    def block(self, path: str, above: int) -> int:
        added = self.op("AddBackward0", above, module=path, cls="Block", line=40)
        gelu = self.op(
            "GeluBackward0", self.linear(f"{path}.mlp.down", added), module=f"{path}.mlp", cls="Mlp", line=41
        )
        inner = self.norm(f"{path}.norm2", self.linear(f"{path}.mlp.up", gelu))
        joined = self.op("AddBackward0", added, inner, module=path, cls="Block", line=42)
        first = self.norm(f"{path}.norm1", self.attention(f"{path}.attn", joined))
        return self.op("AddBackward0", joined, first, module=path, cls="Block", line=43)


def transformer(layers: int) -> CaptureRecord:
    """The backward of a transformer: `layers=12` gives about 740 nodes, `layers=806` about 50,000."""
    model = Model()
    root = model.op("GraphRoot")
    loss = model.chain("NllLoss LogSoftmax View UnsafeView Mm View", root, "", "Transformer", 50)
    at = model.norm("norm", loss)
    for layer in reversed(range(layers)):
        at = model.block(f"layers.{layer}", at)
    for name in ("tok", "pos"):
        embedding = model.op("EmbeddingBackward0", at, module=name, cls="Embedding", line=60)
        model.leaf(f"{name}.weight", embedding, "Embedding")
    return _record(model.rows)


def _record(rows: list[Row]) -> CaptureRecord:
    leaves, nodes, graph_nodes = [], [], []
    for number, row in enumerate(rows):
        leaf = None
        if row.leaf:
            leaf = len(leaves)
            leaves.append(Leaf((row.leaf,), (192, 192), "torch.float32", number))
        ordinals = (2 * number, 2 * number + 1)
        name, above = row.name.lower(), (2 * number - 1,) if number else ()
        call = GraphNode(
            ordinals[0],
            f"{name}_{number}",
            "call_function",
            f"ops.{row.name}",
            "(x, 1)",
            "backward_call",
            above,
            (),
            number,
        )
        check = replace(call, ordinal=ordinals[1], name=f"validate_outputs_{number}", target="validate_outputs")
        graph_nodes += [
            call,
            replace(check, arguments=f"([{call.name}])", kind="validate_outputs", inputs=ordinals[:1]),
        ]
        nodes.append(
            AutogradNode(
                number,
                row.name,
                "graph_root" if not number else "accumulate_grad" if row.leaf else "builtin",
                1,
                len(row.below),
                tuple(Edge(output, target, 0) for output, target in enumerate(row.below)),
                leaf,
                (Hook("tensor_pre_hook", "double", "train.py:3"),) if number % 500 == 7 else (),
                ordinals,
                ()
                if row.leaf
                else tuple(LiftedUse(3 * number + d, f"gradient 0, dimension {d}", 64) for d in range(3)),
                ()
                if row.leaf
                else (Baked("device", "cpu", "gradient 0"), Baked("dtype", "torch.float32", "gradient 0")),
                row.module,
                row.cls,
                0,
                SourceLine("model.py", row.line, f"x = step_{row.line}(x)") if row.line else None,
                (SavedTensor("self", (8, 64, 192), "torch.float32", "cpu", 393216, number, 393216),)
                if row.name.startswith(("Gelu", "Addmm", "Softmax"))
                else (),
                (HIDDEN,),
                (HIDDEN,) * len(row.below),
            )
        )
    touch = Touch("initial_trace", "size", len(nodes) // 2, None, "user", "train.py:3", 2)
    return CaptureRecord(
        CALL, "2.13.0", "eager", tuple(nodes), tuple(graph_nodes), leaves=tuple(leaves), touches=(touch,),
        watched=("initial_trace",),
    )  # fmt: skip


def results_of(record: CaptureRecord, bad: int = 20) -> Results:
    """Results of every kind but a divergence."""
    return Results(
        compared(record, bad), execution=audited(record), lowered=lowered(record), node_seconds=timed(record)
    )


def audited(record: CaptureRecord) -> tuple[Touch, ...]:
    """Three reads of a size by each autograd node, while the graph ran."""
    return tuple(Touch("execution", "size", n, 2 * n, "kernel", "C++", 3) for n in range(len(record.autograd_nodes)))


def lowered(record: CaptureRecord) -> tuple[GraphNode, ...]:
    """A graph of aten operators: two for each autograd node but the root, in a chain."""
    made = [GraphNode(0, "arg0_1", "placeholder", "arg0_1", "()", "placeholder")]
    for node in record.autograd_nodes[1:]:
        for target in ("aten.mm.default", "aten.view.default"):
            ordinal = len(made)
            name = f"{target.split('.')[1]}_{ordinal}"
            before = made[-1]
            made.append(
                GraphNode(
                    ordinal, name, "call_function", target, f"({before.name}, 2)", "aten_op", (before.ordinal,),
                    autograd_node=node.number,
                )
            )  # fmt: skip
    return tuple(made)


def timed(record: CaptureRecord) -> tuple[float | None, ...]:
    """A time for every node but the first: one millisecond, and 64 for the matrix products."""
    seconds = [0.064 if node.name.startswith(("Mm", "Addmm", "Bmm")) else 0.001 for node in record.autograd_nodes]
    return (None, *seconds[1:])


def compared(record: CaptureRecord, bad: int = 20) -> Comparison:
    """A comparison of the record's leaves of which the last `bad` differ."""
    rows = []
    for index, leaf in enumerate(record.leaves):
        verdict: Verdict = "mismatch" if index >= len(record.leaves) - bad else "bitwise"
        error = 0.0 if verdict == "bitwise" else 1e-3 * (1 + index % 3)
        rows.append(
            GradientComparison(leaf.label, verdict, error / 10, error, leaf.shape, leaf.dtype, 100, 7 if error else 0)
        )
    return Comparison("your own eager run", "the graph run again", tuple(rows), (("torch.float32", 1.3e-6, 1e-5),))
