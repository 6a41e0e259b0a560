"""What `cap.missing()` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cabw_viz.analysis import missing as analysis
from cabw_viz.record.missing import MissingGradient, MissingGradients
from cabw_viz.views import missing_table as views
from cabw_viz.views.html import missing_html

if TYPE_CHECKING:
    import pandas as pd


class MissingReport:
    """The parameters that a backward gave no gradient, those whose gradient is zero everywhere, and the reasons."""

    def __init__(self, missing: MissingGradients) -> None:
        self.missing = missing
        """The plain data."""

    @property
    def rows(self) -> tuple[MissingGradient, ...]:
        """One for each parameter; see `frame`."""
        return self.missing.rows

    @property
    def summary(self) -> str:
        """How many there are, in words."""
        return analysis.summary(self.missing)

    @property
    def sentences(self) -> list[str]:
        """A sentence for each reason and place."""
        return analysis.sentences(self.missing)

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each parameter: `parameter`, `reason`, `module`, `operator`, `line`, `autograd_node`, `text`."""
        return views.missing_frame(self.missing)

    def __len__(self) -> int:
        return len(self.missing.rows)

    def __repr__(self) -> str:
        return views.missing_text(self.missing)

    def _repr_html_(self) -> str:
        return missing_html(self.missing)
