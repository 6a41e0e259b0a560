"""One captured backward, and everything that can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cabw_viz.analysis.coloring import Figures
from cabw_viz.analysis.gradient_flow import flow
from cabw_viz.errors import CabwError
from cabw_viz.nonfinite.search import search
from cabw_viz.numerics.constants import FLOW_FACTOR
from cabw_viz.numerics.measures import measures_named
from cabw_viz.record.model import CaptureRecord, Failure
from cabw_viz.record.options import ColorBy, Exact, HookPolicy, Level
from cabw_viz.record.results import NO_RESULTS, Results
from cabw_viz.record.untraced import check_traced
from cabw_viz.replay import audit as audit_of
from cabw_viz.replay.divergence import search as divergence_of
from cabw_viz.replay.lowering.lowered import lowered_nodes
from cabw_viz.replay.lowering.trace import lower
from cabw_viz.replay.parity import comparison as parity_of
from cabw_viz.replay.parity.gradient_pairs import ParityOptions
from cabw_viz.replay.placement.target import resolve_target
from cabw_viz.replay.replay import Replay
from cabw_viz.replay.timing import time_nodes
from cabw_viz.replay.user_state.guard import unchanged_user_state
from cabw_viz.runtime.capture_state import Captured, CaptureState
from cabw_viz.runtime.gradient_sizes import gradient_sizes
from cabw_viz.runtime.missing_gradients import missing_gradients
from cabw_viz.runtime.stack_frames import cell_files
from cabw_viz.surfaces.divergence_report import DivergenceReport
from cabw_viz.surfaces.flow_report import FlowReport
from cabw_viz.surfaces.missing_report import MissingReport
from cabw_viz.surfaces.nonfinite_report import NonFiniteReport
from cabw_viz.surfaces.parity_report import ParityReport
from cabw_viz.views import tables
from cabw_viz.views.files import path_named, write_file
from cabw_viz.views.gradient_table import gradient_frame
from cabw_viz.views.html import capture_html
from cabw_viz.views.inspector.page import inspector_page
from cabw_viz.views.outline import outline
from cabw_viz.views.render import GraphView, graph_view

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import torch

    from cabw_viz.record.comparison import Comparison
    from cabw_viz.record.divergence import Divergence
    from cabw_viz.record.gradients import GradientSizes
    from cabw_viz.replay.lowering.lowered import Lowered
    from cabw_viz.surfaces.inspector import Inspector, MimeBundle

EXAMPLE = 'cap.to_html("backward.html")'


class Capture:
    """One captured backward."""

    def __init__(self, record: CaptureRecord, results: Results = NO_RESULTS, state: CaptureState | None = None) -> None:
        self._record, self._results, self._state = record, results, state

    @property
    def record(self) -> CaptureRecord:
        """What was captured, as plain data: autograd nodes, graph nodes, lifted inputs and sizes, leaves."""
        return self._record

    @property
    def results(self) -> Results:
        """What was computed of it so far, as plain data: the latest result of each method that runs or lowers it."""
        return self._results

    @property
    def last_parity(self) -> Comparison | None:
        """The result of the last call of `parity()`; None before."""
        return self._results.comparison

    @property
    def last_divergence(self) -> Divergence | None:
        """The result of the last call of `divergence()`; None before."""
        return self._results.divergence

    @property
    def has_state(self) -> bool:
        """Whether the captured graph and its inputs came with the record; a closed session has released them."""
        return self._state is not None

    @property
    def _captured(self) -> Captured:
        """The record and the state, for replay.

        Raises:
            CabwError: there is no state.
        """
        if self._state is None:
            raise CabwError(
                "this capture is a record alone: its graph and its tensors are not in this process",
                expected="a capture of a session in this process",
                try_="with cabw_viz.capture(model) as session: ..., then session[0]",
            )
        return Captured(self._record, self._state)

    @contextmanager
    def _running(self) -> Iterator[Captured]:
        """The record and the state, for methods that run the graph; what belongs to the user is put back at the end."""
        captured = self._captured
        with unchanged_user_state(captured.state.users, captured.record):
            yield captured

    def _release(self) -> None:
        """Drop every tensor; record and results stay."""
        if self._state is not None:
            self._state.release()

    def _keep(self, **results: Any) -> None:
        """Replace some of the results."""
        self._results = replace(self._results, **results)

    @property
    def error(self) -> Failure | None:
        """None, or what stopped this backward, and at which autograd node."""
        return self.record.failure

    @property
    def nodes(self) -> pd.DataFrame:
        """A row for every autograd node, by NodeCall number."""
        return tables.node_frame(self.record)

    def memory(self, depth: int | None = None) -> pd.DataFrame:
        """A row for each module: the bytes that its nodes keep until their backward has run, the most first.

        `bytes` counts each storage once in its module; `shared` says how many of them the modules in `shared_with`
        keep too, `named` how many belong to parameters, buffers and leaves, `packed` how many tensors hooks packed.

        Args:
            depth: parts of the modules' paths that count: 2 adds up all that is below `layers.3`.
        """
        return tables.memory_frame(self.record, depth)

    def graph(  # noqa: PLR0913  # every one of these is a choice of its own, and given by its name
        self,
        level: Level = "module",
        *,
        depth: int | None = None,
        expand: Sequence[str] = (),
        focus: str | None = None,
        around: int | None = None,
        hops: int = 2,
        path_to: str | None = None,
        color_by: ColorBy | Figures | None = None,
        links: str | None = None,
        plumbing: bool = False,
    ) -> GraphView:
        """The graph as a picture; shows itself in a notebook.

        Args:
            level: What a box stands for. `module`: the autograd nodes of a module; blocks that are built alike are
                folded into one. `autograd`: an autograd node. `fx`: a node of the captured graph. `aten`: an
                operator, after `cap.lower()`.
            depth: At level `module`, parts of a module's path down to which modules are open, counted below `focus`
                where that is given. None for as many as leave at most 30 boxes.
            expand: At level `module`, names of modules that are open whatever the depth, down to their own autograd
                nodes; they are not folded: `["layers.3"]`.
            focus: Only this module, with what flows in and out: `"layers.3.mlp"`.
            around: Only the autograd node of this number and those that at most `hops` edges part from it.
            hops: See `around`.
            path_to: Only the ways that gradients take to this parameter; a tied one has several names.
            color_by: `kind` (default); `family`, what work the nodes do; `touches`, reads of metadata; `parity`, the
                relative error of gradients, after `cap.parity()` or `cap.divergence()`; `bytes`, what is kept for the
                backward beside parameters; `time`, after `cap.times()`. Or figures of your own, by number of the
                autograd node: a dict, or a column of `cap.nodes`; those of a box are added up.
            links: Where a box leads: the address of a line of code, with `{file}` and `{line}` in it, such as
                `"vscode://file/{file}:{line}"`. None for nowhere.
            plumbing: At level `fx`, draw lifted inputs, sizes and `getitem` too.

        Raises:
            CabwError: something asked for is not there, has not been computed, or does not go together.
        """
        return graph_view(
            self.record,
            level,
            results=self.results,
            links=links,
            depth=depth,
            expand=expand,
            focus=focus,
            around=around,
            hops=hops,
            path_to=path_to,
            color_by=color_by,
            plumbing=plumbing,
        )

    def gradients(self) -> pd.DataFrame:
        """How large the gradients of your own run were: a row for each leaf, then for each autograd node; nothing runs.

        A node's figures are those of the gradients that flow into it, after all hooks, together; `rms_out` is of those
        that flow out. They are computed at the first call, of the copies that the capture keeps, or of fingerprints
        where `max_bytes` was spent, and stay after `session.close()`.

        Returns:
            `kind` (leaf or node), `name`, `autograd_node`; `norm` (Euclidean), `rms` (root mean square), `largest`
            absolute value; the shares of `zeros` and of `subnormals`, which are below the smallest normal number of
            the dtype; counts of `nans` and `infinities`; for a leaf `parameter_norm`, as it was before the backward,
            and `ratio` of the two norms; `rms_out`, `elements`, `shape`, `dtype`, `module`, `line`; `note`, where
            figures are not known, and why. Complex numbers count by their absolute values.

        Raises:
            CabwError: the gradients were not kept (`capture(gradients="none")`), or the session is closed.
        """
        return gradient_frame(self.record, self._sizes())

    def flow(self, factor: float = FLOW_FACTOR) -> FlowReport:
        """Where gradients fall or rise on their way through the model, by module and line, and as a picture.

        Looked at is, at each moment of the backward, the largest gradient that is on its way from one autograd node to
        another: small gradients in one branch are no fault where another carries large ones. Both its root mean square
        and its norm must change by more than the factor. Leaves whose gradient is zero everywhere are named too.

        Args:
            factor: how many times smaller or larger a gradient becomes before that is named.

        Raises:
            CabwError: as `gradients`, and where `factor` is no number above 1.
        """
        return FlowReport(flow(self.record, self._sizes(), factor))

    def _sizes(self) -> GradientSizes:
        """The sizes of gradients, computed once."""
        if self._results.gradients is None:
            self._keep(gradients=gradient_sizes(self._captured))
        sizes = self._results.gradients
        assert sizes is not None  # it was computed, or an error was raised
        return sizes

    def outline(self, *, full: bool = False) -> str:
        """The graph as text, a line for each autograd node; long ones shortened unless `full`."""
        return outline(self.record, self.results, full=full)

    def replay(
        self,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        backend: str | Callable[..., Any] = "eager",
        hooks: HookPolicy = "run",
    ) -> dict[str, torch.Tensor]:
        """Run the captured graph again, anywhere, and return the gradients by name; nothing is written.

        A tied parameter stands under each of its names. Hooks that follow an accumulation, and hooks of FSDP and
        other training frameworks, are left out: the gradients are this process's own. Other hooks run again unless
        `hooks="drop"`, and `hooks="refuse"` raises if there are any; what they change of the model is put back, with
        a `CabwWarning`.

        Args:
            device: where; anything torch names, or `auto` for the current accelerator. None: where it was captured.
            dtype: in what floating dtype, such as `"float64"`; complex numbers follow. This is the backward of the
                saved forward in that dtype: the forward is not run again. None: as it was captured.
            backend: `eager` interprets the graph, op by op. `aot_eager`, `inductor` or another name that torch.compile
                knows, and a function `(graph, example_inputs)`, compile it. A function of the graph alone is a compiler
                as compiled autograd has it; what it returns is called with inputs, sizes, scalars, hooks, packed data.
            hooks: `run`, `drop` or `refuse`.

        Returns:
            Each gradient on that device and in that dtype.

        Raises:
            CabwError: there is no such device, dtype or backend (lists those there are); the session is closed; an
                input was changed in place; a hook or a custom Function's ctx holds a tensor that cannot move;
                the backend or PyTorch cannot run the graph; memory ran out.
        """
        target = resolve_target(device, dtype, backend)
        with self._running() as captured:
            gradients = Replay(captured, target, hooks).gradients()
        return {name: gradient for index, gradient in gradients.items() for name in self.record.leaves[index].names}

    def parity(  # noqa: PLR0913  # every one of these is a choice of its own, and given by its name
        self,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        backend: str | Callable[..., Any] = "eager",
        rtol: float | None = None,
        atol: float | None = None,
        exact: Exact = "auto",
        measures: Sequence[str] = (),
        hooks: HookPolicy = "run",
    ) -> ParityReport:
        """Run the captured graph again, anywhere, and compare its gradients with those of the user's own run.

        What is outside the tolerance is judged by rounding: it is `within_noise` if neither side is further from a
        float64 run of the same graph than rounding takes it, and a `mismatch` otherwise.

        Args:
            device: see `replay`.
            dtype: see `replay`.
            backend: see `replay`.
            rtol: relative tolerance; together with `atol`. Default: torch.testing's for the coarser dtype, with `atol`
                no less than `rtol` where device, dtype or backend were asked for.
            atol: tolerance in units of the largest element of the gradient.
            exact: whether to run the graph in float64 too, for both sides' errors; `auto` does it where not all
                gradients are equal to the last bit.
            measures: further columns: `cosine` (of the angle between the two), `ulp` (largest distance in representable
                numbers), `rms` (norm of the difference by norm).
            hooks: see `replay`.

        Raises:
            CabwError: as `replay`, and where the user's own run left no reference.
        """
        target = resolve_target(device, dtype, backend)
        options = ParityOptions(hooks, rtol, atol, target, exact, measures_named(measures))
        with self._running() as captured:
            comparison = parity_of.parity(captured, options)
        self._keep(comparison=comparison)
        return ParityReport(comparison)

    def divergence(
        self,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        backend: str | Callable[..., Any] = "eager",
        rtol: float | None = None,
        atol: float | None = None,
        hooks: HookPolicy = "run",
        repeats: int = divergence_of.REPEATS,
    ) -> DivergenceReport:
        """Find the autograd node, sum of gradients or hook whose gradients part from eager's.

        The captured graph runs again, and what flows into and out of every node is held against what flowed there in
        your own run. If anything differs, each step is then judged alone, on the same gradients on both sides, so that
        a wrong result is charged to the step that made it, and not to those that received it. In half precision, and
        where more differs than the tolerance allows, a run in float64 tells rounding from faults.

        Args:
            device: where to run it, as for `replay`; default: where it was captured.
            dtype: in which floating dtype.
            backend: `eager` interprets the graph, op by op; otherwise what `torch.compile` takes. The gradients of all
                nodes are outputs of a compiled graph then, so that it may be fused differently than without them.
            rtol: relative tolerance; together with `atol`, and final then. Default: torch.testing's for the dtype.
            atol: tolerance in units of a gradient's largest element.
            hooks: see `replay`; the graph runs several times, and hooks with it.
            repeats: where more differs than a tolerance allows, the whole graph runs so often again. What does not come
                again then is `not_reproducible`: a hook or a Function with a state of its own, a race.

        Raises:
            CabwError: as `replay`; also where the gradients of the nodes were not kept (`capture(gradients="nodes")`
                keeps them), or the backward ran through compiled autograd, where they cannot be seen.
        """
        target = resolve_target(device, dtype, backend)
        with self._running() as captured:
            divergence = divergence_of.divergence(
                captured, target=target, hooks=hooks, rtol=rtol, atol=atol, repeats=repeats
            )
        self._keep(divergence=divergence)
        return DivergenceReport(divergence)

    def nonfinite(self) -> NonFiniteReport:
        """Find where NaN and infinity begin, from what was kept; nothing runs.

        First of all the loss: where that is not finite, the first of the forward ops, leaves and inputs that hold it.
        Then the steps of the backward that make NaN or infinity of finite gradients: an autograd node, a sum of
        gradients, a hook. Each with module, line, range of what flowed in, and how it was made (overflow, division by
        zero, 0 * inf, …), as far as the kind of the node, what it has saved and what flowed in show it. Infinities that
        reach neither the loss nor a gradient, as those of a mask, are no fault.

        Gradients are there with `capture(gradients="nodes")`, saved tensors until the session is closed and as long as
        nothing writes to them: `optimizer.step()` does to parameters.

        Raises:
            CabwError: the session is closed, or the capture is a record alone.
        """
        nonfinite = search(self._captured)
        self._keep(nonfinite=nonfinite)
        return NonFiniteReport(nonfinite)

    def lower(self, *, hooks: HookPolicy = "run", symbolic: bool = False, tied: bool = True) -> Lowered:
        """Make an `fx.GraphModule` of aten ops of the captured graph; no kernel runs, nothing is written.

        `lowered(*lowered.example_inputs())` gives the gradients in the order of `lowered.leaves`, and
        `lowered.gradients(other)` those of another capture of this backward, by name; with `symbolic=True` at another
        batch size too. Each node keeps its autograd node, module and line (`node.meta["cabw"]`); `results.lowered`
        lists them.

        Args:
            hooks: `run` traces through them: Python code of hooks and custom Functions runs once, now, on stand-ins
                for tensors, with symbols once more; `drop` leaves hooks out; `refuse` raises if there are any.
            symbolic: let sizes be symbols: the graph holds for other sizes that take the same way, and guards say
                which do. Takes several times as long; every operator is the same as without.
            tied: with symbols, take what had one shape in the captured call to have one shape. False assumes only what
                must be, and takes several times as long again.

        Raises:
            CabwError: it cannot be lowered; names the autograd node and the reason.
        """
        with self._running() as captured:
            lowered = lower(captured, hooks=hooks, symbolic=symbolic, tied=tied)
        self._keep(lowered=lowered_nodes(lowered))
        return lowered

    def times(
        self, repeats: int = 3, device: str | torch.device | None = None, *, hooks: HookPolicy = "run"
    ) -> pd.DataFrame:
        """Run the captured graph again with a clock; a row for each autograd node, the slowest first.

        Measured is each node's call in the graph, run op by op on eager kernels: with PyTorch's way from Python into
        C++, without the interpreter's own part, and without accumulation into `.grad`, which a replay leaves out.
        It is not the time that the engine took in your own run. `results.node_seconds` keeps the seconds.

        Args:
            repeats: how many runs, of which each node's best counts. Hooks run again in each.
            device: where to run it; None for where it was captured. Accelerators are waited for after each node.
            hooks: see `replay`.

        Returns:
            `name`, `module`, `line`, `seconds`, and `share` of the sum; NaN for nodes of which the graph runs nothing.

        Raises:
            CabwError: as `replay`, and where `repeats` is no count.
        """
        with self._running() as captured:
            times = time_nodes(Replay(captured, resolve_target(device), hooks), repeats=repeats)
        self._keep(node_seconds=times.seconds)
        return tables.time_frame(self.record, self.results)

    def missing(self) -> MissingReport:
        """Find the parameters that this backward gave no gradient, and those whose gradient is zero, with the reasons.

        Each reason was seen: the state of the parameter, the calls of its module and the operations that took it in the
        forward of this loss, and where their histories end. What cannot be seen is `not_known`, with what is. Behind a
        gradient that is zero everywhere stands the first autograd node, in the order of the backward, that made zeros
        of what was not. Nothing runs again.

        Reasons are those of `cabw_viz.record.kinds.MissingReason`; `docs/gradients.md` describes them.
        """
        missing = missing_gradients(self._record, self._state)
        self._keep(missing=missing)
        return MissingReport(missing)

    def touches(self) -> pd.DataFrame:
        """A row for every piece of metadata that was read, and by whom; `count` says how often.

        What each graph node reads when it runs is there after `audit()`.

        Raises:
            CabwError: the call was not traced, so that no read was looked for.
        """
        check_traced(self.record, "a trace, in which reads of metadata show")
        return tables.touch_frame(self.record, self.results)

    def audit(self, *, hooks: HookPolicy = "run") -> pd.DataFrame:
        """Run the captured graph once on watched tensors, and note what each of its nodes reads and runs.

        Metadata read from C++ is seen too, except dtype, which C++ asks nobody for. A read of values (`.item()`,
        `nonzero`) has an attribute of its own, `data`. Nothing is written, hooks as in `replay`. The touches of the
        last audit are replaced.

        Args:
            hooks: see `replay`.

        Returns:
            `touches()`.

        Raises:
            CabwError: as `replay`, and where a tensor of a subclass (DTensor) is met, which cannot be watched.
        """
        with self._running() as captured:
            self._keep(execution=audit_of.audit(captured, hooks).touches)
        return self.touches()

    def __repr__(self) -> str:
        return self.outline()

    def html(self, level: Level = "module") -> str:
        """The capture as part of a page, drawn at a level: what a notebook shows."""
        return capture_html(self.record, self.results, level)

    def inspect(self, **traits: Any) -> Inspector:
        """The inspector of this capture alone; see `Session.inspect`."""
        from cabw_viz.surfaces.inspector import create_inspector

        return create_inspector([self], (), traits)

    def to_html(self, path: str | Path) -> Path:
        """Write the inspector of this capture to one HTML file; see `Session.to_html`.

        Raises:
            CabwError: it cannot be written there.
        """
        page = inspector_page("cabw_viz: capture", [(self.record, self.results)], (), cell_files())
        return write_file(path_named(path, EXAMPLE), page, EXAMPLE)

    def _repr_mimebundle_(self, **_: object) -> MimeBundle:
        from cabw_viz.surfaces.inspector import widget_view

        return widget_view([self])

    def _repr_html_(self) -> str:
        return self.html()
