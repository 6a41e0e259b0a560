"""The inspector as a widget: what is selected, open, searched and coloured can be read, set and observed."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anywidget
import traitlets

from cabw_viz.errors import CabwError
from cabw_viz.record.comparison import Comparison
from cabw_viz.record.divergence import Divergence
from cabw_viz.record.model import AutogradNode, CaptureRecord, Event, GraphNode
from cabw_viz.record.options import COLORS, LEVELS
from cabw_viz.replay.progress import progress_to
from cabw_viz.runtime.stack_frames import cell_files
from cabw_viz.surfaces.inspector_tasks import CaptureApi, allowed, choices_of
from cabw_viz.views.inspector import columns, findings
from cabw_viz.views.inspector.bundle import STYLE, inspector_script
from cabw_viz.views.inspector.diverging import pack_divergence
from cabw_viz.views.inspector.page import NO_CAPTURE

MIME = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Contents:
    """What an inspector shows: records, which stay, and captures, which it does not keep alive."""

    records: Sequence[CaptureRecord]
    events: Sequence[Event]
    captures: Sequence[CaptureApi]
    comparisons: Mapping[int, Comparison]
    """What parity came to so far, by the place of the capture."""
    divergences: Mapping[int, Divergence]
    """What the search for the first divergence came to so far, likewise."""


class Inspector(anywidget.AnyWidget):
    """An interactive view of a session's captures.

    It holds records, not tensors: it goes on showing them when its session is gone, and says then that there is
    nothing left to run.
    """

    _esm = inspector_script()
    _css = STYLE

    session = traitlets.Bytes().tag(sync=True)
    data = traitlets.Bytes().tag(sync=True)
    touches = traitlets.Bytes().tag(sync=True)
    parity = traitlets.Bytes().tag(sync=True)
    divergence = traitlets.Bytes().tag(sync=True)
    times = traitlets.Bytes().tag(sync=True)
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
    color_by = traitlets.Enum(COLORS, "kind").tag(sync=True)
    query = traitlets.Unicode("", help="what is searched: words of names, is:touched, has:hook, #307").tag(sync=True)
    kernel = traitlets.Bool(default_value=True, read_only=True).tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)
    task = traitlets.Dict().tag(sync=True)

    def __init__(self, contents: Contents, **traits: Any) -> None:
        self._records = list(contents.records)
        # Weak: ipywidgets keeps every widget that was ever shown, and captures hold tensors.
        self._captures = [weakref.ref(capture) for capture in contents.captures]
        self._comparisons = dict(contents.comparisons)
        self._divergences = dict(contents.divergences)
        choices = choices_of(contents.captures[0]) if contents.captures else {}
        super().__init__(
            session=findings.pack_session(contents.records, contents.events),
            choices=choices,
            **self._packed(),
            **traits,
        )
        self.observe(self._show, "capture")
        self.on_msg(self._asked)

    # ------------------------------------------------------------------------------------------------- for its user

    @property
    def record(self) -> CaptureRecord:
        """The record of the capture that is shown."""
        return self._records[self.capture] if self._records else NO_CAPTURE

    @property
    def selected(self) -> AutogradNode | GraphNode | tuple[AutogradNode, ...] | None:
        """What is selected: an autograd node, a graph node, all autograd nodes of a group; None where nothing is."""
        kind, rest = self.selection[:1], self.selection[1:]
        if kind == "n" and rest.isdecimal():
            return self.record.by_number.get(int(rest))
        if kind in ("f", "a") and rest.isdecimal():
            graph = self.record.graph_nodes if kind == "f" else self.record.lowered
            return next((node for node in graph if node.ordinal == int(rest)), None)
        if not self.selection.startswith("g:"):
            return None
        # A module that its gradient leaves and comes back to is drawn in parts, `mlp` and `mlp@2`: all of it is meant.
        path = ".".join(part.partition("@")[0] for part in rest[1:].split("."))
        modules = columns.modules_of(self.record)
        pairs = zip(self.record.autograd_nodes, modules, strict=True)
        return tuple(node for node, module in pairs if module and f"{module}.".startswith(f"{path}."))

    def refresh(self) -> None:
        """Take over what was computed since of the captures, by hand or in another inspector."""
        for index, reference in enumerate(self._captures):
            if (capture := reference()) is None:
                continue
            self._records[index] = capture.record
            if capture.last_parity is not None:
                self._comparisons[index] = capture.last_parity
            if capture.last_divergence is not None:
                self._divergences[index] = capture.last_divergence
        with self.hold_sync():  # a part that is as it was is not sent again
            for name, part in self._findings(self.capture).items():
                self.set_trait(name, part)

    @traitlets.validate("capture")
    def _existing(self, proposal: Any) -> int:
        index = int(proposal["value"])
        if not 0 <= index < max(len(self._records), 1):
            raise traitlets.TraitError(f"there is no capture {index}; this session has {len(self._records)}")
        return index

    @traitlets.validate("level")
    def _known(self, proposal: Any) -> str:
        if proposal["value"] not in (*LEVELS, ""):
            raise traitlets.TraitError(f"there is no level {proposal['value']!r}; expected one of {', '.join(LEVELS)}")
        return str(proposal["value"])

    def __repr__(self) -> str:
        return f"Inspector(capture={self.capture}, level={self.level!r}, selection={self.selection!r})"

    # ----------------------------------------------------------------------------------------- for the browser's side

    def _packed(self, index: int = 0) -> dict[str, bytes]:
        """The parts of a capture but for its code, which is packed when it is asked for."""
        record = self._records[index] if self._records else NO_CAPTURE
        return {**self._findings(index), "data": columns.pack_graph(record, index, cell_files())}

    def _findings(self, index: int) -> dict[str, bytes]:
        """The parts that may come after the graph."""
        record = self._records[index] if self._records else NO_CAPTURE
        return {
            "touches": findings.pack_touches(record, index),
            "parity": findings.pack_parity(record, self._comparisons.get(index), index),
            "divergence": pack_divergence(record, self._divergences.get(index), index),
            "times": findings.pack_times(record, index),
        }

    def _show(self, _: object) -> None:
        """Put another capture into the traits; what was selected in the old one, and its code, go."""
        with self.hold_sync():
            self.code, self.aten, self.selection, self.expanded, self.task = b"", b"", "", [], {}
            for name, part in self._packed(self.capture).items():
                self.set_trait(name, part)

    def _asked(self, _: object, content: dict[str, Any], _buffers: Sequence[object]) -> None:
        """What the browser's side asks for: code that is not there yet, or something to be computed."""
        kind, what = content.get("type"), content.get("what")
        if kind == "code" and not self.code:
            self.code = columns.pack_code(self.record, self.capture)
        elif kind == "aten" and not self.aten:
            self.refresh()  # it may have been lowered by hand meanwhile
            self.aten = columns.pack_lowered(self.record, self.capture)
        elif kind == "run" and what in self._tasks:
            self._run(str(what), dict(content.get("options") or {}))

    @property
    def _tasks(self) -> dict[str, Callable[..., None]]:
        """What can be computed, by the name of the capture's method."""
        return {
            "parity": self._compare,
            "audit": self._audit,
            "divergence": self._diverge,
            "lower": self._lower,
            "times": self._time,
        }

    def _run(self, what: str, options: dict[str, Any]) -> None:
        """Run a task, and say in the panel how it goes. Nothing it raises is lost in a log that nobody sees."""
        self.task = {"what": what, "state": "running"}
        start = time.perf_counter()
        try:
            capture = self._live()
            with progress_to(lambda _, done, total: self._told(what, done / max(total, 1))):
                self._tasks[what](capture, **allowed(capture, what, options))
        except KeyboardInterrupt:
            self.task = {"what": what, "state": "interrupted"}
        except Exception as error:  # noqa: BLE001  # a hook of the user's may raise anything; the panel shows it
            text = str(error) if isinstance(error, CabwError) else f"{type(error).__name__}: {error}"
            self.task = {"what": what, "state": "failed", "error": text}
        else:
            self.task = {"what": what, "state": "done", "seconds": time.perf_counter() - start}

    def _told(self, what: str, share: float) -> None:
        """How far the run of the graph has come that is under way; a task may need several."""
        self.task = {"what": what, "state": "running", "share": min(share, 1.0)}

    def _live(self) -> CaptureApi:
        found = self._captures[self.capture]() if self._captures else None
        if found is None:
            raise CabwError(
                "the session of this capture is gone, and its tensors with it",
                expected="a session that is still held by a variable",
                try_="with cabw_viz.capture(model) as session: ..., then session.inspect()",
            )
        return found

    def _compare(self, capture: CaptureApi, **options: Any) -> None:
        comparison = capture.parity(**options).comparison
        self._comparisons[self.capture] = comparison
        self.parity = findings.pack_parity(self.record, comparison, self.capture)

    def _diverge(self, capture: CaptureApi, **options: Any) -> None:
        divergence = capture.divergence(**options).divergence
        self._divergences[self.capture] = divergence
        self.divergence = pack_divergence(self.record, divergence, self.capture)

    def _audit(self, capture: CaptureApi, **options: Any) -> None:
        capture.audit(**options)
        self._records[self.capture] = capture.record
        self.touches = findings.pack_touches(self.record, self.capture)

    def _lower(self, capture: CaptureApi, **options: Any) -> None:
        capture.lower(**options)
        self._records[self.capture] = capture.record
        self.aten = columns.pack_lowered(self.record, self.capture)

    def _time(self, capture: CaptureApi, **options: Any) -> None:
        capture.times(**options)
        self._records[self.capture] = capture.record
        self.times = findings.pack_times(self.record, self.capture)


def opened(contents: Contents, traits: Mapping[str, Any]) -> Inspector:
    """The inspector, with traits as a user has asked for them.

    Raises:
        CabwError: there is no such trait, or not with such a value.
    """
    try_ = 'session.inspect(level="autograd", color_by="bytes")'
    unknown = [name for name in traits if name not in Inspector.class_trait_names()]
    if unknown:
        raise CabwError(f"inspect() got {unknown[0]}={traits[unknown[0]]!r}", expected=SETTABLE, try_=try_)
    try:
        return Inspector(contents, **traits)
    except traitlets.TraitError as error:
        raise CabwError(f"inspect(): {str(error).rstrip('.')}", expected=SETTABLE, try_=try_) from None


SETTABLE = "any of capture, selection, expanded, level, color_by, query"

Shown = dict[str, object] | tuple[dict[str, object], dict[str, object]]
"""What IPython takes for an object's forms: by MIME type, and metadata beside them."""


def widget_view(contents: Callable[[], Contents]) -> Shown:
    """The inspector in the form in which a cell shows it; nothing outside of a Jupyter kernel, where no cell could."""
    from IPython.core.getipython import get_ipython

    if getattr(get_ipython(), "kernel", None) is None:
        return {}
    bundle = Inspector(contents())._repr_mimebundle_()
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    if not data or MIME not in data:
        return {}
    return {MIME: data[MIME]}, metadata  # Colab finds in the metadata what shows widgets
