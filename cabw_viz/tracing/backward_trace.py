"""One backward call on its way through the tracer."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import warn
from cabw_viz.record.missing import MissingGradient
from cabw_viz.record.model import AutogradNode, BackwardCall, CaptureRecord, Failure, Leaf
from cabw_viz.runtime.capture_state import Arguments, CaptureState, ThreadState
from cabw_viz.runtime.forward_values import roots_of
from cabw_viz.runtime.recomputation import Recomputation
from cabw_viz.torch_adapter import EngineCall, HookDicts
from cabw_viz.tracing import extract, saved_tensors
from cabw_viz.tracing.deleted_meta import MetaLookups
from cabw_viz.tracing.leaves import leaves_of, variables_of
from cabw_viz.tracing.metadata import with_metadata
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.node_hooks import dicts_of, with_hooks
from cabw_viz.tracing.node_numbering import NumberedNodes, number_nodes
from cabw_viz.tracing.outcome import CacheHit, NewCapture
from cabw_viz.tracing.overwritten import donated_inputs, scratch_inputs
from cabw_viz.tracing.provenance import Provenance
from cabw_viz.tracing.saved_tensors import SavedTensorIndex, TensorKey, tensor_keys
from cabw_viz.tracing.trace_failures import StoppedTrace
from cabw_viz.tracing.tracer import TraceNotes
from cabw_viz.tracing.tripwire import touches


@dataclass
class BackwardTrace:
    """What is known of a call while it is traced and run.

    prepare                     before anything runs: autograd nodes, leaves
    ├─ read_saved_tensors       when the trace begins, unless the cache answers
    ├─ keep_graph_module        when the graph is finished
    ├─ keep_arguments           when the engine calls the graph
    ├─ record                   from all of these; after a failure from as many as there are
    └─ drop_tracing_state
    """

    call: BackwardCall
    engine_call: EngineCall
    run: str
    """`eager`, `compiled`, or `user`: see `CaptureRecord.run`."""
    compiler: Callable[..., Any] | None
    """The user's compiler function, where it is in charge."""
    names: Names
    provenance: Provenance
    numbering: NumberedNodes
    nodes: tuple[AutogradNode, ...]
    leaves: tuple[Leaf, ...]
    notes: TraceNotes = field(default_factory=TraceNotes)
    lookups: MetaLookups = field(default_factory=MetaLookups)
    state: CaptureState = field(default_factory=CaptureState)
    outcome: NewCapture | CacheHit | None = None
    """What the engine has done with the graph: None before it calls it, and where the trace fails."""
    outer: tuple[int, int | None] | None = None
    """See `CaptureRecord.outer`."""
    is_traced: bool = True
    """See `CaptureRecord.is_traced`."""
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
        """Read the autograd graph before anything runs."""
        started = time.perf_counter()
        names.refresh()
        numbering = number_nodes(engine_call.roots, engine_call.inputs)
        leaves = leaves_of(engine_call, numbering, names)
        nodes = extract.autograd_nodes(numbering)
        trace = cls(call, engine_call, run, compiler, names, provenance, numbering, nodes, leaves, started=started)
        trace.state.forward_values.roots = roots_of(engine_call.roots, engine_call.grads)
        variables = variables_of(leaves, numbering)
        trace.state.users = provenance.user_objects(variables)
        trace.state.leaf_tensors = tuple(None if each is None else weakref.ref(each) for each in variables)
        return trace

    def __post_init__(self) -> None:
        self._saved_tensors: SavedTensorIndex | None = None
        """None until `read_saved_tensors` is called."""
        self.hook_dicts: list[HookDicts | None] = []
        """The hooks of the nodes; empty until they were read of the nodes."""
        self._input_keys: list[TensorKey | None] = []
        self._missing: tuple[MissingGradient, ...] = ()
        self._parameters: int | None = None
        self.notes.at_begin = self.read_saved_tensors

    def read_saved_tensors(self) -> None:
        """Read what the nodes save and where they come from: once, before the run frees them, and for no cache hit."""
        if self._saved_tensors is not None:
            return
        self._saved_tensors = SavedTensorIndex()
        try:
            self._saved_tensors, nodes = saved_tensors.read(self.nodes, self.numbering, self.names)
            self.nodes = self.provenance.annotate(nodes, self.numbering, self.names)
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must go on
            warn(f"it is not known where the nodes of this backward come from ({type(error).__name__}: {error})")

    def _read_missing(self) -> None:
        """Read which parameters the call gives no gradient, before it runs."""
        try:
            with torch_adapter.unseen_operators(), torch_adapter.without_any_torch_function():
                parameters = self.names.parameters()
                self._parameters = None if parameters is None else len(parameters)
                later = self.state.given_later
                self._missing = self.provenance.missing(
                    self.engine_call, self.numbering, self.leaves, self.names, later
                )
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must go on
            self._parameters = None
            warn(f"it is not known what this backward gives no gradient ({type(error).__name__}: {error})")

    def begin_again(self) -> None:
        """Forget what a first trace has noted, before a second one of the same call."""
        self.notes = TraceNotes(at_begin=self.notes.at_begin)
        self.state.graph = None

    def keep_graph_module(self, graph: torch.fx.GraphModule) -> None:
        """Keep the traced graph; a copy where the user's compiler gets it and may rewrite it."""
        if self.compiler is None:
            self.state.graph = graph
            return
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        fresh = torch.fx.Graph()
        returned = fresh.graph_copy(graph.graph, copies)
        fresh.output(returned)
        self.state.graph = torch.fx.GraphModule(graph, fresh)
        self.notes.follow(copies)

    def keep_arguments(self, inputs: list[Any], rest: tuple[Any, ...], *, snapshot: bool) -> None:
        """Keep what the graph is about to run on; see `Arguments.of_call`."""
        self._input_keys = tensor_keys(inputs)
        scratch = scratch_inputs(self._graph(), inputs)
        # Where the call runs through compiled autograd, no compiled backward of its own runs, and none overwrites.
        donated = donated_inputs(self.numbering, inputs) if self.run == "eager" else frozenset[int]()
        copied = range(len(inputs)) if snapshot else scratch | donated
        self.state.arguments = Arguments.of_call(inputs, rest, copied, scratch, copy_packed=snapshot)
        self.state.thread_state = ThreadState.current(self.call.create_graph)
        if self.state.graph is not None:
            hooks, packed = self.state.arguments.hooks, self.state.arguments.packed_data
            self.state.recomputation = Recomputation.of_graph(
                self.state.graph, hooks, packed, self.names.names_of, snapshot=snapshot
            )

    def watched_record(self) -> CaptureRecord:
        """The record of a call that is not traced: all that its autograd nodes tell before they run."""
        self.read_saved_tensors()
        self._read_missing()
        self._read_hooks()
        return self._bare_record(None)

    def _read_hooks(self) -> None:
        try:
            self.nodes = self._with_hooks(extract.with_leaves(self.nodes, self.leaves))
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must go on
            warn(f"the hooks of this backward are not known ({type(error).__name__}: {error})")

    def _with_hooks(self, nodes: tuple[AutogradNode, ...]) -> tuple[AutogradNode, ...]:
        self.hook_dicts = dicts_of(self.numbering)
        return with_hooks(nodes, self.numbering, self.hook_dicts, self.provenance.hooks_on_tensors())

    def record(self, failure: Failure | None = None) -> CaptureRecord:
        """The record, after a failure as far as the trace came. An error of ours in it warns, and leaves a bare one."""
        self.read_saved_tensors()
        self._read_missing()
        try:
            return self._full_record(failure)
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must go on
            warn(f"the record of this backward is incomplete ({type(error).__name__}: {error})")
            if failure is not None:
                self._read_hooks()
            return self._bare_record(failure or self.failure(error))

    def _full_record(self, failure: Failure | None) -> CaptureRecord:
        arguments = self.state.arguments if failure is None else None
        kinds = {node.number: node.kind for node in self.nodes}
        graph = extract.read_graph(self._graph(), kinds, self.notes.pasted)
        hooks = arguments.hooks if arguments is not None else None
        problem = extract.disagreement(self.nodes, graph)
        if problem:
            raise AssertionError(problem)
        sizes = extract.lifted_sizes(graph, self.notes, arguments)
        inputs = extract.lifted_inputs(graph, self.notes, arguments, self.names.names_of)
        nodes = extract.complete_nodes(self.nodes, graph, self.leaves, hooks, self.notes.hooked)
        assert self._saved_tensors is not None  # `record` reads them
        nodes = self._saved_tensors.link_to_inputs(nodes, inputs, self._input_keys, graph)
        if failure is not None:  # the trace saw the hooks that it came to
            nodes = self._with_hooks(nodes)
        # Half-way through a failed trace, saved sizes may be symbols: fields are then named without their values.
        readable = self.numbering.nodes if failure is None else ()
        return CaptureRecord(
            call=self.call,
            torch_version=str(torch.__version__),
            run=self.run,
            autograd_nodes=with_metadata(nodes, graph, sizes, readable),
            graph_nodes=graph.nodes,
            inputs=inputs,
            sizes=sizes,
            leaves=self.leaves,
            touches=touches(self.notes.reads, graph.fx_nodes) + self.lookups.touches(graph.nodes),
            outer=self.outer,
            parameters=self._parameters,
            missing=self._missing,
            lines_off=self.provenance.lines_off,
            failure=failure,
            seconds=time.perf_counter() - self.started,
        )

    def _bare_record(self, failure: Failure | None) -> CaptureRecord:
        """The autograd nodes alone, where there is no graph, or it cannot be read."""
        return CaptureRecord(
            self.call,
            str(torch.__version__),
            self.run,
            self.nodes,
            leaves=self.leaves,
            touches=touches(self.notes.reads, ()) + self.lookups.touches(()),
            outer=self.outer,
            parameters=self._parameters,
            missing=self._missing,
            lines_off=self.provenance.lines_off,
            is_traced=self.is_traced,
            failure=failure,
            seconds=time.perf_counter() - self.started,
        )

    def _graph(self) -> torch.fx.Graph:
        if self.state.graph is not None:
            return self.state.graph.graph
        begun = getattr(getattr(self.notes.tracer, "fx_tracer", None), "graph", None)
        return begun if begun is not None else torch.fx.Graph()

    def failure(self, error: BaseException) -> Failure:
        """What has stopped the trace, as plain data."""
        self.read_saved_tensors()
        traced = self.notes.error_node or self.notes.node
        return StoppedTrace(error, self.engine_call, self.numbering, self.nodes, traced).failure

    def freed_node(self) -> str:
        """The first Python Function node that has run and was freed, as text; empty where there is none."""
        freed = (n for n, node in enumerate(self.numbering.nodes) if torch_adapter.has_freed_buffers(node))
        number = next(freed, None)
        return "" if number is None else f"{self.nodes[number].name} (#{number})"

    def drop_tracing_state(self) -> None:
        """Drop what only the tracing needed: autograd nodes, the tracer, exceptions with their frames."""
        self.numbering, self.hook_dicts = NumberedNodes((), ()), []
        self.notes = TraceNotes()
