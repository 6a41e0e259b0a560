"""What `cap.flow()` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cabw_viz.analysis.gradient_flow import sentences
from cabw_viz.record.gradient_flow import Flow
from cabw_viz.surfaces.svg_picture import SvgPicture
from cabw_viz.views.flow_picture import flow_picture
from cabw_viz.views.tables import frame_of

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "module": "object",
    "visit": "int64",
    "autograd_node": "int64",
    "rms": "float64",
    "leaf_rms": "float64",
}


class FlowReport:
    """The size of gradients along the depth of a model: a picture in a notebook, sentences elsewhere."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        """The plain data; `flow.changes` has where gradients fall or rise, by module and line."""

    @property
    def ok(self) -> bool:
        """Whether nothing falls, rises or dies, and no leaf's gradient is zero everywhere."""
        return not (self.flow.changes or self.flow.zero_leaves)

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each call of a module, from the model's input to its loss.

        `rms` is the largest root mean square of the gradients that flow into it from elsewhere, `leaf_rms` that of
        its own leaves; NaN where there is none. `autograd_node` is the first of it that runs.
        """
        return frame_of([(p.module or None, p.visit, p.number, p.rms, p.leaf_rms) for p in self.flow.points], COLUMNS)

    def picture(self) -> SvgPicture:
        """The report as a picture; shows itself in a notebook."""
        words = f"flow of gradients through {len(self.flow.points)} calls of modules"
        return SvgPicture(flow_picture(self.flow), words, 'report.picture().save("gradients.svg")')

    def __repr__(self) -> str:
        factor = f"{self.flow.factor:g}"
        nothing = f"No gradient falls or rises by more than {factor} on its way, and none is zero everywhere."
        return "\n".join(f"✗ {words}" for words in sentences(self.flow)) or nothing

    def _repr_html_(self) -> str:
        return self.picture()._repr_html_()
