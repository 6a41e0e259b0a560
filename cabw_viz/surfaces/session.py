"""`cabw_viz.capture`: the block in which backwards are captured, and the session that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cabw_viz.errors import CabwError
from cabw_viz.record.model import BackwardCall, CaptureRecord, Event, Failure
from cabw_viz.record.options import GradientsMode, Level, LinesMode, RunMode
from cabw_viz.record.results import NO_RESULTS, CaptureData
from cabw_viz.runtime.capture_state import CaptureState
from cabw_viz.runtime.stack_frames import cell_files
from cabw_viz.surfaces.capture import Capture
from cabw_viz.tracing.capture_options import CaptureOptions
from cabw_viz.tracing.recorder import Recorder
from cabw_viz.views import tables
from cabw_viz.views.files import path_named, write_file
from cabw_viz.views.html import session_html
from cabw_viz.views.inspector.page import inspector_page
from cabw_viz.views.outline import outline_session

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import torch
    from typing_extensions import Self

    from cabw_viz.surfaces.inspector import Inspector, MimeBundle


def capture(  # noqa: PLR0913  # every one of these is a choice of its own, and given by its name
    subject: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
    *,
    run: RunMode = "eager",
    only: int | slice | Callable[[BackwardCall], bool] | None = None,
    gradients: GradientsMode = "nodes",
    max_bytes: int = 512 * 2**20,
    snapshot: bool = False,
    inner: bool = False,
    tripwire: bool = True,
    lines: LinesMode = "auto",
    trace: bool = True,
) -> Session:
    """Capture every backward made in a `with` block; the code in the block sees no difference.

    Each backward is traced by compiled autograd without running, then made in eager as the user made it.
    Parameters, saved tensors and copies of gradients stay alive until the session is closed or collected: of the
    leaves, and of all autograd nodes in at most `max_bytes`.

    Args:
        subject: names the leaves: a module (its parameters' and buffers' names), a mapping of names to tensors, or
            nothing (`param_0 (8, 4)` and so on).
        run: `compiled` runs each backward through compiled autograd instead, as it is. Where the user has compiled
            autograd on, their compiler function stays in charge whatever is said here.
        only: which backward calls to capture, counted from 0 in the block: a number, a slice, or a function of a
            `BackwardCall`. Tracing costs about 0.45 ms for each graph node.
        gradients: what is kept of the gradients of your own run. `nodes`: those into and out of every autograd node,
            for `Capture.divergence`; `leaves`: a copy of each leaf's gradient, the reference for parity; `none`.
            What flows on unchanged is kept once. Of a run through compiled autograd only the leaves' can be had.
        max_bytes: how much the gradients of the nodes may take, in the whole block and beside the leaves'. Above it
            fingerprints stand in for them: norm, range, a hash of the bits, samples.
        snapshot: copy the inputs of each captured graph, what saved-tensor hooks have packed, and what the modules
            inside of checkpoints hold, so that parity works after `optimizer.step()`.
        inner: capture the backwards that code inside a captured one makes to accumulate gradients, too, as reentrant
            checkpoints do (torch 2.13 and later, and in the thread of the block). What such checkpoints have computed
            again then stays alive until the session is closed, as if there were none.
        tripwire: note who reads the metadata of the tensors that are traced, or looks for it in the finished graph;
            see `Capture.touches`. Costs a few percent of the capture.
        lines: note the line of your code that ran each forward op: `True`, `False`, or `auto`, which leaves it off
            where the subject or anything in the process was compiled before. The note-taking is a TorchFunctionMode,
            below all others and outside of compiled regions.
        trace: False makes no graph: each backward runs in eager, and what needs none is kept: autograd nodes with
            module, line, hooks and saved tensors, gradients, memory. What needs the graph (replays, parity, divergence,
            lowering, times, metadata, levels `fx` and `aten`) raises a CabwError. It costs a small part of a step, and
            works where compiled autograd cannot trace: nested tensors, torch.func, C++ hooks. `run`, `snapshot` and
            `tripwire` have no meaning then.

    Raises:
        CabwError: an argument is not one of these, or torch is not one this package can read. Entering the block
            raises it where another block is open.
    """
    options = CaptureOptions(run, only, gradients, max_bytes, snapshot, inner, tripwire, lines, trace)
    return Session(subject, options)


class SessionLog:
    """A session's captures and events, in order.

    The session owns it and its recorder adds to it. The recorder does not hold the session itself: in such a circle
    a session that nothing refers to any longer would keep its tensors alive until the garbage collector runs.
    """

    def __init__(self) -> None:
        self.captures: list[Capture] = []
        self.events: list[Event] = []

    def add_capture(self, record: CaptureRecord, state: CaptureState) -> int:
        """Add a capture; returns its index."""
        self.captures.append(Capture(record, NO_RESULTS, state))
        return len(self.captures) - 1

    def update_record(self, index: int, record: CaptureRecord) -> None:
        """Replace the record of a capture."""
        self.captures[index]._record = record  # noqa: SLF001  # tracing goes on after the capture was added

    def add_event(self, event: Event) -> None:
        """Add the event of a backward call."""
        self.events.append(event)

    def add_run_failure(self, index: int, failure: Failure) -> None:
        """Note in a capture's record and in its event that the run of the captured call raised."""
        self.update_record(index, replace(self.captures[index].record, failure=failure))
        position = next(
            i for i, event in enumerate(self.events) if event.outcome != "cache_hit" and event.capture == index
        )
        event = self.events[position]
        self.events[position] = replace(event, reason=f"{event.reason}; the run raised {failure}".removeprefix("; "))


class Session:
    """What one block saw: its captures in order, and a row for every backward call."""

    def __init__(self, subject: Any, options: CaptureOptions) -> None:
        self._log = SessionLog()
        self._recorder = Recorder(subject, options, self._log)
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
        """Release every tensor; records, tables and pictures stay."""
        self._closed = True
        for capture in self._log.captures:
            capture._release()  # noqa: SLF001  # the session owns its captures
        self._recorder.forget_subject()

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._closed

    def __len__(self) -> int:
        return len(self._log.captures)

    def __iter__(self) -> Iterator[Capture]:
        return iter(self._log.captures)

    def __getitem__(self, index: int) -> Capture:
        """A capture by its index.

        Raises:
            CabwError: there is none at this index; says what became of the block's backward calls.
        """
        captures = self._log.captures
        try:
            return captures[index]
        except IndexError:
            raise self._no_capture(index) from None

    def _no_capture(self, index: int) -> CabwError:
        events = self._log.events
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
        """A row for every backward call: outcome `captured`, `watched`, `cache_hit`, `failed` or `bypassed`."""
        return tables.event_frame(self._log.events)

    def __repr__(self) -> str:
        return outline_session(self._log.events, [capture.record for capture in self._log.captures])

    def html(self, level: Level = "module") -> str:
        """The session as part of a page, its captures drawn at a level: what a notebook shows."""
        return session_html(self._log.events, self._data(), level)

    def _data(self) -> list[CaptureData]:
        return [(capture.record, capture.results) for capture in self._log.captures]

    def inspect(self, **traits: Any) -> Inspector:
        """The inspector, a widget: the session's captures, drawn and searchable, with all that is known of them.

        Args:
            traits: `capture`, `selection`, `level`, `expanded`, `color_by` and `query` to begin with.

        Raises:
            CabwError: there is no such trait, or not with such a value.
        """
        from cabw_viz.surfaces.inspector import create_inspector

        return create_inspector(self._log.captures, self._log.events, traits)

    def to_html(self, path: str | Path) -> Path:
        """Write the inspector with all captures to one HTML file that needs no kernel and no network.

        Raises:
            CabwError: it cannot be written there.
        """
        page = inspector_page("cabw_viz: session", self._data(), self._log.events, cell_files())
        example = 'session.to_html("run.html")'
        return write_file(path_named(path, example), page, example)

    def _repr_mimebundle_(self, **_: object) -> MimeBundle:
        """The inspector where a front end can show one; IPython adds `_repr_html_` and `__repr__` for the others."""
        from cabw_viz.surfaces.inspector import widget_view

        return widget_view(self._log.captures, self._log.events)

    def _repr_html_(self) -> str:
        return self.html()


class NoCaptureError(CabwError, IndexError):
    """A session has no capture at an index; an IndexError too, so that loops over indices end as usual."""
