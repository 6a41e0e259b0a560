"""One backward call on its way through the tracer."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwWarning
from cabw_viz.record.model import AutogradNode, BackwardCall, CaptureRecord, Failure, Leaf
from cabw_viz.runtime.capture_state import Arguments, CaptureState
from cabw_viz.torch_adapter import EngineCall
from cabw_viz.tracing import extract, saved_tensors
from cabw_viz.tracing.deleted_meta import Lookups
from cabw_viz.tracing.leaves import leaves_of
from cabw_viz.tracing.metadata import with_metadata
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_numbering import NumberedNodes, number_nodes
from cabw_viz.tracing.provenance import Provenance
from cabw_viz.tracing.saved_tensors import Key, SavedTensorIndex
from cabw_viz.tracing.tracer import TraceNotes
from cabw_viz.tracing.tripwire import touches


@dataclass
class BackwardTrace:
    """What is known of a call while it is traced and run."""

    call: BackwardCall
    engine_call: EngineCall
    run: str
    """`eager`, `compiled`, or `user`: see `CaptureRecord.run`."""
    compiler: Callable[..., Any] | None
    """The user's compiler function, where it is in charge."""
    names: Names
    provenance: Provenance
    walk: NumberedNodes
    nodes: tuple[AutogradNode, ...]
    leaves: tuple[Leaf, ...]
    notes: TraceNotes = field(default_factory=TraceNotes)
    lookups: Lookups = field(default_factory=Lookups)
    looked: bool = False
    """Whether `read_saved_tensors` was called."""
    holding: SavedTensorIndex = field(default_factory=SavedTensorIndex)
    input_keys: list[Key | None] = field(default_factory=list)
    """What the inputs of the captured run are known by; see `SavedTensorIndex.link_to_inputs`."""
    live: CaptureState = field(default_factory=CaptureState)
    captured: int | None = None
    """Index of the capture that this call became."""
    hit: int | None = None
    """Index of the earlier capture that this call hit in the cache."""
    already_made: tuple[Any] | None = None
    """The call's result, where it was made during the trace against all expectation."""
    event: int = 0
    """Index of its event."""
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def prepare(
        cls,
        call: BackwardCall,
        engine_call: EngineCall,
        run: str,
        compiler: Callable[..., Any] | None,
        names: Names,
        provenance: Provenance,
    ) -> BackwardTrace:
        """Look at the autograd graph before anything runs."""
        started = time.perf_counter()
        names.refresh()
        nodes = number_nodes(engine_call.roots, engine_call.inputs)
        leaves = leaves_of(engine_call, nodes, names)
        described = extract.autograd_nodes(nodes)
        return cls(call, engine_call, run, compiler, names, provenance, nodes, described, leaves, started=started)

    def __post_init__(self) -> None:
        self.notes.at_begin = self.read_saved_tensors

    def read_saved_tensors(self) -> None:
        """Read what the nodes hold and where they come from: once, before the run frees them, and for no cache hit."""
        if self.looked:
            return
        self.looked = True
        try:
            self.holding, nodes = saved_tensors.read(self.nodes, self.walk, self.names)
            self.nodes = self.provenance.told(nodes, self.walk, self.names)
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must go on
            text = f"it is not known where the nodes of this backward come from ({type(error).__name__}: {error})"
            warnings.warn(text, CabwWarning, stacklevel=2)

    def keep_graph_module(self, graph: torch.fx.GraphModule) -> None:
        """Keep the traced graph; a copy where somebody else's compiler gets it and may rewrite it."""
        if self.compiler is None:
            self.live.graph = graph
            return
        copied: dict[torch.fx.Node, torch.fx.Node] = {}
        fresh = torch.fx.Graph()
        returned = fresh.graph_copy(graph.graph, copied)
        fresh.output(returned)
        self.live.graph = torch.fx.GraphModule(graph, fresh)
        self.notes.follow(copied)

    def record(self, arguments: Arguments | None = None, failure: Failure | None = None) -> CaptureRecord:
        """The record: complete with the graph's arguments, as far as it came without."""
        self.read_saved_tensors()
        kinds = {node.number: node.kind for node in self.nodes}
        view = extract.read_graph(self._graph(), kinds, self.notes.pasted)
        hooks = arguments.hooks if arguments is not None else None
        problem = extract.disagreement(self.nodes, view)
        if problem:
            raise AssertionError(problem)
        sizes = extract.lifted_sizes(view, self.notes, arguments)
        inputs = extract.lifted_inputs(view, self.notes, arguments, self.names.names_of)
        nodes = extract.complete_nodes(self.nodes, view, self.leaves, hooks, self.notes.hooked)
        nodes = self.holding.link_to_inputs(nodes, inputs, self.input_keys, view)
        # Half-way through a failed trace, saved sizes may be symbols: fields are then named without their values.
        readable = self.walk.nodes if failure is None else ()
        return CaptureRecord(
            call=self.call,
            torch_version=torch.__version__,
            run=self.run,
            autograd_nodes=with_metadata(nodes, view, sizes, readable),
            graph_nodes=view.nodes,
            inputs=inputs,
            sizes=sizes,
            leaves=self.leaves,
            touches=touches(self.notes.reads, view.fx_nodes) + self.lookups.touches(view.nodes),
            lines_off=self.provenance.lines_off,
            failure=failure,
            seconds=time.perf_counter() - self.started,
        )

    def bare_record(self, failure: Failure) -> CaptureRecord:
        """The autograd nodes alone, for a trace of which nothing else can be told."""
        self.read_saved_tensors()
        return CaptureRecord(
            self.call,
            torch.__version__,
            self.run,
            self.nodes,
            leaves=self.leaves,
            touches=touches(self.notes.reads, ()) + self.lookups.touches(()),
            lines_off=self.provenance.lines_off,
            failure=failure,
            seconds=time.perf_counter() - self.started,
        )

    def _graph(self) -> torch.fx.Graph:
        if self.live.graph is not None:
            return self.live.graph.graph
        begun = getattr(getattr(self.notes.tracer, "fx_tracer", None), "graph", None)
        return begun if begun is not None else torch.fx.Graph()

    def failure(self, error: BaseException) -> Failure:
        """An exception as plain data, so that its traceback keeps no tensor alive."""
        number, name = self.notes.error_node or self._unusable_node(str(error)) or (None, "")
        known = {node.number: node.name for node in self.nodes}
        return Failure(type(error).__name__, str(error), number, known.get(number, name) if number is not None else "")

    def _unusable_node(self, message: str) -> tuple[int, str] | None:
        """The first node whose saved tensors raise this: C++ looks at them before the tracer is told of any node."""
        if self.notes.node is not None:
            return None
        unusable = (n for n, node in enumerate(self.walk.nodes) if message in torch_adapter.saved_tensor_errors(node))
        number = next(unusable, None)
        if number is None:  # some messages name the node's class in quotes
            number = next((node.number for node in self.nodes if f"'{node.name}'" in message), None)
        return None if number is None else (number, self.nodes[number].name)

    def freed_node(self) -> str:
        """The first Python Function node that has run and was freed, as text; empty where there is none."""
        freed = (n for n, node in enumerate(self.walk.nodes) if torch_adapter.has_freed_buffers(node))
        number = next(freed, None)
        return "" if number is None else f"{self.nodes[number].name} (#{number})"

    def drop_tracing_state(self) -> None:
        """Drop what only the tracing needed: autograd nodes, the tracer, exceptions with their frames."""
        self.walk = NumberedNodes((), ())
        self.notes = TraceNotes()
