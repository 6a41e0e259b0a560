"""One captured backward, and everything that can be asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cabw_viz.analysis.drawing import Level
from cabw_viz.errors import CabwError
from cabw_viz.places import cell_files
from cabw_viz.record.model import CaptureRecord, Failure
from cabw_viz.replay import audit as audit_of
from cabw_viz.replay import parity as parity_of
from cabw_viz.replay.runner import HookPolicy, replay
from cabw_viz.surfaces.report import ParityReport
from cabw_viz.tracing.recorder import Captured
from cabw_viz.views import tables
from cabw_viz.views.html import capture_html
from cabw_viz.views.inspector.page import inspector_page
from cabw_viz.views.outline import outline
from cabw_viz.views.render import GraphView, graph_view

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import torch

    from cabw_viz.record.comparison import Comparison
    from cabw_viz.surfaces.inspector import Contents, Inspector


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
        page = inspector_page("cabw_viz: capture", [self.record], (), comparisons([self]), cell_files())
        return written(path, page)

    def _contents(self) -> Contents:
        from cabw_viz.surfaces.inspector import Contents

        return Contents([self.record], (), [self], comparisons([self]))

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        from cabw_viz.surfaces.inspector import widget_view

        return widget_view(self._contents)

    def _repr_html_(self) -> str:
        return self.html()


def comparisons(captures: Sequence[Capture]) -> dict[int, Comparison]:
    """What `parity()` came to, by the capture's place; captures without are absent."""
    return {index: cap.compared for index, cap in enumerate(captures) if cap.compared is not None}


def written(path: str | Path, text: str) -> Path:
    """Write a text to a file. Raises a CabwError where that is not possible."""
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
