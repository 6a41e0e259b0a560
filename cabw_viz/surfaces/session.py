"""The block in which backwards are captured, and what it leaves in hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from cabw_viz.analysis.drawing import Level
from cabw_viz.errors import CabwError
from cabw_viz.record.model import BackwardCall, CaptureRecord, Failure
from cabw_viz.replay import audit as audit_of
from cabw_viz.replay import parity as parity_of
from cabw_viz.replay.runner import HookPolicy, replay
from cabw_viz.surfaces.report import ParityReport
from cabw_viz.tracing.recorder import Captured, Recorder
from cabw_viz.tracing.source_lines import Lines
from cabw_viz.views import tables
from cabw_viz.views.html import capture_html, session_html
from cabw_viz.views.inspector.page import inspector_page
from cabw_viz.views.outline import outline, outline_session
from cabw_viz.views.render import GraphView, graph_view

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import torch
    from typing_extensions import Self

    from cabw_viz.record.comparison import Comparison
    from cabw_viz.surfaces.inspector import Contents, Inspector

RUNS = ("eager", "compiled")
GRADIENTS = ("leaves", "none")
LINES = ("auto", True, False)


def capture(
    subject: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
    *,
    run: Literal["eager", "compiled"] = "eager",
    only: int | slice | Callable[[BackwardCall], bool] | None = None,
    gradients: Literal["leaves", "none"] = "leaves",
    snapshot: bool = False,
    tripwire: bool = True,
    lines: Lines = "auto",
) -> Session:
    """Capture every backward made in a `with` block; the code in the block sees no difference.

    Each backward is traced by compiled autograd without running, then made in eager as the user made it.
    Parameters, saved tensors and a copy of each leaf's gradient stay alive until the session is closed or
    collected.

    Args:
        subject: names the leaves: a module (its parameters' and buffers' names), a mapping of names to tensors, or
            nothing (`param_0 (8, 4)` and so on).
        run: `compiled` runs each backward through compiled autograd instead, as it is. Where the user has compiled
            autograd on, their compiler function stays in charge whatever is said here.
        only: which backward calls to capture, counted from 0 in the block: a number, a slice, or a function of a
            `BackwardCall`. Tracing costs about 0.45 ms for each graph node.
        gradients: `leaves` keeps a copy of each leaf's gradient as the reference for parity, `none` keeps none.
        snapshot: copy the inputs of each captured graph, so that parity works after `optimizer.step()`.
        tripwire: note who reads the metadata of the tensors that are traced, or looks for it in the finished graph;
            see `Capture.touches`. Costs a few percent of the capture.
        lines: note the line of your code that ran each forward op: `True`, `False`, or `auto`, which leaves it off
            where the subject or anything in the process was compiled before. The note-taking is a TorchFunctionMode,
            below all others and outside of compiled regions.

    Raises:
        CabwError: an argument is not one of these, or torch is not one this package can read. Entering the block
            raises it where another block is open.
    """
    _check("run", run, RUNS)
    _check("gradients", gradients, GRADIENTS)
    _check("lines", lines, LINES)
    return Session(
        Recorder(subject, run=run, only=only, gradients=gradients, snapshot=snapshot, tripwire=tripwire, lines=lines)
    )


def _check(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(type(value) is type(each) and value == each for each in allowed):  # 1 is not True here
        raise CabwError(f"capture() got {name}={value!r}", expected="one of " + ", ".join(map(repr, allowed)))


class Session:
    """What one block saw: its captures in order, and a row for every backward call."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._captures: list[Capture] = []
        self._entered = False
        self._closed = False

    def __enter__(self) -> Self:
        if self._entered:
            raise CabwError(
                "this session has been entered before",
                expected="one block for one session",
                try_="with cabw_viz.capture(model) as session: ...",
            )
        self._recorder.install()
        self._entered = True
        return self

    def __exit__(self, *exc: object) -> None:
        self._recorder.uninstall()

    def close(self) -> None:
        """Let go of every tensor; records, tables and pictures stay."""
        self._closed = True
        self._recorder.release()

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._closed

    def _all(self) -> list[Capture]:
        for captured in self._recorder.captures[len(self._captures) :]:
            self._captures.append(Capture(captured))
        return self._captures

    def __len__(self) -> int:
        return len(self._recorder.captures)

    def __iter__(self) -> Iterator[Capture]:
        return iter(self._all())

    def __getitem__(self, index: int) -> Capture:
        """A capture by its place.

        Raises:
            CabwError: there is none at this place; says what became of the block's backward calls.
        """
        captures = self._all()
        try:
            return captures[index]
        except IndexError:
            raise self._no_capture(index) from None

    def _no_capture(self, index: int) -> CabwError:
        events = self._recorder.events
        if not self._entered:
            seen, try_ = "the session's block has not been entered", "with session: loss.backward()"
        elif not events:
            seen = "no backward ran in the block"
            try_ = "calling .backward() or torch.autograd.grad inside the with block"
        elif not len(self):
            last = f"the last was {events[-1].outcome}: {events[-1].reason}"
            seen = f"none of the block's {len(events)} backward calls was captured; {last}"
            try_ = "session.events, which says why for each"
        else:
            seen, try_ = f"there is no capture {index}", "session.events, which lists every backward call"
        return NoCaptureError(
            seen, expected=f"an index below {len(self)}" if len(self) else "a captured backward", try_=try_
        )

    @property
    def events(self) -> pd.DataFrame:
        """A row for every backward call: outcome `captured`, `cache_hit`, `failed` or `bypassed`, and why."""
        return tables.event_frame(self._recorder.events)

    def __repr__(self) -> str:
        return outline_session(self._recorder.events, [captured.record for captured in self._recorder.captures])

    def html(self, level: Level = "autograd") -> str:
        """The session as part of a page, its captures drawn at a level: what a notebook shows."""
        records = [captured.record for captured in self._recorder.captures]
        return session_html(self._recorder.events, records, level)

    def inspect(self, **traits: Any) -> Inspector:
        """The inspector, a widget: the session's captures, drawn and searchable, with all that is known of them.

        Args:
            traits: `capture`, `selection`, `level`, `expanded`, `color_by` and `query` to begin with.
        """
        from cabw_viz.surfaces.inspector import Inspector

        return Inspector(self._contents(), **traits)

    def to_html(self, path: str | Path) -> Path:
        """Write the inspector with all captures to one HTML file that needs no kernel and no network.

        Raises:
            CabwError: it cannot be written there.
        """
        captures = self._all()
        records, events = [captured.record for captured in captures], self._recorder.events
        return _written(path, inspector_page("cabw_viz: session", records, events, _comparisons(captures)))

    def _contents(self) -> Contents:
        from cabw_viz.surfaces.inspector import Contents

        captures = self._all()
        records = [captured.record for captured in captures]
        return Contents(records, tuple(self._recorder.events), captures, _comparisons(captures))

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        """The inspector where a front end can show one; IPython adds `_repr_html_` and `__repr__` for the others."""
        from cabw_viz.surfaces.inspector import widget_view

        return widget_view(self._contents)

    def _repr_html_(self) -> str:
        return self.html()


class NoCaptureError(CabwError, IndexError):
    """A session has no capture at an index; an IndexError too, so that loops over indices end as usual."""


def _comparisons(captures: Sequence[Capture]) -> dict[int, Comparison]:
    return {index: cap.compared for index, cap in enumerate(captures) if cap.compared is not None}


def _written(path: str | Path, text: str) -> Path:
    from pathlib import Path

    target = Path(path)
    try:
        target.write_text(text, "utf-8")
    except OSError as error:
        raise CabwError(
            f"{target} cannot be written to: {error.strerror or error}",
            expected="a path to a file in a folder that is there",
            try_='session.to_html("run.html")',
        ) from error
    return target


class Capture:
    """One captured backward."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self.compared: Comparison | None = None
        """What `parity()` came to when it was last called; None before."""

    @property
    def record(self) -> CaptureRecord:
        """The plain data: autograd nodes, graph nodes, lifted inputs and sizes, leaves."""
        return self._captured.record

    @property
    def error(self) -> Failure | None:
        """None, or what stopped this backward, and at which autograd node."""
        return self.record.failure

    @property
    def nodes(self) -> pd.DataFrame:
        """A row for every autograd node, by NodeCall number."""
        return tables.node_frame(self.record)

    def held(self, depth: int | None = None) -> pd.DataFrame:
        """A row for each module: the bytes that its nodes keep until their backward has run, the most first.

        `bytes` counts each storage once in its module; `shared` says how many of them the modules in `shared_with`
        keep too, `named` how many belong to parameters, buffers and leaves, `packed` how many tensors hooks packed.

        Args:
            depth: parts of the modules' paths that count: 2 adds up all that is below `layers.3`.
        """
        return tables.held_frame(self.record, depth)

    def graph(self, level: Level = "autograd", *, plumbing: bool = False) -> GraphView:
        """The graph as a picture; shows itself in a notebook.

        Args:
            level: `autograd` draws a box for each autograd node, `fx` one for each node of the captured graph.
            plumbing: at level `fx`, draw lifted inputs, sizes and `getitem` too.

        Raises:
            CabwError: there is no such level.
        """
        return graph_view(self.record, level, plumbing=plumbing)

    def outline(self, *, full: bool = False) -> str:
        """The graph as text, a line for each autograd node; long ones shortened unless `full`."""
        return outline(self.record, full=full)

    def replay(self, *, hooks: HookPolicy = "run") -> dict[str, torch.Tensor]:
        """Run the captured graph again and return the gradients by name; nothing is written.

        A tied parameter stands under each of its names. Post-accumulate hooks are left out; other hooks run
        again unless `hooks="drop"`, and `hooks="refuse"` raises if there are any.

        Raises:
            CabwError: the session is closed, an input was changed in place, or PyTorch cannot run the graph.
        """
        found = replay(self.record, self._captured.live, hooks=hooks)
        return {name: gradient for index, gradient in found.items() for name in self.record.leaves[index].names}

    def parity(
        self, *, rtol: float | None = None, atol: float | None = None, hooks: HookPolicy = "run"
    ) -> ParityReport:
        """Run the captured graph again and compare its gradients with those of the user's own run.

        Args:
            rtol: relative tolerance; together with `atol`. Default: torch.testing's for the dtype.
            atol: tolerance in units of the largest element of the gradient.
            hooks: see `replay`.

        Raises:
            CabwError: as `replay`, and where the user's own run left no reference.
        """
        comparison = parity_of.parity(self.record, self._captured.live, hooks=hooks, rtol=rtol, atol=atol)
        self.compared = comparison
        return ParityReport(comparison)

    def touches(self) -> pd.DataFrame:
        """A row for every piece of metadata that was read, and by whom; `count` says how often.

        What each graph node reads when it runs is there after `audit()`.
        """
        return tables.touch_frame(self.record)

    def audit(self, *, hooks: HookPolicy = "run") -> pd.DataFrame:
        """Run the captured graph once on watched tensors, and note what each of its nodes reads and runs.

        Metadata read from C++ is seen too, except dtype, which C++ asks nobody for. A read of values (`.item()`,
        `nonzero`) has an attribute of its own, `data`. Nothing is written, hooks as in `replay`. The touches of phase
        `execution` in the record are replaced.

        Args:
            hooks: see `replay`.

        Returns:
            `touches()`.

        Raises:
            CabwError: as `replay`, and where a tensor of a subclass (DTensor) is met, which cannot be watched.
        """
        touches = audit_of.audit(self.record, self._captured.live, hooks=hooks)
        others = tuple(touch for touch in self.record.touches if touch.phase != "execution")
        watched = tuple(dict.fromkeys((*self.record.watched, "execution")))
        self._captured.record = replace(self.record, touches=others + touches, watched=watched)
        return self.touches()

    def __repr__(self) -> str:
        return self.outline()

    def html(self, level: Level = "autograd") -> str:
        """The capture as part of a page, drawn at a level: what a notebook shows."""
        return capture_html(self.record, level)

    def inspect(self, **traits: Any) -> Inspector:
        """The inspector of this capture alone; see `Session.inspect`."""
        from cabw_viz.surfaces.inspector import Inspector

        return Inspector(self._contents(), **traits)

    def to_html(self, path: str | Path) -> Path:
        """Write the inspector of this capture to one HTML file; see `Session.to_html`.

        Raises:
            CabwError: it cannot be written there.
        """
        return _written(path, inspector_page("cabw_viz: capture", [self.record], (), _comparisons([self])))

    def _contents(self) -> Contents:
        from cabw_viz.surfaces.inspector import Contents

        return Contents([self.record], (), [self], _comparisons([self]))

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        from cabw_viz.surfaces.inspector import widget_view

        return widget_view(self._contents)

    def _repr_html_(self) -> str:
        return self.html()
