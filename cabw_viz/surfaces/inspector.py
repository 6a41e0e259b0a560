"""The inspector as a widget: what is selected, open, searched and coloured can be read, set and observed."""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import anywidget
import traitlets

from cabw_viz.analysis.module_tree import module_tree
from cabw_viz.errors import CabwError
from cabw_viz.record.model import AutogradNode, CaptureRecord, Event, GraphNode
from cabw_viz.record.options import COLORS, HOOK_POLICIES, LEVELS
from cabw_viz.record.results import NO_RESULTS, CaptureData, Results
from cabw_viz.replay.progress import progress_to
from cabw_viz.runtime.stack_frames import cell_files
from cabw_viz.views.inspector import columns, findings
from cabw_viz.views.inspector.bundle import STYLE, inspector_script
from cabw_viz.views.inspector.page import NO_CAPTURE

MIME = "application/vnd.jupyter.widget-view+json"

MimeBundle = dict[str, object] | tuple[dict[str, object], dict[str, object]]
"""The forms of an object that IPython shows, by MIME type; with metadata in a second dict."""

SETTABLE = "any of capture, selection, expanded, level, color_by, query"

TASKS = ("parity", "audit", "divergence", "lower", "times")
"""The methods of a capture that a panel may call; their results come back as the capture's `results`."""

AS_CAPTURED = "as captured"
"""The choice that leaves an option out."""


class CaptureApi(Protocol):
    """What the inspector needs of a capture, beside its methods named in `TASKS`."""

    @property
    def record(self) -> CaptureRecord:
        """What was captured."""

    @property
    def results(self) -> Results:
        """What was computed of it so far."""

    @property
    def has_state(self) -> bool:
        """Whether there is a captured graph that the tasks could run."""


class Inspector(anywidget.AnyWidget):
    """An interactive view of a session's captures.

    It holds records and results, not tensors: it goes on showing them when its session is gone, and says then that
    there is nothing left to run.

    Args:
        captures: what is shown; held weakly, for ipywidgets keeps every widget that was ever shown.
        events: the backward calls of their session.
        traits: the traits to begin with.
    """

    _esm = inspector_script()
    _css = STYLE

    session = traitlets.Bytes().tag(sync=True)
    data = traitlets.Bytes().tag(sync=True)
    touches = traitlets.Bytes().tag(sync=True)
    parity = traitlets.Bytes().tag(sync=True)
    divergence = traitlets.Bytes().tag(sync=True)
    times = traitlets.Bytes().tag(sync=True)
    nonfinite = traitlets.Bytes().tag(sync=True)
    code = traitlets.Bytes().tag(sync=True)  # empty until the browser asks: it outweighs the graph
    aten = traitlets.Bytes().tag(sync=True)  # the same of the lowered graph
    capture = traitlets.Int(0, help="which capture of the session is shown").tag(sync=True)
    selection = traitlets.Unicode("", help='"n307", "g:layers.6", "f12", "a12"; empty for nothing').tag(sync=True)
    expanded = traitlets.List(traitlets.Unicode(), help='paths of open groups; ["*", "!layers.5"] is all but one').tag(
        sync=True
    )
    level = traitlets.Unicode(
        "module", help="what is drawn: module, autograd, fx or aten; empty for modules of which some are open"
    ).tag(sync=True)
    color_by = traitlets.Enum(COLORS, "family").tag(sync=True)
    query = traitlets.Unicode("", help="what is searched: words of names, is:touched, has:hook, #307").tag(sync=True)
    kernel = traitlets.Bool(default_value=True, read_only=True).tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)
    task = traitlets.Dict().tag(sync=True)

    def __init__(self, captures: Sequence[CaptureApi], events: Iterable[Event] = (), **traits: Any) -> None:
        self._captures = [weakref.ref(capture) for capture in captures]
        self._data: list[CaptureData] = [(capture.record, capture.results) for capture in captures]
        super().__init__(
            session=findings.pack_session([record for record, _ in self._data], events),
            choices=choices_of(captures[0]) if captures else {},
            **self._packed_capture(0),
            **traits,
        )
        self.observe(self._show_capture, "capture")
        self.on_msg(self._on_message)

    # ------------------------------------------------------------------------------------------------- for its user

    @property
    def record(self) -> CaptureRecord:
        """The record of the capture that is shown."""
        return self._shown_data(self.capture)[0]

    @property
    def results(self) -> Results:
        """What was computed of the capture that is shown."""
        return self._shown_data(self.capture)[1]

    @property
    def selected(self) -> AutogradNode | GraphNode | tuple[AutogradNode, ...] | None:
        """What is selected: an autograd node, a graph node, all autograd nodes of a group; None where nothing is."""
        kind, rest = self.selection[:1], self.selection[1:]
        if kind == "n" and rest.isdecimal():
            return self.record.by_number.get(int(rest))
        if kind in ("f", "a") and rest.isdecimal():
            graph = self.record.graph_nodes if kind == "f" else self.results.lowered
            return next((node for node in graph if node.ordinal == int(rest)), None)
        if not self.selection.startswith("g:"):
            return None
        # As in focus=: the path of a module that is drawn in parts names all of them, `mlp@2` one.
        groups = module_tree(self.record).named(rest[1:])
        numbers = {number for group in groups for number in group.nodes}
        return tuple(node for node in self.record.autograd_nodes if node.number in numbers)

    def refresh(self) -> None:
        """Show what was computed of the captures since, by hand or in another inspector."""
        lowered = self.results.lowered
        for index, reference in enumerate(self._captures):
            if (capture := reference()) is not None:
                self._data[index] = capture.record, capture.results
        with self.hold_sync():  # a part that is as it was is not sent again
            for name, part in findings.pack_results(*self._shown_data(self.capture), self.capture).items():
                self.set_trait(name, part)
            if self.results.lowered is not lowered:
                self.aten = columns.pack_lowered(self.record, self.results, self.capture)

    @traitlets.validate("capture")
    def _valid_capture(self, proposal: Any) -> int:
        index = int(proposal["value"])
        if not 0 <= index < max(len(self._data), 1):
            raise traitlets.TraitError(f"there is no capture {index}; this session has {len(self._data)}")
        return index

    @traitlets.validate("level")
    def _valid_level(self, proposal: Any) -> str:
        if proposal["value"] not in (*LEVELS, ""):
            raise traitlets.TraitError(f"there is no level {proposal['value']!r}; expected one of {', '.join(LEVELS)}")
        return str(proposal["value"])

    def __repr__(self) -> str:
        return f"Inspector(capture={self.capture}, level={self.level!r}, selection={self.selection!r})"

    # ----------------------------------------------------------------------------------------- for the browser's side

    def _shown_data(self, index: int) -> CaptureData:
        return self._data[index] if self._data else (NO_CAPTURE, NO_RESULTS)

    def _packed_capture(self, index: int) -> dict[str, bytes]:
        """The parts of a capture without its code, which is packed when the browser asks for it."""
        record, results = self._shown_data(index)
        graph = columns.pack_graph(record, results, index, cell_files())
        return {**findings.pack_results(record, results, index), "data": graph}

    def _show_capture(self, _: object) -> None:
        """Put another capture into the traits, and clear the old one's selection and code."""
        with self.hold_sync():
            self.code, self.aten, self.selection, self.expanded, self.task = b"", b"", "", [], {}
            for name, part in self._packed_capture(self.capture).items():
                self.set_trait(name, part)

    def _on_message(self, _: object, content: dict[str, Any], _buffers: Sequence[object]) -> None:
        """Answer the browser's side, which asks for code that it has not got yet, or for a task."""
        kind, what = content.get("type"), content.get("what")
        if kind == "code" and not self.code:
            self.code = columns.pack_code(self.record, self.capture)
        elif kind == "aten" and not self.aten:
            self.refresh()  # the capture may have been lowered by hand since
            self.aten = columns.pack_lowered(self.record, self.results, self.capture)
        elif kind == "run" and what in TASKS:
            self._run(str(what), dict(content.get("options") or {}))

    def _run(self, what: str, options: dict[str, Any]) -> None:
        """Run a task, and show in the panel how it goes. An error is shown there too: the browser shows no log."""
        self.task = {"what": what, "state": "running"}
        start = time.perf_counter()
        try:
            capture = self._alive_capture()
            with progress_to(lambda _, done, total: self._report_progress(what, done / max(total, 1))):
                getattr(capture, what)(**valid_options(capture, what, options))
            self.refresh()
        except KeyboardInterrupt:
            self.task = {"what": what, "state": "interrupted"}
        except Exception as error:  # noqa: BLE001  # a hook of the user's may raise anything; the panel shows it
            text = str(error) if isinstance(error, CabwError) else f"{type(error).__name__}: {error}"
            self.task = {"what": what, "state": "failed", "error": text}
        else:
            self.task = {"what": what, "state": "done", "seconds": time.perf_counter() - start}

    def _report_progress(self, what: str, share: float) -> None:
        """Show how much of the graph has run; a task may run the graph several times."""
        self.task = {"what": what, "state": "running", "share": min(share, 1.0)}

    def _alive_capture(self) -> CaptureApi:
        capture = self._captures[self.capture]() if self._captures else None
        if capture is None:
            raise CabwError(
                "the session of this capture is gone, and its tensors with it",
                expected="a session that is still held by a variable",
                try_="with cabw_viz.capture(model) as session: ..., then session.inspect()",
            )
        return capture


def create_inspector(captures: Sequence[CaptureApi], events: Iterable[Event], traits: Mapping[str, Any]) -> Inspector:
    """The inspector, with the traits that a user has given.

    Raises:
        CabwError: there is no such trait, or not with such a value.
    """
    try_ = 'session.inspect(level="autograd", color_by="bytes")'
    unknown = [name for name in traits if name not in Inspector.class_trait_names()]
    if unknown:
        raise CabwError(f"inspect() got {unknown[0]}={traits[unknown[0]]!r}", expected=SETTABLE, try_=try_)
    try:
        return Inspector(captures, events, **traits)
    except traitlets.TraitError as error:
        raise CabwError(f"inspect(): {str(error).rstrip('.')}", expected=SETTABLE, try_=try_) from None


def widget_view(captures: Sequence[CaptureApi], events: Iterable[Event] = ()) -> MimeBundle:
    """The inspector in the form in which a cell shows it; empty outside of a Jupyter kernel, where no cell could."""
    from IPython.core.getipython import get_ipython

    if getattr(get_ipython(), "kernel", None) is None:
        return {}
    bundle = Inspector(captures, events)._repr_mimebundle_()
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    if not data or MIME not in data:
        return {}
    return {MIME: data[MIME]}, metadata  # Colab finds in the metadata what shows widgets


# ---------------------------------------------------------------------------------------------------------------- tasks


def choices_of(capture: CaptureApi) -> dict[str, dict[str, list[str]]]:
    """The options with which each task may be run on this machine, the default first; empty if none can be run."""
    if not capture.has_state:
        return {}
    from cabw_viz.replay.placement.devices import (
        available_devices,
    )  # imports torch, which a record can be shown without

    devices = available_devices()
    values: dict[str, list[str]] = {
        "device": [AS_CAPTURED, *devices] if len(devices) > 1 else devices,
        "dtype": [AS_CAPTURED, "float64", "float32", "bfloat16", "float16"],
        "backend": ["eager", *_compilers()],
        "hooks": list(HOOK_POLICIES),
    }
    parameters = {what: inspect.signature(getattr(capture, what)).parameters for what in TASKS}
    return {what: {name: values[name] for name in values if name in names} for what, names in parameters.items()}


def _compilers() -> list[str]:
    """The compilers of this torch that need no other package."""
    import torch

    installed = torch.compiler.list_backends(exclude_tags=())
    names = ["aot_eager", "inductor", *(["cudagraphs"] if torch.cuda.is_available() else [])]
    return [name for name in names if name in installed]


def valid_options(capture: CaptureApi, what: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are among the choices: a message from a page is not to be trusted with more."""
    choices = choices_of(capture).get(what, {})
    # The first choice is the default, and is left out.
    return {name: value for name, value in options.items() if value in choices.get(name, ())[1:]}
